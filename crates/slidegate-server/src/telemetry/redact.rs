//! Displays attribute values of clients to operators, either in plain text or as keyed hashes.

use std::borrow::Cow;
use std::fmt;
use std::hash::{BuildHasher, RandomState};

use slidegate::store::Value;

/// A redactor of attribute values: it decides whether a value is displayed in plain text or as a keyed hash. Clones
/// display a value identically.
///
/// Values of attributes that are credentials by their names are always hashed, so that a reader of the log cannot
/// impersonate a client.
///
/// The hash is keyed by a secret that the process generates at start. A reader can follow a value within the log and
/// the top keys of one process, but cannot test guesses or compare processes. The hash is SipHash from std rather than
/// a faster hash, because the secret of a fast hash could be recovered from its outputs.
#[derive(Clone, Debug, Default)]
pub struct Redactor {
    secret: RandomState,
    redact_all: bool,
}

/// The last words of the names of attributes that contain credentials, such as `header.cookie` and `x-auth-token`.
const CREDENTIAL_WORDS: [&str; 8] = [
    "apikey",
    "authorization",
    "cookie",
    "credential",
    "passphrase",
    "password",
    "secret",
    "token",
];

/// The words before `key` in the names of attributes that contain credentials, such as `header.x-api-key`.
const CREDENTIAL_KEY_PREFIXES: [&str; 7] =
    ["access", "api", "auth", "private", "secret", "session", "subscription"];

/// Returns whether an attribute contains a credential of a client, by the words of its name.
fn is_credential_name(name: &str) -> bool {
    let mut words = name.rsplit(['.', '-', '_']);
    let last = words.next().unwrap_or_default();
    let is_one_of =
        |words: &[&str], word: &str| words.iter().any(|it| it.eq_ignore_ascii_case(word));
    is_one_of(&CREDENTIAL_WORDS, last)
        || last.eq_ignore_ascii_case("key")
            && words.next().is_some_and(|word| is_one_of(&CREDENTIAL_KEY_PREFIXES, word))
}

impl Redactor {
    /// Creates a redactor. If `redact_all` is `true`, all values are hashed, otherwise only credentials.
    pub fn new(redact_all: bool) -> Self {
        Self { redact_all, ..Self::default() }
    }

    /// Returns the value of the attribute `name` for display, in plain text or as a keyed hash.
    pub fn redact<'v>(&self, name: &str, value: Value<'v>) -> RedactedValue<'v> {
        if self.redact_all || is_credential_name(name) {
            RedactedValue::Hash(self.secret.hash_one(value))
        } else {
            RedactedValue::Plain(value)
        }
    }
}

/// Maximum number of bytes of a key of the store for display. A longer key is cut.
const MAX_SHOWN_KEY_BYTES: usize = 1_024;

impl Redactor {
    /// Returns keys of the Redis store for display, separated by ` or `, with hashes in place of values that must be
    /// redacted: `slidegate:default:rule:{tenant=…}:log`. `docs/reference/redis-wire-format.md` defines the keys.
    pub fn redact_store_keys(&self, keys: &str) -> String {
        let keys: Vec<String> = keys.split(" or ").map(|key| self.redact_store_key(key)).collect();
        keys.join(" or ")
    }

    fn redact_store_key(&self, key: &str) -> String {
        // The values of a key are in braces, and further values follow the braces up to the next colon.
        let Some((scope, rest)) = key.split_once('{') else { return key.to_owned() };
        let (tagged, rest) = rest.split_once('}').unwrap_or((rest, ""));
        let (others, shape) = if rest.starts_with(',') {
            rest.split_at(rest.find(':').unwrap_or(rest.len()))
        } else {
            ("", rest)
        };
        let (tagged, part) = tagged.split_at(tagged.find('#').unwrap_or(tagged.len()));
        let (tagged, others) = (self.redact_pairs(tagged), self.redact_pairs(others));
        let mut shown = format!("{scope}{{{tagged}{part}}}{others}{shape}");
        if shown.len() > MAX_SHOWN_KEY_BYTES {
            shown.truncate(shown.floor_char_boundary(MAX_SHOWN_KEY_BYTES));
            shown.push('…');
        }
        shown
    }

    /// Redacts names and values as a key has them: percent-encoded, and separated by commas.
    fn redact_pairs(&self, pairs: &str) -> String {
        let pair = |pair: &str| match pair.split_once('=') {
            Some((name, value)) => format!("{name}={}", self.redact_key_value(name, value)),
            // Digits without a name are the hash tag of a call record, which needs no redaction.
            None if pair.bytes().all(|byte| byte.is_ascii_digit()) => pair.to_owned(),
            // Other text without a name is the digest of a long list of values.
            None => self.redact_key_value("", pair),
        };
        pairs.split(',').map(pair).collect::<Vec<_>>().join(",")
    }

    fn redact_key_value(&self, name: &str, encoded: &str) -> String {
        let (name, text) = (decode_percent(name), decode_percent(encoded));
        let value = parse_network(&text).unwrap_or_else(|| (&*text).into());
        match self.redact(&name, value) {
            RedactedValue::Plain(_) => encoded.to_owned(),
            hash @ RedactedValue::Hash(_) => hash.to_string(),
        }
    }
}

/// Decodes percent-encoded bytes.
fn decode_percent(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return text.into();
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(decoded) if byte == b'%' => {
                bytes.push(decoded);
                rest = &after[2..];
            }
            _ => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned().into()
}

/// Parses an IPv6 network as a key has it, such as `(2001:db8::/64)`.
fn parse_network(text: &str) -> Option<Value<'static>> {
    let (address, prefix_bits) = text.strip_prefix('(')?.strip_suffix(')')?.split_once('/')?;
    Some(Value::Network { address: address.parse().ok()?, prefix_bits: prefix_bits.parse().ok()? })
}

/// An attribute value for display, in plain text or as a keyed hash.
#[derive(Clone, Copy, Debug)]
pub enum RedactedValue<'v> {
    /// The value in plain text.
    Plain(Value<'v>),
    /// A keyed hash of the value, displayed as 16 hexadecimal digits.
    Hash(u64),
}

impl fmt::Display for RedactedValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(value) => value.fmt(f),
            Self::Hash(hash) => write!(f, "{hash:016x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_is_plain_text_without_redaction() {
        assert_eq!(Redactor::new(false).redact("tenant", "acme".into()).to_string(), "acme");
    }

    #[test]
    fn credentials_are_always_hashed() {
        let is_hashed = |name: &str| {
            let shown = Redactor::new(false).redact(name, "Bearer abc".into());
            matches!(shown, RedactedValue::Hash(_))
        };
        for name in [
            "header.authorization",
            "header.proxy-authorization",
            "header.cookie",
            "header.x-api-key",
            "header.api-key",
            "header.apikey",
            "header.x-auth-token",
            "header.ocp-apim-subscription-key",
            "X-Api-Key",
            "api_key",
            "token",
        ] {
            assert!(is_hashed(name), "{name}");
        }
        for name in ["key", "generic_key", "header.x-tenant", "tokens", "keyboard", "api", ""] {
            assert!(!is_hashed(name), "{name}");
        }
    }

    #[test]
    fn keys_of_store_are_shown_or_hashed() {
        let shown = |redact_all, key| Redactor::new(redact_all).redact_store_keys(key);
        for key in [
            "slidegate:default:a:{tenant=ac%20me,ip=(2001:db8::/64)}:log",
            "slidegate:default:a:{}:1m:sliding_log:1m",
            "p:d:r:{tenant=acme#3} or p:d:r:{tenant=acme},route=%2Fv1:1m:concurrent",
            "slidegate:call:{8157}:72a90ea3da8b5dd01bde2f27314e02e2",
        ] {
            assert_eq!(shown(false, key), key);
        }
        let redactor = Redactor::new(true);
        let hash = |name: &str, value: Value<'_>| redactor.redact(name, value).to_string();
        let network = Value::Network { address: "2001:db8::".parse().unwrap(), prefix_bits: 64 };
        assert_eq!(
            redactor.redact_store_keys(
                "p:d:a:{tenant=ac%20m%C3%A4,ip=(2001:db8::/64)#3},r=%2F:log or p:call:{81}:7"
            ),
            format!(
                "p:d:a:{{tenant={},ip={}#3}},r={}:log or p:call:{{81}}:7",
                hash("tenant", "ac mä".into()),
                hash("ip", network),
                hash("r", "/".into())
            )
        );
        assert!(!shown(true, "p:d:a:{(sha256-1afd)}").contains("1afd"));
        let credential = shown(false, "p:d:a:{header.authorization=s3cret,ip=::1}:log");
        assert!(!credential.contains("s3cret") && credential.ends_with(",ip=::1}:log"));
        let long = format!("p:d:a:{{t={}}}:log", "%C3%A4".repeat(1_000));
        assert!(shown(false, &long).len() < 1_100);
    }

    #[test]
    fn each_redactor_hashes_with_own_secret() {
        let redact = Redactor::new(true);
        let shown =
            |redact: &Redactor, value: &str| redact.redact("tenant", value.into()).to_string();
        let acme = shown(&redact, "acme");
        assert!(acme.len() == 16 && acme.bytes().all(|byte| byte.is_ascii_hexdigit()), "{acme}");
        assert_eq!(shown(&redact.clone(), "acme"), acme);
        assert_ne!(shown(&redact, "acm"), acme);
        assert_ne!(shown(&Redactor::new(true), "acme"), acme, "each redactor has its own secret");
        assert_eq!(RedactedValue::Hash(10).to_string(), "000000000000000a");
    }
}

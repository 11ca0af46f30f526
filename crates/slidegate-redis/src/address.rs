//! Where a Redis is, or several, and how one may tell.

use std::fmt;
use std::str::FromStr;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};
use thiserror::Error;

use crate::connect::{ConnectError, Settings};
use crate::store::RedisStore;

/// How many Sentinels, or nodes of a Cluster, an address may name.
const MAX_HOSTS: usize = 64;

/// An address of a Redis: `redis://`, `rediss://` (TLS) or `unix://`; of several: `redis+sentinel://` or
/// `redis+cluster://` (`rediss+…://` for TLS). As text it has neither user nor password.
#[derive(Clone)]
pub struct Address {
    target: Target,
    shown: Box<str>,
}

/// Who is to be asked.
#[derive(Clone)]
pub(crate) enum Target {
    /// A server.
    One(ConnectionInfo),
    /// The master of a service that Sentinels watch.
    Sentinel(SentinelTarget),
    /// The masters of a Cluster, of which these are known.
    Cluster(Vec<ConnectionInfo>),
}

#[derive(Clone)]
pub(crate) struct SentinelTarget {
    pub sentinels: Vec<ConnectionInfo>,
    pub service: String,
    /// How one logs in at the service, whose address only the Sentinels know.
    pub login: ConnectionInfo,
}

/// Why a text is no address of a Redis. It has nothing of the text, which may have a password.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AddressError {
    /// It begins with none of the schemes.
    #[error(
        "an address begins with redis://, rediss:// (TLS), unix://, redis+sentinel:// or redis+cluster:// (with TLS rediss+sentinel://, rediss+cluster://)"
    )]
    Scheme,
    /// Its parts are not understood.
    #[error(
        "{0}: write redis://user:password@host:6379/0 (user, password, port and database may be left out; percent-encode what is neither letter nor digit in a password), or unix:///path?db=0&user=…&pass=…"
    )]
    Form(String),
    /// Its parts are not understood, of several.
    #[error(
        "{0}: write redis+sentinel://user:password@host:26379,host:26379/service?db=0&sentinel_user=…&sentinel_pass=… or redis+cluster://user:password@host:6379,host:6379 (user, password and what stands behind the `?` may be left out)"
    )]
    FormOfSeveral(String),
}

impl Address {
    /// [`RedisStore::open`] at this address.
    ///
    /// # Errors
    /// If no client can be made of the settings.
    pub fn open(&self, settings: Settings) -> Result<RedisStore, ConnectError> {
        RedisStore::at(self, settings)
    }

    pub(crate) fn target(&self) -> Target {
        self.target.clone()
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let Some((scheme, rest)) = text.split_once("://") else { return Err(AddressError::Scheme) };
        match scheme {
            "redis+sentinel" => sentinels("redis", rest),
            "rediss+sentinel" => sentinels("rediss", rest),
            "redis+cluster" => cluster("redis", rest),
            "rediss+cluster" => cluster("rediss", rest),
            "redis" | "rediss" | "valkey" | "valkeys" => one(text, &["protocol"]),
            "unix" | "redis+unix" | "valkey+unix" => one(text, &["db", "user", "pass", "protocol"]),
            _ => Err(AddressError::Scheme),
        }
    }
}

fn one(text: &str, parameters: &[&str]) -> Result<Address, AddressError> {
    let wrong = |what: &str| AddressError::Form(what.to_owned());
    if text.contains('#') {
        // The certificate of a server is always looked at, so `#insecure` is not known.
        return Err(wrong("nothing may stand behind a `#`"));
    }
    let query = text.split_once('?').map_or("", |(_, query)| query);
    parameters_of(query, parameters).map_err(|what| wrong(&what))?;
    let info = info(text).map_err(wrong)?;
    let shown = shown(&info).into();
    Ok(Address { target: Target::One(info), shown })
}

/// What is written behind a `?`, by name.
fn parameters_of<'t>(query: &'t str, known: &[&str]) -> Result<Vec<(&'t str, &'t str)>, String> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let pairs: Vec<_> = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).collect();
    match pairs.iter().any(|(name, _)| !known.contains(name)) {
        true if known.is_empty() => Err("nothing may stand behind a `?`".to_owned()),
        true => Err(format!("only {} may stand behind a `?`", known.join(", "))),
        false => Ok(pairs),
    }
}

/// A single server. The error of the client may quote a part of the text.
fn info(text: &str) -> Result<ConnectionInfo, &'static str> {
    let info = text.into_connection_info().map_err(|_| "it cannot be read")?;
    match info.redis_settings().db() < 0 {
        true => Err("a database has a number from 0"),
        false => Ok(info),
    }
}

/// `user:password@host:port,host:port`: what stands before the @, and the hosts.
fn hosts(authority: &str) -> Result<(&str, Vec<&str>), String> {
    let (user, hosts) = match authority.rsplit_once('@') {
        Some((user, hosts)) => (&authority[..user.len() + 1], hosts),
        None => ("", authority),
    };
    let hosts: Vec<&str> = hosts.split(',').collect();
    match (hosts.iter().any(|host| host.is_empty()), hosts.len() > MAX_HOSTS) {
        (true, _) => Err("a host is missing".to_owned()),
        (_, true) => Err(format!("at most {MAX_HOSTS} hosts can be named")),
        _ => Ok((user, hosts)),
    }
}

fn sentinels(scheme: &str, rest: &str) -> Result<Address, AddressError> {
    let wrong = |what: &str| AddressError::FormOfSeveral(what.to_owned());
    if rest.contains('#') {
        return Err(wrong("nothing may stand behind a `#`"));
    }
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let known = ["db", "sentinel_user", "sentinel_pass"];
    let parameters = parameters_of(query, &known).map_err(|what| wrong(&what))?;
    let parameter =
        |name| parameters.iter().find(|(other, _)| *other == name).map_or("", |(_, value)| *value);
    let (authority, service) = place.split_once('/').unwrap_or((place, ""));
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if service.is_empty() || !service.bytes().all(plain) {
        return Err(wrong("behind the hosts stands the name of the service that they watch"));
    }
    let (user, hosts) = hosts(authority).map_err(|what| wrong(&what))?;
    let own_user = match (parameter("sentinel_user"), parameter("sentinel_pass")) {
        ("", "") => String::new(),
        (name, password) => format!("{name}:{password}@"),
    };
    let port = |host: &&str| match has_port(host) {
        true => format!("{scheme}://{own_user}{host}"),
        false => format!("{scheme}://{own_user}{host}:26379"),
    };
    let sentinels: Result<Vec<_>, _> = hosts.iter().map(|host| info(&port(host))).collect();
    let sentinels = sentinels.map_err(wrong)?;
    // Nobody asks this host: only how one logs in matters.
    let login = info(&format!("{scheme}://{user}localhost/{}", parameter("db"))).map_err(wrong)?;
    let names: Vec<String> = sentinels.iter().map(|info| host_and_port(info.addr())).collect();
    let db = login.redis_settings().db();
    let db = if db == 0 { String::new() } else { format!("?db={db}") };
    let shown = format!("{scheme}+sentinel://{}/{service}{db}", names.join(","));
    let target = SentinelTarget { sentinels, service: service.to_owned(), login };
    Ok(Address { target: Target::Sentinel(target), shown: shown.into() })
}

fn cluster(scheme: &str, rest: &str) -> Result<Address, AddressError> {
    let wrong = |what: &str| AddressError::FormOfSeveral(what.to_owned());
    if rest.contains(['#', '?']) {
        return Err(wrong("nothing may stand behind a `#` or `?`"));
    }
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    if authority.contains('/') {
        return Err(wrong("a Cluster has one database only"));
    }
    let (user, hosts) = hosts(authority).map_err(|what| wrong(&what))?;
    let seed = |host: &&str| info(&format!("{scheme}://{user}{host}"));
    let seeds: Result<Vec<_>, _> = hosts.iter().map(seed).collect();
    let seeds = seeds.map_err(wrong)?;
    let names: Vec<String> = seeds.iter().map(|info| host_and_port(info.addr())).collect();
    let shown = format!("{scheme}+cluster://{}", names.join(","));
    Ok(Address { target: Target::Cluster(seeds), shown: shown.into() })
}

/// Whether a host is followed by a port; an IPv6 address has colons, too, in brackets.
fn has_port(host: &str) -> bool {
    host.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'))
}

/// A host and its port, as one writes them.
pub(crate) fn host_and_port(address: &ConnectionAddr) -> String {
    match address {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            match host.contains(':') {
                true => format!("[{host}]:{port}"),
                false => format!("{host}:{port}"),
            }
        }
        other => other.to_string(),
    }
}

/// An address without user and password.
fn shown(info: &ConnectionInfo) -> String {
    let db = info.redis_settings().db();
    match info.addr() {
        address @ ConnectionAddr::Tcp(..) => format!("redis://{}/{db}", host_and_port(address)),
        address @ ConnectionAddr::TcpTls { .. } => {
            format!("rediss://{}/{db}", host_and_port(address))
        }
        ConnectionAddr::Unix(path) if db == 0 => format!("unix://{}", path.display()),
        ConnectionAddr::Unix(path) => format!("unix://{}?db={db}", path.display()),
        // Kinds that are yet to come.
        _ => "redis".to_owned(),
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_told_without_user_and_password() {
        for (text, told) in [
            ("redis://localhost", "redis://localhost:6379/0"),
            ("redis://ann:secret@h:7000/3", "redis://h:7000/3"),
            ("redis://:secret@[::1]:7000", "redis://[::1]:7000/0"),
            ("redis://:p%40%2Fss@h", "redis://h:6379/0"),
            ("rediss://ann:secret@h/1?protocol=resp3", "rediss://h:6379/1"),
            ("unix:///run/redis.sock?pass=secret", "unix:///run/redis.sock"),
            ("unix:///run/redis.sock?db=2&user=ann&pass=secret", "unix:///run/redis.sock?db=2"),
            ("redis+sentinel://a,b:1/main", "redis+sentinel://a:26379,b:1/main"),
            (
                "rediss+sentinel://ann:p%40secret@[::1]:1,b/m.1?db=2&sentinel_user=s&sentinel_pass=secret",
                "rediss+sentinel://[::1]:1,b:26379/m.1?db=2",
            ),
            ("redis+cluster://a,[::1]:7", "redis+cluster://a:6379,[::1]:7"),
            ("rediss+cluster://:secret@a:1,b:2/", "rediss+cluster://a:1,b:2"),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), told);
            assert_eq!(format!("{address:?}"), format!("Address({told})"));
        }
    }

    #[test]
    fn what_is_wrong_is_told_without_what_it_says() {
        for (text, told) in [
            ("", "begins with redis://"),
            ("secret", "begins with redis://"),
            ("localhost:6379", "begins with redis://"),
            ("redis:/ann:secret@h", "begins with redis://"),
            ("http://ann:secret@h", "begins with redis://"),
            ("redis+clusters://secret@h", "begins with redis://"),
            ("redis+cluster://ann:secret@", "a host is missing"),
            ("redis+cluster://ann:secret@a,,b", "a host is missing"),
            ("redis+cluster://ann:secret@a/1", "one database only"),
            ("redis+cluster://ann:secret@a?db=1", "behind a `#` or `?`"),
            ("redis+cluster://ann:secret@a:secret", "it cannot be read"),
            ("redis+sentinel://ann:secret@a,b", "the name of the service"),
            ("redis+sentinel://ann:secret@a,b/", "the name of the service"),
            ("redis+sentinel://ann:secret@a,b/se%20cret", "the name of the service"),
            ("redis+sentinel://a,b/m?pass=secret", "only db, sentinel_user, sentinel_pass may"),
            ("redis+sentinel://a,b/m?db=secret", "it cannot be read"),
            ("redis+sentinel://a,b/m?db=-1", "a database has a number from 0"),
            ("redis://", "redis://user:password@host:6379/0"),
            ("redis://ann:secret", "redis://user:password@host:6379/0"),
            ("redis://ann:sec/ret@h", "redis://user:password@host:6379/0"),
            ("redis://ann:sec#ret@h", "behind a `#`"),
            ("redis://ann:sec?ret@h", "only protocol may"),
            ("redis://h/secret", "database"),
            ("redis://h/-1", "a database has a number from 0"),
            ("redis://h?password=secret", "only protocol may"),
            ("rediss://ann:secret@h#insecure", "behind a `#`"),
            ("unix:///run/redis.sock?password=secret", "only db, user, pass, protocol may"),
            ("unix:///run/redis.sock?db=secret", "database"),
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(told), "{text}: {error}");
            assert!(!error.contains("secret") && !error.contains("sec/"), "{text}: {error}");
        }
    }
}

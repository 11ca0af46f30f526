//! Where a Redis is, and how one may tell.

use std::fmt;
use std::str::FromStr;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};
use thiserror::Error;

use crate::connect::{ConnectError, Settings};
use crate::store::RedisStore;

/// An address of a Redis: `redis://`, `rediss://` (TLS) or `unix://`. As text it has neither user nor password.
#[derive(Clone)]
pub struct Address {
    /// As it was given.
    secret: Box<str>,
    shown: Box<str>,
}

/// Why a text is no address of a Redis. It has nothing of the text, which may have a password.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AddressError {
    /// It begins with none of the schemes.
    #[error("an address begins with redis://, rediss:// (TLS) or unix://")]
    Scheme,
    /// Its parts are not understood.
    #[error(
        "{0}: write redis://user:password@host:6379/0 (user, password, port and database may be left out; percent-encode what is neither letter nor digit in a password), or unix:///path?db=0&user=…&pass=…"
    )]
    Form(String),
}

impl Address {
    /// [`RedisStore::open`] at this address.
    ///
    /// # Errors
    /// If no client can be made of the settings.
    pub fn open(&self, settings: Settings) -> Result<RedisStore, ConnectError> {
        RedisStore::open(&self.secret, settings)
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = |what: &str| Err(AddressError::Form(what.to_owned()));
        let parameters: &[&str] = match text.split_once("://") {
            Some(("redis" | "rediss" | "valkey" | "valkeys", _)) => &["protocol"],
            Some(("unix" | "redis+unix" | "valkey+unix", _)) => &["db", "user", "pass", "protocol"],
            _ => return Err(AddressError::Scheme),
        };
        if text.contains('#') {
            // The certificate of a server is always looked at, so `#insecure` is not known.
            return wrong("nothing may stand behind a `#`");
        }
        let query = text.split_once('?').map_or("", |(_, query)| query);
        let names = query.split('&').filter_map(|pair| pair.split('=').next());
        if names.into_iter().any(|name| !name.is_empty() && !parameters.contains(&name)) {
            return wrong(&format!("only {} may stand behind a `?`", parameters.join(", ")));
        }
        // The error may quote a part of the text.
        let Ok(info) = text.into_connection_info() else { return wrong("it cannot be read") };
        if info.redis_settings().db() < 0 {
            return wrong("a database has a number from 0");
        }
        Ok(Self { secret: text.into(), shown: shown(&info).into() })
    }
}

/// An address without user and password.
fn shown(info: &ConnectionInfo) -> String {
    let db = info.redis_settings().db();
    let host = |host: &str| match host.contains(':') {
        true => format!("[{host}]"),
        false => host.to_owned(),
    };
    match info.addr() {
        ConnectionAddr::Tcp(name, port) => format!("redis://{}:{port}/{db}", host(name)),
        ConnectionAddr::TcpTls { host: name, port, .. } => {
            format!("rediss://{}:{port}/{db}", host(name))
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
            ("redis+cluster://secret@h", "begins with redis://"),
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

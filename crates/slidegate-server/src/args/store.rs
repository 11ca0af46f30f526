//! The flags of the store that holds the counters.

use std::convert::Infallible;
use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;

use super::value_parsers::parse_duration;

/// The flags of the store that holds the counters.
#[derive(Debug, clap::Args)]
pub struct StoreArgs {
    // The help would print the value of the variable.
    /// Store of the counters: memory; cluster://, the replicated memory of several instances (--cluster-seeds); or a
    /// Redis that all instances share: redis://host:6379/0, rediss://… (TLS), unix:///path,
    /// redis+sentinel://host:26379,host:26379/service or redis+cluster://host:6379,host:6379. Set an address with a
    /// password in the environment: every user of the machine can read a command line
    #[arg(
        long,
        value_name = "STORE",
        env = "SLIDEGATE_STORE",
        default_value = "memory",
        hide_env_values = true
    )]
    pub store: StoreArg,

    /// Maximum wait of a request for Redis, from 1ms to 60s, such as 15ms or 1s; then on_store_error of the policy
    /// applies
    #[arg(
        long,
        value_name = "DURATION",
        env = "SLIDEGATE_REDIS_TIMEOUT",
        default_value = "15ms",
        value_parser = parse_redis_timeout
    )]
    pub redis_timeout: Duration,

    /// Clock of the counters in Redis: server, the clock of Redis; or client, the clock of this machine, which is
    /// cheaper for Redis and requires synchronized machines
    #[arg(
        long,
        value_name = "CLOCK",
        env = "SLIDEGATE_REDIS_CLOCK",
        default_value = "server",
        hide_possible_values = true
    )]
    pub redis_clock: RedisClock,

    /// Prefix of every key in Redis; instances with the same prefix share their counters
    #[arg(
        long,
        value_name = "TEXT",
        env = "SLIDEGATE_REDIS_PREFIX",
        default_value = "slidegate:",
        value_parser = parse_redis_prefix
    )]
    pub redis_prefix: String,

    /// Maximum age of a cached denial, from 0ms to 60s, such as 1s or 500ms; until then, or until the cost fits,
    /// requests are denied without a call to Redis. 0ms disables the cache
    #[arg(
        long,
        value_name = "DURATION",
        env = "SLIDEGATE_DENY_CACHE_TTL",
        default_value = "1s",
        value_parser = parse_deny_cache_ttl
    )]
    pub deny_cache_ttl: Duration,

    /// PEM file with the certificates to trust for rediss://; by default the certificate authorities that browsers
    /// trust
    #[arg(long, value_name = "FILE", env = "SLIDEGATE_REDIS_CA_FILE")]
    pub redis_ca_file: Option<PathBuf>,

    /// Number of instances that share the store; while the store is unavailable, each enforces its share of every
    /// limit, and 1 enforces the whole limit
    #[arg(long, value_name = "N", env = "SLIDEGATE_EXPECTED_INSTANCES", default_value = "1")]
    pub expected_instances: NonZeroU32,
}

/// The value of `--store` as given. The value may contain a password. So the module `settings` parses it, because an
/// error of the argument parser would quote the password.
#[derive(Clone)]
pub struct StoreArg(pub String);

impl FromStr for StoreArg {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for StoreArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// The clock that counters in Redis use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RedisClock {
    /// The clock of Redis.
    Server,
    /// The clock of this machine.
    Client,
}

/// The maximum of `--redis-timeout`.
const MAX_REDIS_TIMEOUT: Duration = Duration::from_secs(60);

/// The maximum of `--deny-cache-ttl`.
const MAX_DENY_CACHE_TTL: Duration = Duration::from_secs(60);

fn parse_redis_timeout(text: &str) -> Result<Duration, String> {
    parse_duration(text, MAX_REDIS_TIMEOUT)
        .filter(|timeout| !timeout.is_zero())
        .ok_or_else(|| "write it as 15ms or 1s, from 1ms to 60s".to_owned())
}

fn parse_deny_cache_ttl(text: &str) -> Result<Duration, String> {
    parse_duration(text, MAX_DENY_CACHE_TTL)
        .ok_or_else(|| "write it as 500ms or 1s, from 0ms to 60s".to_owned())
}

/// The maximum length in bytes of the prefix of keys in Redis.
const MAX_REDIS_PREFIX_BYTES: usize = 64;

/// Parses the prefix of keys in Redis. In a key, a hash tag in braces follows the prefix, and glob patterns for keys
/// begin with the prefix. So the prefix must contain no braces and no special characters of glob patterns.
fn parse_redis_prefix(text: &str) -> Result<String, String> {
    let is_allowed = |byte: u8| byte.is_ascii_graphic() && !br"{}*?[]\^".contains(&byte);
    if !text.is_empty() && text.len() <= MAX_REDIS_PREFIX_BYTES && text.bytes().all(is_allowed) {
        return Ok(text.to_owned());
    }
    Err(format!(
        r"use 1 to {MAX_REDIS_PREFIX_BYTES} printable ASCII characters, none of them a space or one of {{ }} * ? [ ] ^ \, for example `slidegate:eu:`"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_timeout_requires_unit_and_valid_range() {
        for (text, ms) in [("15ms", 15), ("1ms", 1), ("1s", 1_000), ("60s", 60_000)] {
            assert_eq!(parse_redis_timeout(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for invalid in [
            "",
            "15",
            "ms",
            "0ms",
            "0s",
            "61s",
            "1m",
            "1.5s",
            "-1s",
            "+1s",
            "15 ms",
            "99999999999999999999s",
        ] {
            assert!(parse_redis_timeout(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn deny_cache_ttl_accepts_zero() {
        for (text, ms) in [("0ms", 0), ("0s", 0), ("1s", 1_000), ("60s", 60_000)] {
            assert_eq!(parse_deny_cache_ttl(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        assert!(parse_deny_cache_ttl("0").is_err() && parse_deny_cache_ttl("61s").is_err());
    }

    #[test]
    fn redis_prefix_rejects_braces_and_glob_characters() {
        for valid in ["slidegate:", "a", "eu/prod-1:", &"x".repeat(64)] {
            assert_eq!(parse_redis_prefix(valid).as_deref(), Ok(valid));
        }
        for invalid in [
            "",
            "a b",
            "a\n",
            "a{b",
            "a}",
            "a*",
            "a?",
            "[a",
            "a]",
            "a\\b",
            "[^",
            "ä",
            &"x".repeat(65),
        ] {
            assert!(parse_redis_prefix(invalid).is_err(), "{invalid}");
        }
    }
}

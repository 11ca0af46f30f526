//! The flags of the store that holds the counters.

use std::convert::Infallible;
use std::fmt;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::cluster::SecretArg;
use super::value_parsers::{DurationRange, parse_max_memory, parse_nonzero};
use crate::boot::settings::RedisClock;

/// The flags of the store that holds the counters.
#[derive(Debug, clap::Args)]
pub struct StoreArgs {
    // The value of the variable may contain a password, so the help does not print it.
    /// Store of the counters: memory, cluster:// or the address of a Redis
    ///
    /// cluster:// is the replicated memory of several instances (--cluster-seeds). A Redis is shared by all instances:
    /// redis://host:6379/0, rediss://… (TLS), unix:///path, redis+sentinel://host:26379,host:26379/service or
    /// redis+cluster://host:6379,host:6379. Set an address with a password in the environment: every user of the
    /// machine can read a command line.
    #[arg(
        long,
        value_name = "STORE",
        env = "SLIDEGATE_STORE",
        default_value = "memory",
        hide_env_values = true,
        help_heading = "Store"
    )]
    pub store: StoreArg,

    /// Maximum number of keys, such as clients, that are counted in memory
    ///
    /// When it is reached, keys that are about to expire are evicted. With Redis, keys are counted in memory only while
    /// Redis is unavailable.
    #[arg(
        long,
        value_name = "N",
        env = "SLIDEGATE_MAX_KEYS",
        default_value = "10000000",
        value_parser = parse_nonzero::<NonZeroUsize>,
        help_heading = "Store"
    )]
    pub max_keys: NonZeroUsize,

    /// Maximum memory of keys, call records and waiting calls, such as 512MiB, 1GiB or a number of bytes, at least 1MiB
    ///
    /// When it is reached, keys and records that are about to expire are evicted. Records take at most a quarter of it,
    /// and waiting calls a 16th.
    #[arg(
        long,
        value_name = "SIZE",
        env = "SLIDEGATE_MAX_MEMORY",
        default_value = "1GiB",
        value_parser = parse_max_memory,
        help_heading = "Store"
    )]
    pub max_memory: usize,

    /// Maximum number of idempotent calls and settled reservations that are remembered in memory
    ///
    /// When it or a quarter of --max-memory is reached, calls that are about to expire are evicted: a repeated call is
    /// then charged again, and a settlement can no longer be repeated. With Redis, calls are remembered in memory only
    /// while Redis is unavailable.
    #[arg(
        long,
        value_name = "N",
        env = "SLIDEGATE_MAX_CALL_RECORDS",
        default_value = "1000000",
        value_parser = parse_nonzero::<NonZeroUsize>,
        help_heading = "Store"
    )]
    pub max_call_records: NonZeroUsize,

    // The value of the variable is a secret, so the help does not print it.
    /// Secret with which reservations are encrypted, any text of 16 bytes or more
    ///
    /// Instances that share a Redis need the same key to settle each other's reservations. By default, a node of a
    /// cluster derives it from the secret of the cluster, and any other process draws a random key. Set it in the
    /// environment or in a file: every user of the machine can read a command line.
    #[arg(
        long,
        value_name = "TEXT",
        env = "SLIDEGATE_TOKEN_KEY",
        hide_env_values = true,
        help_heading = "Store"
    )]
    pub token_key: Option<SecretArg>,

    /// File with the token key, an alternative to --token-key
    ///
    /// A line break at its end is not part of the key.
    #[arg(long, value_name = "FILE", env = "SLIDEGATE_TOKEN_KEY_FILE", help_heading = "Store")]
    pub token_key_file: Option<PathBuf>,

    /// Maximum wait of a request for Redis, from 1ms to 1m
    ///
    /// Then on_store_error of the policy applies.
    #[arg(
        long,
        value_name = "DURATION",
        env = "SLIDEGATE_REDIS_TIMEOUT",
        default_value = "15ms",
        value_parser = parse_redis_timeout,
        help_heading = "Redis"
    )]
    pub redis_timeout: Duration,

    /// Clock of the counters in Redis: server (the clock of Redis) or client (the clock of this machine)
    ///
    /// client is cheaper for Redis, and requires synchronized machines.
    #[arg(
        long,
        value_name = "CLOCK",
        env = "SLIDEGATE_REDIS_CLOCK",
        default_value = "server",
        hide_possible_values = true,
        help_heading = "Redis"
    )]
    pub redis_clock: RedisClock,

    /// Prefix of every key in Redis; instances with the same prefix share their counters
    #[arg(
        long,
        value_name = "TEXT",
        env = "SLIDEGATE_REDIS_PREFIX",
        default_value = "slidegate:",
        value_parser = parse_redis_prefix,
        help_heading = "Redis"
    )]
    pub redis_prefix: String,

    /// Maximum age of a cached denial, from 0ms to 1m; 0ms disables the cache
    ///
    /// Until then, or until the cost fits, requests are denied without a call to Redis.
    #[arg(
        long,
        value_name = "DURATION",
        env = "SLIDEGATE_DENY_CACHE_TTL",
        default_value = "1s",
        value_parser = parse_deny_cache_ttl,
        help_heading = "Redis"
    )]
    pub deny_cache_ttl: Duration,

    /// PEM file with the certificates to trust for rediss://
    ///
    /// By default the certificate authorities that browsers trust.
    #[arg(long, value_name = "FILE", env = "SLIDEGATE_REDIS_CA_FILE", help_heading = "Redis")]
    pub redis_ca_file: Option<PathBuf>,

    /// PEM file with the certificate of this server for a Redis that requires one (rediss://), read at start
    #[arg(
        long,
        value_name = "FILE",
        env = "SLIDEGATE_REDIS_CERT_FILE",
        requires = "redis_key_file",
        help_heading = "Redis"
    )]
    pub redis_cert_file: Option<PathBuf>,

    /// PEM file with the private key of --redis-cert-file, read at start
    #[arg(
        long,
        value_name = "FILE",
        env = "SLIDEGATE_REDIS_KEY_FILE",
        requires = "redis_cert_file",
        help_heading = "Redis"
    )]
    pub redis_key_file: Option<PathBuf>,

    /// Number of instances that share the Redis
    ///
    /// While Redis is unavailable, each instance enforces its share of every limit; 1 enforces the whole limit.
    #[arg(
        long,
        value_name = "N",
        env = "SLIDEGATE_EXPECTED_INSTANCES",
        default_value = "1",
        value_parser = parse_nonzero::<NonZeroU32>,
        help_heading = "Redis"
    )]
    pub expected_instances: NonZeroU32,

    /// Fail readiness (/readyz) while Redis is unavailable
    ///
    /// By default the server stays ready, since on_store_error of the policy applies.
    #[arg(long, env = "SLIDEGATE_READY_NEEDS_STORE", help_heading = "Redis")]
    pub ready_needs_store: bool,
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

/// The maximum of `--redis-timeout` and `--deny-cache-ttl`.
const MAX_REDIS_DURATION: Duration = Duration::from_secs(60);

fn parse_redis_timeout(text: &str) -> Result<Duration, String> {
    let min = Duration::from_millis(1);
    DurationRange { min, max: MAX_REDIS_DURATION, example: "15ms" }.parse(text)
}

fn parse_deny_cache_ttl(text: &str) -> Result<Duration, String> {
    DurationRange { min: Duration::ZERO, max: MAX_REDIS_DURATION, example: "1s" }.parse(text)
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
    fn redis_durations_have_documented_bounds() {
        let ms = |ms| Some(Duration::from_millis(ms));
        for (text, timeout, ttl) in [
            ("0ms", None, ms(0)),
            ("1ms", ms(1), ms(1)),
            ("1m", ms(60_000), ms(60_000)),
            ("61s", None, None),
            ("15", None, None),
        ] {
            let parsed = (parse_redis_timeout(text).ok(), parse_deny_cache_ttl(text).ok());
            assert_eq!(parsed, (timeout, ttl), "{text}");
        }
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

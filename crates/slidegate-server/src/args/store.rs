//! Where counts live.

use std::convert::Infallible;
use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;

use super::span::span;

/// Where counts live.
#[derive(Debug, clap::Args)]
pub struct StoreArgs {
    // What a variable holds would stand in the help.
    /// Where counts live: memory; cluster://, the memory of instances that tell each other (--cluster-seeds); or the
    /// Redis that all instances share, as redis://host:6379/0, rediss://… (TLS), unix:///path,
    /// redis+sentinel://host:26379,host:26379/service or redis+cluster://host:6379,host:6379. If the address
    /// has a password, give it by the environment: every user of the machine can read a command line
    #[arg(
        long,
        value_name = "STORE",
        env = "SLIDEGATE_STORE",
        default_value = "memory",
        hide_env_values = true
    )]
    pub store: StoreText,

    /// How long a request may wait for Redis, such as 15ms or 1s; then on_store_error of the policy holds
    #[arg(
        long,
        value_name = "SPAN",
        env = "SLIDEGATE_REDIS_TIMEOUT",
        default_value = "15ms",
        value_parser = redis_timeout
    )]
    pub redis_timeout: Duration,

    /// Whose time counts in Redis: its own (server), or that of this machine (client), which costs Redis
    /// less and asks for clocks that agree
    #[arg(
        long,
        value_name = "WHOSE",
        env = "SLIDEGATE_REDIS_CLOCK",
        default_value = "server",
        hide_possible_values = true
    )]
    pub redis_clock: RedisClock,

    /// What every key in Redis begins with; instances share counts if theirs are alike
    #[arg(
        long,
        value_name = "TEXT",
        env = "SLIDEGATE_REDIS_PREFIX",
        default_value = "slidegate:",
        value_parser = redis_prefix
    )]
    pub redis_prefix: String,

    /// How long a denial is believed without asking Redis again, unless the cost fits sooner, such as 1s or
    /// 500ms; 0ms asks every time
    #[arg(
        long,
        value_name = "SPAN",
        env = "SLIDEGATE_DENY_CACHE_TTL",
        default_value = "1s",
        value_parser = deny_cache_ttl
    )]
    pub deny_cache_ttl: Duration,

    /// For rediss://: a PEM file with the certificates to trust; without it, those that browsers do
    #[arg(long, value_name = "FILE", env = "SLIDEGATE_REDIS_CA_FILE")]
    pub redis_ca_file: Option<PathBuf>,

    /// How many instances share the store; while it does not answer, each enforces its part of every
    /// limit
    #[arg(long, value_name = "N", env = "SLIDEGATE_EXPECTED_INSTANCES", default_value = "1")]
    pub expected_instances: NonZeroU32,
}

/// What is said of the store. It may have a password, so it is read only where an error does not quote it.
#[derive(Clone)]
pub struct StoreText(pub String);

impl FromStr for StoreText {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for StoreText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// Whose time counts in Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RedisClock {
    /// That of Redis.
    Server,
    /// That of this machine.
    Client,
}

/// The longest that a request may wait for Redis, or that a denial is believed.
const MAX_SPAN: Duration = Duration::from_secs(60);

fn redis_timeout(text: &str) -> Result<Duration, String> {
    let form = || "write it as 15ms or 1s, from 1ms to 60s".to_owned();
    span(text, MAX_SPAN).filter(|span| !span.is_zero()).ok_or_else(form)
}

fn deny_cache_ttl(text: &str) -> Result<Duration, String> {
    span(text, MAX_SPAN).ok_or_else(|| "write it as 500ms or 1s, from 0ms to 60s".to_owned())
}

/// Bytes that a prefix may have.
const MAX_PREFIX: usize = 64;

/// A prefix goes into globs and before the hash tag, and neither may read it as its own.
fn redis_prefix(text: &str) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_graphic() && !br"{}*?[]\^".contains(&byte);
    if !text.is_empty() && text.len() <= MAX_PREFIX && text.bytes().all(plain) {
        return Ok(text.to_owned());
    }
    Err(format!(
        r"use 1 to {MAX_PREFIX} printable ASCII characters, none of them a space or one of {{ }} * ? [ ] ^ \, for example `slidegate:eu:`"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_out_is_a_number_and_a_unit_from_1_ms_to_a_minute() {
        for (text, ms) in [("15ms", 15), ("1ms", 1), ("1s", 1_000), ("60s", 60_000)] {
            assert_eq!(redis_timeout(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for wrong in [
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
            assert!(redis_timeout(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_denial_may_be_believed_not_at_all() {
        for (text, ms) in [("0ms", 0), ("0s", 0), ("1s", 1_000), ("60s", 60_000)] {
            assert_eq!(deny_cache_ttl(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        assert!(deny_cache_ttl("0").is_err() && deny_cache_ttl("61s").is_err());
    }

    #[test]
    fn a_prefix_has_neither_braces_nor_what_a_glob_reads() {
        for right in ["slidegate:", "a", "eu/prod-1:", &"x".repeat(64)] {
            assert_eq!(redis_prefix(right).as_deref(), Ok(right));
        }
        for wrong in [
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
            assert!(redis_prefix(wrong).is_err(), "{wrong}");
        }
    }
}

//! The settings of a [`RedisStore`](crate::RedisStore). They apply to all its servers.

use std::path::PathBuf;
use std::time::Duration;

/// Settings of a [`RedisStore`](crate::RedisStore).
#[derive(Clone, Debug)]
pub struct Settings {
    /// Prefix of every Redis key.
    pub prefix: String,
    /// Maximum duration of a request to the store.
    pub timeout: Duration,
    /// Additional time to live of a Redis key, beyond the time until which its counters are needed. If clients use
    /// their own clocks ([`RedisStore::with_clock`](crate::RedisStore::with_clock)), the margin must be longer than the
    /// difference between these clocks.
    pub expiry_margin: Duration,
    /// Maximum time for which a denial is cached. During this time, repeated requests are denied without a call to
    /// Redis. A cached denial expires earlier if the denied cost fits the limit earlier. Zero disables the denial
    /// cache, except for sampled rules.
    pub deny_cache_ttl: Duration,
    /// PEM file with the CA certificates that verify servers at `rediss://` addresses. `None` uses Mozilla's list of
    /// root certificates.
    pub ca_file: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            prefix: "slidegate:".to_owned(),
            timeout: Duration::from_millis(15),
            expiry_margin: Duration::from_secs(1),
            deny_cache_ttl: Duration::from_secs(1),
            ca_file: None,
        }
    }
}

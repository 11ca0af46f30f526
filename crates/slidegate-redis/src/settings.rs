//! The settings of a [`RedisStore`](crate::RedisStore). They apply to all its servers.

use std::path::PathBuf;
use std::time::Duration;

/// PEM files with the certificate of a client and its private key. They are read when the store is opened.
#[derive(Clone, Debug)]
pub struct ClientCertificate {
    /// The certificate, followed by the rest of its chain.
    pub cert_file: PathBuf,
    /// The private key.
    pub key_file: PathBuf,
}

/// Settings of a [`RedisStore`](crate::RedisStore).
///
/// ```
/// use std::time::Duration;
///
/// let settings = slidegate_redis::RedisSettings {
///     timeout: Duration::from_millis(50),
///     ..slidegate_redis::RedisSettings::default()
/// };
/// assert_eq!(settings.prefix, "slidegate:");
/// ```
#[derive(Clone, Debug)]
pub struct RedisSettings {
    /// Prefix of every Redis key. Default: `slidegate:`.
    pub prefix: String,
    /// Maximum duration of a request to the store. Default: 15 ms.
    pub timeout: Duration,
    /// Additional time to live of a Redis key, beyond the time until which its counters are needed. If clients use
    /// their own clocks ([`RedisStore::with_clock`](crate::RedisStore::with_clock)), the margin must be longer than the
    /// difference between these clocks. Default: 1 s.
    pub expiry_margin: Duration,
    /// Maximum difference between the clocks of clients, if they use their own clocks
    /// ([`RedisStore::with_clock`](crate::RedisStore::with_clock)). The permits of limits on requests in flight expire this
    /// much later, so that a client whose clock is ahead does not take a permit that is still held. Default: 1 s.
    pub max_clock_skew: Duration,
    /// Maximum time for which a denial is cached. During this time, repeated requests are denied without a call to
    /// Redis. A cached denial expires earlier if the denied cost fits the limit earlier. Zero disables the denial
    /// cache, except for sampled rules. Default: 1 s.
    pub deny_cache_ttl: Duration,
    /// PEM file with the CA certificates that verify servers at `rediss://` addresses. `None` uses Mozilla's list of
    /// root certificates.
    pub ca_file: Option<PathBuf>,
    /// The certificate of this client, for servers at `rediss://` addresses that require one. Default: `None`.
    pub client_certificate: Option<ClientCertificate>,
    /// Whether the store logs, at most once a minute, that a key has a value of another program. The circuit breaker does
    /// not count such failures. Set it to `false` if the caller logs the errors of calls. Default: `true`.
    pub logs_foreign_values: bool,
}

impl Default for RedisSettings {
    fn default() -> Self {
        Self {
            prefix: "slidegate:".to_owned(),
            timeout: Duration::from_millis(15),
            expiry_margin: Duration::from_secs(1),
            max_clock_skew: Duration::from_secs(1),
            deny_cache_ttl: Duration::from_secs(1),
            ca_file: None,
            client_certificate: None,
            logs_foreign_values: true,
        }
    }
}

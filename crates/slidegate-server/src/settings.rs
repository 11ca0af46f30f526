//! What the arguments mean: files are read, so that a mistake shows before anything starts.

use std::fmt;
use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use slidegate::headers::Style;
use slidegate::{Jitter, Policy};
use slidegate_redis::{Address, AddressError};
use thiserror::Error;
use tracing::level_filters::LevelFilter;

use crate::args::{RedisClock, ServeArgs, StoreArgs};
use crate::policy_file::{self, PolicyFileError};

/// All that `serve` needs to know.
pub struct Settings {
    pub http: SocketAddr,
    pub policy: Policy,
    pub headers: Style,
    pub retry_jitter: Jitter,
    pub store: StoreChoice,
    pub expected_instances: NonZeroU32,
    pub max_keys: NonZeroUsize,
    pub clients: ClientBounds,
    pub log: LevelFilter,
}

/// Where counts live.
#[derive(Debug)]
pub enum StoreChoice {
    Memory,
    Redis { address: Box<Address>, settings: slidegate_redis::Settings, clock: RedisClock },
}

/// Why the arguments mean nothing.
#[derive(Debug, Error)]
pub enum SettingsError {
    #[error(transparent)]
    Policy(#[from] PolicyFileError),
    #[error("--store (SLIDEGATE_STORE) is neither `memory` nor an address of a Redis: {0}")]
    Store(#[from] AddressError),
}

/// How much the clocks of instances may differ that tell Redis the time: so much longer than needed are keys
/// kept.
const CLOCKS_DIFFER: Duration = Duration::from_secs(10);

/// What clients may take of the server.
#[derive(Debug, Clone, Copy)]
pub struct ClientBounds {
    /// Connections at once.
    pub connections: NonZeroUsize,
    /// How long to wait for a client in each step of an exchange.
    pub patience: Duration,
}

impl Settings {
    /// Reads what the arguments point to.
    pub fn read(args: ServeArgs) -> Result<Self, SettingsError> {
        let ServeArgs {
            policy,
            http,
            headers,
            retry_jitter,
            store,
            max_keys,
            max_connections,
            client_timeout,
            log,
        } = args;
        let clients = ClientBounds {
            connections: max_connections,
            patience: Duration::from_secs(client_timeout),
        };
        let policy = policy_file::read(&policy)?;
        let expected_instances = store.expected_instances;
        let store = StoreChoice::read(store)?;
        Ok(Self {
            http,
            policy,
            headers,
            retry_jitter,
            store,
            expected_instances,
            max_keys,
            clients,
            log,
        })
    }
}

impl StoreChoice {
    fn read(args: StoreArgs) -> Result<Self, AddressError> {
        if args.store.0 == "memory" {
            return Ok(Self::Memory);
        }
        let settings = slidegate_redis::Settings {
            prefix: args.redis_prefix,
            timeout: args.redis_timeout,
            ca_file: args.redis_ca_file,
            deny_cache_ttl: args.deny_cache_ttl,
            ..slidegate_redis::Settings::default()
        };
        let settings = match args.redis_clock {
            RedisClock::Server => settings,
            RedisClock::Client => slidegate_redis::Settings { keep: CLOCKS_DIFFER, ..settings },
        };
        let address = Box::new(args.store.0.parse()?);
        Ok(Self::Redis { address, settings, clock: args.redis_clock })
    }
}

/// As one may show it: without a password.
impl fmt::Display for StoreChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::Redis { address, .. } => address.fmt(f),
        }
    }
}

//! What the arguments mean: files are read, so that a mistake shows before anything starts.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::time::Duration;

use slidegate::headers::Style;
use slidegate::{Jitter, Policy};
use tracing::level_filters::LevelFilter;

use crate::args::ServeArgs;
use crate::policy_file::{self, PolicyFileError};

/// All that `serve` needs to know.
pub struct Settings {
    pub http: SocketAddr,
    pub policy: Policy,
    pub headers: Style,
    pub retry_jitter: Jitter,
    pub max_keys: NonZeroUsize,
    pub clients: ClientBounds,
    pub log: LevelFilter,
}

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
    pub fn read(args: ServeArgs) -> Result<Self, PolicyFileError> {
        let ServeArgs {
            policy,
            http,
            headers,
            retry_jitter,
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
        Ok(Self { http, policy, headers, retry_jitter, max_keys, clients, log })
    }
}

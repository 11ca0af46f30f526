//! What the arguments mean: files are read, so that a mistake shows before anything starts.

use std::net::SocketAddr;
use std::num::NonZeroUsize;

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
    pub log: LevelFilter,
}

impl Settings {
    /// Reads what the arguments point to.
    pub fn read(args: ServeArgs) -> Result<Self, PolicyFileError> {
        let ServeArgs { policy, http, headers, retry_jitter, max_keys, log } = args;
        let policy = policy_file::read(&policy)?;
        Ok(Self { http, policy, headers, retry_jitter, max_keys, log })
    }
}

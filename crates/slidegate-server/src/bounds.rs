//! Bounds on the resources that clients and keys can use.
//!
//! Listeners and settings share these bounds. Each listener enforces the bounds on requests before it reads a request
//! further.

use std::num::NonZeroUsize;
use std::time::Duration;

use slidegate::Jitter;

/// Maximum size of a request body in bytes. The maximum exceeds all sizes that proxies accept from clients. Otherwise a
/// client could bypass its limits with long values: the body contains values that end clients choose, and a caller may
/// allow a request if its check fails.
pub const MAX_BODY_BYTES: usize = 1024 * 1024;

/// Maximum size of a request head in bytes: its first line and its headers. It is large, because a proxy may forward
/// all headers of its client.
pub const MAX_HEAD_BYTES: usize = 64 * 1024;

/// Maximum number of headers of a request.
pub const MAX_HEADERS: usize = 500;

/// The largest random increase of the maximum age of a connection, so that connections that were opened together do not
/// close together.
const CONNECTION_AGE_JITTER: Jitter = Jitter::up_to_percent(10);

/// The default of the maximum number of connections from one address is the maximum of the listener, divided by this
/// number.
const DEFAULT_CONNECTIONS_PER_ADDRESS_DIVISOR: usize = 2;

/// The default of the maximum number of connections from one address is not below this number: a small maximum often
/// serves a single proxy.
const MIN_DEFAULT_CONNECTIONS_PER_ADDRESS: usize = 256;

/// Interval at which files are read. A process may be writing a file, so contents are used only if two successive reads
/// are equal.
pub const RELOADABLE_FILE_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of rules in an explanation of several descriptors: the rules of the domain, for each descriptor. A
/// rule takes about half a KiB of memory.
pub const MAX_EXPLAINED_RULES: usize = 100_000;

/// Bounds on the resources that the clients of one listener use.
#[derive(Debug, Clone, Copy)]
pub struct ClientBounds {
    /// Maximum number of open connections.
    pub max_connections: NonZeroUsize,
    /// Maximum number of open connections from one address; `None` for a share of `max_connections`.
    pub max_connections_per_address: Option<NonZeroUsize>,
    /// Maximum wait for a client in each step: request head, request body, response, and idle HTTP connection.
    pub client_timeout: Duration,
    /// Maximum age of a connection, without its random increase.
    pub max_connection_age: Duration,
    /// Maximum time that a gRPC connection may be without calls.
    pub max_connection_idle: Duration,
}

impl ClientBounds {
    /// Returns the maximum age of a new connection: [`max_connection_age`](Self::max_connection_age), increased at
    /// random by up to a tenth.
    pub fn draw_max_age(&self) -> Duration {
        CONNECTION_AGE_JITTER.draw().extend(self.max_connection_age)
    }

    /// Returns the maximum number of open connections from one address.
    pub fn max_connections_per_address(&self) -> usize {
        let max = self.max_connections.get();
        let share = (max / DEFAULT_CONNECTIONS_PER_ADDRESS_DIVISOR)
            .max(MIN_DEFAULT_CONNECTIONS_PER_ADDRESS);
        self.max_connections_per_address.map_or(share, NonZeroUsize::get).min(max)
    }
}

/// Maximum number of descriptors of a request. Envoy creates one descriptor for each `actions` list in the
/// configuration of a route, so clients cannot influence the number.
pub const MAX_DESCRIPTORS: usize = 100;

/// Maximum number of descriptors of a request that is handled on the thread of its connection. Requests with more
/// descriptors are handled on a thread for large calls.
pub const MAX_DESCRIPTORS_OF_SMALL_REQUEST: usize = 8;

/// Maximum number of entries of all descriptors of a request. Envoy creates one entry for each action of a list.
pub const MAX_DESCRIPTOR_ENTRIES: usize = 1_000;

/// Maximum number of limits that apply to a request with many descriptors, because the time of a decision grows with
/// the number of limits.
pub const MAX_LIMITS_PER_REQUEST: usize = 1_000;

/// Bounds on the keys, the records of calls, the waiting calls and the permits in the memory of this process.
#[derive(Debug, Clone, Copy)]
pub struct StoreBounds {
    /// Maximum number of keys that are counted.
    pub max_keys: usize,
    /// Maximum memory in bytes of keys, call records, waiting calls and permits together.
    pub max_memory: usize,
    /// Maximum number of records of idempotent calls and of settled reservations.
    pub max_call_records: usize,
}

impl StoreBounds {
    /// Returns the maximum memory of keys and records of calls in bytes, which is the memory of the store.
    pub fn max_store_bytes(&self) -> usize {
        self.max_memory - self.max_waiting_bytes() - self.max_permit_bytes()
    }

    /// Returns the maximum memory of waiting calls in bytes.
    pub fn max_waiting_bytes(&self) -> usize {
        self.max_memory / 16
    }

    /// Returns the maximum memory in bytes of the permits that the metrics track.
    pub fn max_permit_bytes(&self) -> usize {
        self.max_memory / 64
    }
}

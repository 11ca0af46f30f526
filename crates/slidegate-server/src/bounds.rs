//! Bounds on the resources that clients and keys can use.
//!
//! Listeners and settings share them. Each listener enforces the bounds on requests before it reads a request further.

use std::num::NonZeroUsize;
use std::time::Duration;

/// Maximum size of a request body in bytes. The maximum exceeds all sizes that proxies accept from clients. Otherwise a
/// client could bypass its limits with long values: the body contains values that end clients choose, and a caller may
/// allow a request if its check fails.
pub const MAX_BODY_BYTES: usize = 1024 * 1024;

/// Maximum size of a request head in bytes: its first line and its headers. A proxy may forward all headers of its
/// client.
pub const MAX_HEAD_BYTES: usize = 64 * 1024;

/// Maximum number of headers of a request.
pub const MAX_HEADERS: usize = 500;

/// Bounds on the resources that the clients of one listener use.
#[derive(Debug, Clone, Copy)]
pub struct ClientBounds {
    /// Maximum number of open connections.
    pub max_connections: NonZeroUsize,
    /// Maximum wait for a client in each step: request head, request body, response, and idle connection.
    pub client_timeout: Duration,
}

/// Bounds on the keys, the records of calls, the waiting calls and the permits in the memory of this process.
#[derive(Debug, Clone, Copy)]
pub struct StoreBounds {
    /// Maximum number of keys that are counted.
    pub max_keys: usize,
    /// Maximum memory of all of these together in bytes.
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

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

/// Maximum number of descriptors in a request. Each of them is compared with the rules of its domain, and the proxy that
/// sends them has a few for each route.
pub const MAX_DESCRIPTORS: usize = 100;

/// Maximum number of rules in an explanation of several descriptors: the rules of the domain, for each descriptor. A rule
/// takes about half a KiB of memory.
pub const MAX_EXPLAINED_RULES: usize = 100_000;

/// Maximum number of limits in an explanation of several descriptors: the limits of rules that apply. The store compares
/// each of them with those before it, because they may have the same counter.
pub const MAX_EXPLAINED_LIMITS: usize = 20_000;

/// Bounds on the resources that the clients of one listener use.
#[derive(Debug, Clone, Copy)]
pub struct ClientBounds {
    /// Maximum number of open connections.
    pub max_connections: NonZeroUsize,
    /// Maximum wait for a client in each step: request head, request body, response, and idle connection.
    pub client_timeout: Duration,
}

/// Bounds on the keys that are counted in the memory of this process.
#[derive(Debug, Clone, Copy)]
pub struct StoreBounds {
    /// Maximum number of keys that are counted.
    pub max_keys: usize,
    /// Maximum memory of all keys in bytes.
    pub max_memory: usize,
    /// Maximum number of records of idempotent calls and of settled reservations.
    pub max_call_records: usize,
}

//! What an engine is told once.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use slidegate::Timestamp;

use crate::pn_counter::{CounterUpdate, Incarnation};

/// A node, as others know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// Which life of it. Of two lives of one name the larger is the newer.
    pub incarnation: Incarnation,
    /// Its name; each node has its own, and keeps it when it starts anew.
    pub name: Arc<str>,
    /// Where it listens, if that is known.
    pub address: Option<SocketAddr>,
}

/// How an engine goes about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How often it is ticked: then it tells what has changed.
    pub interval: Duration,
    /// Clocks of nodes differ by no more.
    pub max_clock_skew: Duration,
    /// How long a node that knows of others waits for one that knows the cluster, before it counts as one of a new
    /// cluster.
    pub join_timeout: Duration,
    /// A member that has been silent for longer has left: whatever it charged has left all windows, and it is not
    /// expected back.
    pub silent_timeout: Duration,
    /// Bytes that go to each member in an interval, at most; half of them to tell what has changed.
    pub interval_bytes: usize,
}

/// 250 ms, 2 s, 5 s, a day and 2 MiB.
impl Default for Settings {
    fn default() -> Self {
        Self {
            interval: Duration::from_millis(250),
            max_clock_skew: Duration::from_secs(2),
            join_timeout: Duration::from_secs(5),
            silent_timeout: Duration::from_secs(24 * 60 * 60),
            interval_bytes: 2 << 20,
        }
    }
}

impl Settings {
    pub(super) fn skew_us(&self) -> u64 {
        micros(self.max_clock_skew)
    }

    /// Whether a tally is dated so far in the future that no clock of the cluster can show it: it begins later than a
    /// clock may be ahead, and a window more.
    pub(super) fn is_too_far_ahead(&self, update: &CounterUpdate, now: Timestamp) -> bool {
        let latest_us = now.as_micros().saturating_add(self.skew_us());
        let begins_us = update.bucket.saturating_mul(update.shape.bucket_us);
        begins_us > latest_us.saturating_add(update.shape.span_us())
    }
}

pub(super) fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// Microseconds from one moment to another; none if the other is before it.
pub(super) fn elapsed_us(from: Timestamp, to: Timestamp) -> u64 {
    to.as_micros().saturating_sub(from.as_micros())
}

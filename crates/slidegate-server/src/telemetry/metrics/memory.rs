//! The metric of the memory that `--max-memory` and `--max-buffered` bound, by kind.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// A kind of data whose memory is bounded: bodies by `--max-buffered`, the others together by `--max-memory`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// The counters of keys.
    Keys,
    /// The records of idempotent calls and of settled reservations.
    CallRecords,
    /// The permits that the metrics track until they end.
    Permits,
    /// The calls that wait for capacity, with the text of their requests.
    Waiting,
    /// The bodies of requests that have not been handled yet.
    Bodies,
}

/// The gauge of the memory of each [`MemoryKind`], set before each scrape.
pub struct MemoryGauges(Family<MemoryLabels, Gauge>);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MemoryLabels {
    kind: &'static str,
}

impl MemoryKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Keys => "keys",
            Self::CallRecords => "call_records",
            Self::Permits => "permits",
            Self::Waiting => "waiting",
            Self::Bodies => "bodies",
        }
    }
}

impl MemoryGauges {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let bytes = Family::default();
        registry.register(
            "memory_bytes",
            "Memory in bytes by kind of data: bodies at most --max-buffered, the others together at most --max-memory",
            bytes.clone(),
        );
        Self(bytes)
    }

    /// Sets the memory of one kind in bytes.
    pub fn set(&self, kind: MemoryKind, bytes: usize) {
        let gauge = self.0.get_or_create(&MemoryLabels { kind: kind.name() });
        gauge.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }
}

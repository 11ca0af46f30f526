//! The metrics of the log.

use std::sync::atomic::Ordering;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::telemetry::log::LogQueue;

/// The metrics of the log, whose values are copied from its queue for each scrape.
pub(super) struct LogMetrics {
    queue: LogQueue,
    queue_full: Counter,
    write_failed: Counter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LostLineLabels {
    reason: &'static str,
}

impl LogMetrics {
    pub(super) fn register(registry: &mut Registry, queue: LogQueue) -> Self {
        let lost: Family<LostLineLabels, Counter> = Family::default();
        registry.register(
            "lost_log_lines",
            "Log lines that were not written to standard error, by reason",
            lost.clone(),
        );
        let counter = |reason| lost.get_or_create(&LostLineLabels { reason }).clone();
        Self { queue, queue_full: counter("queue_full"), write_failed: counter("write_failed") }
    }

    pub(super) fn update(&self) {
        let lost = self.queue.lost_lines();
        self.queue_full.inner().fetch_max(lost.queue_full, Ordering::Relaxed);
        self.write_failed.inner().fetch_max(lost.write_failed, Ordering::Relaxed);
    }
}

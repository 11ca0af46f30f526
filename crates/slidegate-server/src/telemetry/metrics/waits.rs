//! Prometheus metrics of calls that wait for capacity. The gate counts the values; they are copied into the metrics for
//! each scrape.

use std::sync::atomic::Ordering;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use slidegate::wait::WaitStats;

/// The gauge and counters whose values are copied from [`WaitStats`] for each scrape.
pub(super) struct WaitGauges {
    waiting: Gauge,
    admitted: Counter,
    timed_out: Counter,
    cancelled: Counter,
    queue_full: Counter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WaitLabels {
    result: &'static str,
}

impl WaitGauges {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let waiting = Gauge::default();
        registry.register("waiting_calls", "Calls that wait for capacity now", waiting.clone());
        let waits: Family<WaitLabels, Counter> = Family::default();
        registry.register(
            "waits",
            "Calls that have waited for capacity, or could not wait because a queue was full, by result",
            waits.clone(),
        );
        let counter = |result| waits.get_or_create(&WaitLabels { result }).clone();
        Self {
            waiting,
            admitted: counter("admitted"),
            timed_out: counter("timed_out"),
            cancelled: counter("cancelled"),
            queue_full: counter("queue_full"),
        }
    }

    pub(super) fn update_from_stats(&self, waits: WaitStats) {
        self.waiting.set(i64::try_from(waits.waiting).unwrap_or(i64::MAX));
        for (counter, count) in [
            (&self.admitted, waits.admitted),
            (&self.timed_out, waits.timed_out),
            (&self.cancelled, waits.cancelled),
            (&self.queue_full, waits.queue_full),
        ] {
            counter.inner().fetch_max(count, Ordering::Relaxed);
        }
    }
}

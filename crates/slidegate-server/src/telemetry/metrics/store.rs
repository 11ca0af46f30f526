//! The metrics of the store: its calls, and its state at the time of a scrape.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use slidegate::StoreError;

use super::new_histogram;

/// The metrics of the calls to the store: durations, and numbers of errors.
#[derive(Clone)]
pub struct StoreMetrics {
    durations: Histogram,
    /// The number of failed calls of each error class.
    errors: Arc<[(&'static str, Counter)]>,
}

/// The state of a store at the time of a scrape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Number of keys whose counters are in the memory of this process.
    pub keys: usize,
    /// Number of bytes of memory that these keys occupy.
    pub key_bytes: usize,
    /// Number of keys that were evicted before they expired.
    pub evicted_keys: u64,
    /// Whether the circuit breaker is open, so that the store is not called.
    pub is_breaker_open: bool,
    /// Number of denials that the denial cache decided, without a call to the store.
    pub deny_cache_hits: u64,
    /// Number of records of idempotent calls and settled reservations in the memory of this process.
    pub call_records: usize,
    /// Number of bytes of memory that these records occupy.
    pub call_record_bytes: usize,
    /// Number of these records that were evicted before they expired.
    pub evicted_call_records: u64,
}

/// Gauges and counters whose values are copied from [`StoreStats`] for each scrape.
pub struct StoreGauges {
    keys: Gauge,
    evicted_keys: Counter,
    breaker_open: Gauge,
    deny_cache_hits: Counter,
    call_records: Gauge,
    evicted_call_records: Counter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StoreLabels {
    store: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StoreErrorLabels {
    store: &'static str,
    class: &'static str,
}

impl StoreMetrics {
    pub fn register(registry: &mut Registry, store: &'static str) -> Self {
        let durations = Family::new_with_constructor(new_histogram as fn() -> Histogram);
        registry.register(
            "store_seconds",
            "Duration of calls to the store in seconds",
            durations.clone(),
        );
        let errors: Family<StoreErrorLabels, Counter> = Family::default();
        registry.register(
            "store_errors",
            "Failed calls to the store, by class of error",
            errors.clone(),
        );
        let counter = |class| errors.get_or_create(&StoreErrorLabels { store, class }).clone();
        let classes = StoreError::classes_with_remedies().map(|(class, _)| (class, counter(class)));
        Self {
            durations: durations.get_or_create(&StoreLabels { store }).clone(),
            errors: classes.collect(),
        }
    }

    /// Records the duration of a call to the store, and counts its error if it failed.
    pub fn record_call(&self, duration: Duration, error: Option<&StoreError>) {
        self.durations.observe(duration.as_secs_f64());
        let Some(class) = error.map(StoreError::class) else { return };
        if let Some((_, counter)) = self.errors.iter().find(|(other, _)| *other == class) {
            counter.inc();
        }
    }
}

impl StoreGauges {
    pub fn register(registry: &mut Registry, store: &'static str) -> Self {
        let keys = Gauge::default();
        registry.register("keys", "Keys with counters in the memory of this process", keys.clone());
        let evicted_keys = Counter::default();
        registry.register(
            "evicted_keys",
            "Keys evicted before they expired, because --max-keys or --max-memory was reached",
            evicted_keys.clone(),
        );
        let breaker_open: Family<StoreLabels, Gauge> = Family::default();
        registry.register(
            "breaker_open",
            "1 while the circuit breaker rejects calls after repeated store failures, else 0",
            breaker_open.clone(),
        );
        let deny_cache_hits = Counter::default();
        registry.register(
            "deny_cache_hits",
            "Denials from the denial cache, without a call to the store",
            deny_cache_hits.clone(),
        );
        let call_records = Gauge::default();
        registry.register(
            "call_records",
            "Idempotent calls and settled reservations in the memory of this process",
            call_records.clone(),
        );
        let evicted_call_records = Counter::default();
        registry.register(
            "evicted_call_records",
            "Idempotent calls and settled reservations evicted before they expired, because --max-call-records or --max-memory was reached",
            evicted_call_records.clone(),
        );
        let breaker_open = breaker_open.get_or_create(&StoreLabels { store }).clone();
        Self {
            keys,
            evicted_keys,
            breaker_open,
            deny_cache_hits,
            call_records,
            evicted_call_records,
        }
    }

    pub fn update_from_stats(&self, store: StoreStats) {
        let StoreStats {
            keys,
            evicted_keys,
            is_breaker_open,
            deny_cache_hits,
            call_records,
            evicted_call_records,
            ..
        } = store;
        self.keys.set(i64::try_from(keys).unwrap_or(i64::MAX));
        self.evicted_keys.inner().fetch_max(evicted_keys, Ordering::Relaxed);
        self.breaker_open.set(i64::from(is_breaker_open));
        self.deny_cache_hits.inner().fetch_max(deny_cache_hits, Ordering::Relaxed);
        self.call_records.set(i64::try_from(call_records).unwrap_or(i64::MAX));
        self.evicted_call_records.inner().fetch_max(evicted_call_records, Ordering::Relaxed);
    }
}

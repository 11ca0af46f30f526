//! A lock-free histogram of durations for Prometheus. It replaces the histogram of `prometheus_client`, which takes a
//! lock for each observation.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};

use super::stripes::Stripes;

/// Upper bounds of the histogram buckets, in nanoseconds: from the duration of a decision in memory to far beyond any
/// timeout. One more bucket has no upper bound.
const BUCKET_UPPER_BOUNDS_NS: [u64; 19] = [
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    15_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    1_000_000_000,
    10_000_000_000,
];

/// A histogram of durations, as a Prometheus metric. Clones share their counters.
#[derive(Clone, Debug, Default)]
pub struct DurationHistogram(Arc<Stripes<HistogramStripe>>);

/// The part of a histogram that some of the threads update. The histogram is the sum of all parts.
#[derive(Debug, Default)]
struct HistogramStripe {
    buckets: [AtomicU64; BUCKET_UPPER_BOUNDS_NS.len() + 1],
    sum_ns: AtomicU64,
}

impl DurationHistogram {
    /// Counts a duration in its bucket, and adds it to the sum of durations.
    pub fn observe(&self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BUCKET_UPPER_BOUNDS_NS.partition_point(|bound| *bound < ns);
        let stripe = self.0.for_current_thread();
        stripe.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        stripe.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }
}

impl TypedMetric for DurationHistogram {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for DurationHistogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        let bounds =
            BUCKET_UPPER_BOUNDS_NS.iter().map(|ns| *ns as f64 / 1e9).chain([f64::INFINITY]);
        let sum_of = |counter: &dyn Fn(&HistogramStripe) -> &AtomicU64| -> u64 {
            self.0.iter().map(|stripe| counter(stripe).load(Ordering::Relaxed)).sum()
        };
        let counts = (0..=BUCKET_UPPER_BOUNDS_NS.len())
            .map(|index| sum_of(&|stripe| &stripe.buckets[index]));
        let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        // The sum of the buckets that were read, so that the count is consistent with them despite concurrent
        // observations.
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = sum_of(&|stripe| &stripe.sum_ns) as f64 / 1e9;
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn duration_counts_in_all_higher_buckets() {
        let (seconds, mut registry) = (DurationHistogram::default(), Registry::default());
        registry.register("took", "Duration", seconds.clone());
        for duration in [Duration::ZERO, Duration::from_micros(5), Duration::from_secs(11)] {
            seconds.observe(duration);
        }
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let has = |line: &str| assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        has(r#"took_bucket{le="0.000001"} 1"#);
        has(r#"took_bucket{le="0.0000025"} 1"#);
        has(r#"took_bucket{le="0.000005"} 2"#);
        has(r#"took_bucket{le="10.0"} 2"#);
        has(r#"took_bucket{le="+Inf"} 3"#);
        has("took_count 3");
        has("took_sum 11.000005");
    }
}

//! A histogram of times that takes no lock: the crate's own has one for everybody.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};

use super::stripes::Stripes;

/// The longest time of each bucket, in nanoseconds: from what a decision in memory takes to what nobody waits
/// for. The last bucket has the rest.
const BOUNDS_NS: [u64; 19] = [
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

/// How long something took, how often.
#[derive(Clone, Debug, Default)]
pub struct DurationHistogram(Arc<Stripes<HistogramStripe>>);

/// What one thread has seen.
#[derive(Debug, Default)]
struct HistogramStripe {
    buckets: [AtomicU64; BOUNDS_NS.len() + 1],
    sum_ns: AtomicU64,
}

impl DurationHistogram {
    /// Counts one that took so long.
    pub fn observe(&self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_NS.partition_point(|bound| *bound < ns);
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
        let bounds = BOUNDS_NS.iter().map(|ns| *ns as f64 / 1e9).chain([f64::INFINITY]);
        let sum_of = |of: &dyn Fn(&HistogramStripe) -> &AtomicU64| -> u64 {
            self.0.iter().map(|stripe| of(stripe).load(Ordering::Relaxed)).sum()
        };
        let counts = (0..=BOUNDS_NS.len()).map(|index| sum_of(&|stripe| &stripe.buckets[index]));
        let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        // Of what was read, so that the last bucket is the count whatever happens meanwhile.
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
    fn a_time_is_in_the_bucket_of_its_bound_and_in_all_above() {
        let (seconds, mut registry) = (DurationHistogram::default(), Registry::default());
        registry.register("took", "How long", seconds.clone());
        for duration in [Duration::ZERO, Duration::from_micros(5), Duration::from_secs(11)] {
            seconds.observe(duration);
        }
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let has = |line: &str| assert!(text.lines().any(|text| text == line), "{line}\n{text}");
        has(r#"took_bucket{le="0.000001"} 1"#);
        has(r#"took_bucket{le="0.0000025"} 1"#);
        has(r#"took_bucket{le="0.000005"} 2"#);
        has(r#"took_bucket{le="10.0"} 2"#);
        has(r#"took_bucket{le="+Inf"} 3"#);
        has("took_count 3");
        has("took_sum 11.000005");
    }
}

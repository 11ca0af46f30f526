//! Prometheus metrics of a cluster. The cluster itself counts the values; they are copied into the metrics for each
//! scrape.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::Registry;
use slidegate_cluster::{ClusterStatus, OVERSHOOT_BOUNDS_PERMILLE, RejectReason};

/// The state of a cluster at the time of a scrape. All values are 0 without a cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterStats {
    /// Number of nodes that currently send messages, including this node.
    pub alive: u64,
    /// Number of nodes that have stopped sending messages without announcing their departure. Their counters still
    /// apply.
    pub silent: u64,
    /// Number of nodes whose clock differs by more than the maximum. They count as silent nodes do.
    pub skewed: u64,
    /// The largest difference between the clock of this node and the clock of another one.
    pub clock_skew: Duration,
    /// Age of the oldest counter update of this node that another node has not acknowledged.
    pub lag: Duration,
    /// Number of bytes sent to other nodes.
    pub sent_bytes: u64,
    /// Number of bytes received from other nodes.
    pub received_bytes: u64,
    /// Number of rejected connections and frames for each reason, by the name of the reason.
    pub rejected: Vec<(&'static str, u64)>,
    /// Number of requests denied because too many units that this node charged were not yet acknowledged by other
    /// nodes.
    pub unsynced_denials: u64,
    /// Histogram of overshoots: the units by which a counter exceeded the limit's maximum, as a share of it.
    pub overshoot: OvershootBuckets,
}

impl ClusterStats {
    /// Creates the state from the status of this node, its number of denials because of unacknowledged units, and its
    /// overshoots.
    pub fn from_status(
        status: &ClusterStatus,
        unsynced_denials: u64,
        overshoot: OvershootBuckets,
    ) -> Self {
        let lag_ms = status.members.iter().map(|member| member.lag_ms).max();
        let offsets = status.members.iter().filter_map(|member| member.clock_offset_ms);
        let skew_ms = offsets.map(i64::unsigned_abs).max();
        Self {
            alive: 1 + members_in_state(status, "alive"),
            silent: members_in_state(status, "silent"),
            skewed: members_in_state(status, "skewed"),
            clock_skew: Duration::from_millis(skew_ms.unwrap_or(0)),
            lag: Duration::from_millis(lag_ms.unwrap_or(0)),
            sent_bytes: status.sent_bytes,
            received_bytes: status.received_bytes,
            rejected: status.refused.iter().map(|(reason, count)| (*reason, *count)).collect(),
            unsynced_denials,
            overshoot,
        }
    }
}

fn members_in_state(status: &ClusterStatus, state: &str) -> u64 {
    status.members.iter().filter(|member| member.state == state).count() as u64
}

/// A histogram of overshoots. An overshoot is the number of units by which a counter exceeded the limit's maximum, as a
/// share of this maximum. The upper bounds of the buckets are [`OVERSHOOT_BOUNDS_PERMILLE`], in thousandths of the
/// maximum. One more bucket has no upper bound.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OvershootBuckets {
    pub counts: Vec<u64>,
    /// Sum of all recorded overshoots, each as a share of the limit's maximum.
    pub sum: f64,
}

/// Gauges and counters whose values are copied from [`ClusterStats`] for each scrape.
pub(super) struct ClusterGauges {
    alive: Gauge,
    silent: Gauge,
    skewed: Gauge,
    clock_skew: Gauge<f64, AtomicU64>,
    lag: Gauge<f64, AtomicU64>,
    sent_bytes: Counter,
    received_bytes: Counter,
    rejected: Family<RejectedFrameLabels, Counter>,
    unsynced_denials: Counter,
    overshoot: OvershootHistogram,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClusterMemberLabels {
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RejectedFrameLabels {
    reason: &'static str,
}

/// The overshoot histogram of the last scrape, as a Prometheus metric. An overshoot is the part of a counter above the
/// limit's maximum.
#[derive(Clone, Debug, Default)]
struct OvershootHistogram(Arc<Mutex<OvershootBuckets>>);

impl ClusterGauges {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let members: Family<ClusterMemberLabels, Gauge> = Family::default();
        registry.register(
            "cluster_members",
            "Nodes of the cluster, by state: alive, silent, or skewed by a clock that differs too much",
            members.clone(),
        );
        let gauge = |state| members.get_or_create(&ClusterMemberLabels { state }).clone();
        let clock_skew = Gauge::default();
        registry.register(
            "cluster_clock_skew_seconds",
            "Largest difference between the clocks of this node and of another one, in seconds",
            clock_skew.clone(),
        );
        let lag = Gauge::default();
        registry.register(
            "cluster_lag_seconds",
            "Age of the oldest update of this node that another node has not acknowledged, in seconds",
            lag.clone(),
        );
        let rejected: Family<RejectedFrameLabels, Counter> = Family::default();
        for reason in RejectReason::ALL.map(RejectReason::name) {
            drop(rejected.get_or_create(&RejectedFrameLabels { reason }));
        }
        registry.register(
            "cluster_rejected_frames",
            "Rejected connections and frames of other nodes, by reason",
            rejected.clone(),
        );
        let overshoot = OvershootHistogram::default();
        registry.register(
            "cluster_overshoot_ratio",
            "Units of a counter above the maximum of its limit, as a share of the maximum",
            overshoot.clone(),
        );
        let counter = |registry: &mut Registry, name, help| {
            let counter = Counter::default();
            registry.register(name, help, counter.clone());
            counter
        };
        Self {
            alive: gauge("alive"),
            silent: gauge("silent"),
            skewed: gauge("skewed"),
            clock_skew,
            lag,
            sent_bytes: counter(registry, "cluster_sent_bytes", "Bytes sent to other nodes"),
            received_bytes: counter(
                registry,
                "cluster_received_bytes",
                "Bytes received from other nodes",
            ),
            unsynced_denials: counter(
                registry,
                "cluster_unsynced_denials",
                "Requests denied because other nodes have not acknowledged enough units, by max_unsynced",
            ),
            rejected,
            overshoot,
        }
    }

    pub(super) fn update_from_stats(&self, stats: ClusterStats) {
        let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let raise = |counter: &Counter, value| counter.inner().fetch_max(value, Ordering::Relaxed);
        self.alive.set(gauge(stats.alive));
        self.silent.set(gauge(stats.silent));
        self.skewed.set(gauge(stats.skewed));
        self.clock_skew.set(stats.clock_skew.as_secs_f64());
        self.lag.set(stats.lag.as_secs_f64());
        raise(&self.sent_bytes, stats.sent_bytes);
        raise(&self.received_bytes, stats.received_bytes);
        raise(&self.unsynced_denials, stats.unsynced_denials);
        for (reason, count) in stats.rejected {
            raise(&self.rejected.get_or_create(&RejectedFrameLabels { reason }), count);
        }
        *self.overshoot.0.lock() = stats.overshoot;
    }
}

impl TypedMetric for OvershootHistogram {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for OvershootHistogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        let OvershootBuckets { counts, sum } = self.0.lock().clone();
        let bounds = OVERSHOOT_BOUNDS_PERMILLE
            .iter()
            .map(|share| *share as f64 / 1e3)
            .chain([f64::INFINITY]);
        let counts = counts.into_iter().chain(std::iter::repeat(0));
        let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    fn encode_cluster_metrics(stats: Option<ClusterStats>) -> String {
        let mut registry = Registry::default();
        let gauges = ClusterGauges::register(&mut registry);
        if let Some(stats) = stats {
            gauges.update_from_stats(stats);
        }
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        text
    }

    fn assert_metrics_have_line(text: &str, line: &str) {
        assert!(text.lines().any(|it| it == line), "{line}\n{text}");
    }

    #[test]
    fn cluster_metrics_without_cluster_are_zero() {
        let text = encode_cluster_metrics(None);
        assert_metrics_have_line(&text, r#"cluster_members{state="silent"} 0"#);
        assert_metrics_have_line(
            &text,
            r#"cluster_rejected_frames_total{reason="foreign_certificate"} 0"#,
        );
        assert_metrics_have_line(&text, r#"cluster_overshoot_ratio_bucket{le="0.001"} 0"#);
        assert_metrics_have_line(&text, r#"cluster_overshoot_ratio_bucket{le="+Inf"} 0"#);
        assert_metrics_have_line(&text, "cluster_overshoot_ratio_count 0");
    }

    #[test]
    fn cluster_stats_are_encoded_as_metrics() {
        let text = encode_cluster_metrics(Some(ClusterStats {
            alive: 2,
            silent: 1,
            skewed: 3,
            clock_skew: Duration::from_millis(2_500),
            lag: Duration::from_millis(1_250),
            sent_bytes: 7,
            rejected: vec![("foreign_certificate", 3)],
            overshoot: OvershootBuckets { counts: vec![4, 0, 0, 0, 0, 0, 0, 0, 1], sum: 0.75 },
            ..ClusterStats::default()
        }));
        assert_metrics_have_line(&text, r#"cluster_members{state="alive"} 2"#);
        assert_metrics_have_line(&text, r#"cluster_members{state="silent"} 1"#);
        assert_metrics_have_line(&text, r#"cluster_members{state="skewed"} 3"#);
        assert_metrics_have_line(&text, "cluster_clock_skew_seconds 2.5");
        assert_metrics_have_line(&text, "cluster_lag_seconds 1.25");
        assert_metrics_have_line(&text, "cluster_sent_bytes_total 7");
        assert_metrics_have_line(
            &text,
            r#"cluster_rejected_frames_total{reason="foreign_certificate"} 3"#,
        );
        assert_metrics_have_line(&text, r#"cluster_overshoot_ratio_bucket{le="0.001"} 4"#);
        assert_metrics_have_line(&text, r#"cluster_overshoot_ratio_bucket{le="0.5"} 4"#);
        assert_metrics_have_line(&text, r#"cluster_overshoot_ratio_bucket{le="+Inf"} 5"#);
        assert_metrics_have_line(&text, "cluster_overshoot_ratio_sum 0.75");
    }
}

//! What is told of a cluster. It is counted elsewhere, and read when somebody asks.

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
use slidegate_cluster::seal::RejectReason;
use slidegate_cluster::{ClusterStatus, OVERSHOOT_BOUNDS_PERMILLE};

/// How a cluster stands, to be told as metrics. All zero where there is none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterFigures {
    /// Nodes that are heard of, this one among them.
    pub alive: u64,
    /// Nodes that are not heard of any more, and still count.
    pub silent: u64,
    /// For how long the slowest of the others has not acknowledged what it should.
    pub lag: Duration,
    /// Bytes that went out to all nodes.
    pub sent_bytes: u64,
    /// Bytes that came from all nodes.
    pub received_bytes: u64,
    /// What came and was refused, by the reason's name.
    pub refused: Vec<(&'static str, u64)>,
    /// Requests that were denied since too much was not acknowledged.
    pub capped: u64,
    /// How far counts went beyond max.
    pub overshoot: Shares,
}

impl ClusterFigures {
    /// What a node tells of itself and the others.
    pub fn of(status: &ClusterStatus, capped: u64, overshoot: Shares) -> Self {
        let silent = status.members.iter().filter(|member| member.silent_for_ms.is_some()).count();
        let lag_ms = status.members.iter().map(|member| member.lag_ms).max();
        Self {
            alive: (status.members.len() - silent + 1) as u64,
            silent: silent as u64,
            lag: Duration::from_millis(lag_ms.unwrap_or(0)),
            sent_bytes: status.sent_bytes,
            received_bytes: status.received_bytes,
            refused: status.refused.iter().map(|(reason, times)| (*reason, *times)).collect(),
            capped,
            overshoot,
        }
    }
}

/// Shares of max beyond max, how often each was seen: as [`OVERSHOOT_BOUNDS_PERMILLE`] tells them apart, and one more beyond.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shares {
    pub counts: Vec<u64>,
    /// Of all that were seen, as a part of max.
    pub sum: f64,
}

pub(super) struct ClusterGauges {
    alive: Gauge,
    silent: Gauge,
    lag: Gauge<f64, AtomicU64>,
    sent_bytes: Counter,
    received_bytes: Counter,
    refused: Family<RefusedLabels, Counter>,
    capped: Counter,
    overshoot: Told,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MemberLabels {
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusedLabels {
    reason: &'static str,
}

/// The last shares that were told: they are a histogram.
#[derive(Clone, Debug, Default)]
struct Told(Arc<Mutex<Shares>>);

impl ClusterGauges {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let members: Family<MemberLabels, Gauge> = Family::default();
        registry.register(
            "cluster_members",
            "Nodes of the cluster, by whether they are heard of",
            members.clone(),
        );
        let of = |state| members.get_or_create(&MemberLabels { state }).clone();
        let lag = Gauge::default();
        registry.register(
            "cluster_lag_seconds",
            "For how long the slowest of the other nodes has not acknowledged what this one counted",
            lag.clone(),
        );
        let refused: Family<RefusedLabels, Counter> = Family::default();
        for reason in RejectReason::ALL.map(RejectReason::name) {
            drop(refused.get_or_create(&RefusedLabels { reason }));
        }
        registry.register(
            "cluster_rejected_frames",
            "What came from strangers, or damaged, and was refused",
            refused.clone(),
        );
        let overshoot = Told::default();
        registry.register(
            "cluster_overshoot_ratio",
            "Of counts that went beyond max, by what share of it",
            overshoot.clone(),
        );
        let counter = |registry: &mut Registry, name, help| {
            let counter = Counter::default();
            registry.register(name, help, counter.clone());
            counter
        };
        Self {
            alive: of("alive"),
            silent: of("silent"),
            lag,
            sent_bytes: counter(registry, "cluster_sent_bytes", "Bytes sent to other nodes"),
            received_bytes: counter(
                registry,
                "cluster_received_bytes",
                "Bytes received from other nodes",
            ),
            capped: counter(
                registry,
                "cluster_unsynced_denials",
                "Requests denied since other nodes had not acknowledged enough",
            ),
            refused,
            overshoot,
        }
    }

    pub(super) fn set(&self, figures: ClusterFigures) {
        let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let to = |counter: &Counter, value| counter.inner().fetch_max(value, Ordering::Relaxed);
        self.alive.set(gauge(figures.alive));
        self.silent.set(gauge(figures.silent));
        self.lag.set(figures.lag.as_secs_f64());
        to(&self.sent_bytes, figures.sent_bytes);
        to(&self.received_bytes, figures.received_bytes);
        to(&self.capped, figures.capped);
        for (reason, times) in figures.refused {
            to(&self.refused.get_or_create(&RefusedLabels { reason }), times);
        }
        *self.overshoot.0.lock() = figures.overshoot;
    }
}

impl TypedMetric for Told {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for Told {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        let Shares { counts, sum } = self.0.lock().clone();
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

    fn told(figures: Option<ClusterFigures>) -> String {
        let mut registry = Registry::default();
        let gauges = ClusterGauges::register(&mut registry);
        if let Some(figures) = figures {
            gauges.set(figures);
        }
        let mut told = String::new();
        encode(&mut told, &registry).unwrap();
        told
    }

    fn has(told: &str, line: &str) {
        assert!(told.lines().any(|told| told == line), "{line}\n{told}");
    }

    #[test]
    fn without_a_cluster_all_is_zero() {
        let told = told(None);
        has(&told, r#"cluster_members{state="silent"} 0"#);
        has(&told, r#"cluster_rejected_frames_total{reason="wrong_mac"} 0"#);
        has(&told, r#"cluster_overshoot_ratio_bucket{le="0.001"} 0"#);
        has(&told, r#"cluster_overshoot_ratio_bucket{le="+Inf"} 0"#);
        has(&told, "cluster_overshoot_ratio_count 0");
    }

    #[test]
    fn figures_are_told_as_they_are() {
        let told = told(Some(ClusterFigures {
            alive: 2,
            silent: 1,
            lag: Duration::from_millis(1_250),
            sent_bytes: 7,
            refused: vec![("wrong_mac", 3)],
            overshoot: Shares { counts: vec![4, 0, 0, 0, 0, 0, 0, 0, 1], sum: 0.75 },
            ..ClusterFigures::default()
        }));
        has(&told, r#"cluster_members{state="alive"} 2"#);
        has(&told, r#"cluster_members{state="silent"} 1"#);
        has(&told, "cluster_lag_seconds 1.25");
        has(&told, "cluster_sent_bytes_total 7");
        has(&told, r#"cluster_rejected_frames_total{reason="wrong_mac"} 3"#);
        has(&told, r#"cluster_overshoot_ratio_bucket{le="0.001"} 4"#);
        has(&told, r#"cluster_overshoot_ratio_bucket{le="0.5"} 4"#);
        has(&told, r#"cluster_overshoot_ratio_bucket{le="+Inf"} 5"#);
        has(&told, "cluster_overshoot_ratio_sum 0.75");
    }
}

//! `/v1/cluster`: the members of the cluster, their replication state, and the overshoot of limits.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use serde::Serialize;
use slidegate_cluster::{ClusterStatus, OVERSHOOT_BOUNDS_PERMILLE, OvershootHistogram};

use crate::decide::Service;
use crate::decide::store::ClusterNode;
use crate::render::problem::{HttpProblem, path_not_found};
use crate::render::{JsonResponse, render_json};

/// The response body of `/v1/cluster`: the state of the cluster from the view of this node.
#[derive(Serialize)]
struct ClusterStatusBody {
    #[serde(flatten)]
    status: ClusterStatus,
    /// Number of requests that were denied because other nodes had not acknowledged enough updates of this node.
    capped: u64,
    /// A histogram of the counters that exceeded the maximum of their limit. Each bucket counts the counters whose
    /// excess, as a share of this maximum, is in the range of the bucket.
    overshoot: Vec<OvershootBucket>,
}

/// One bucket of the overshoot histogram.
#[derive(Debug, PartialEq, Serialize)]
struct OvershootBucket {
    /// The upper bound of the excess in this bucket, as a share of the limit's maximum: 0.1 is 10 % above the maximum.
    /// Each bucket begins above the bound of the previous bucket. Null for the last bucket, which has no upper bound.
    le: Option<f64>,
    count: u64,
}

/// Returns the state of the cluster, or a problem with status 404 if the store is not a cluster.
pub async fn cluster_status(
    State(service): State<Arc<Service>>,
    uri: Uri,
) -> Result<JsonResponse, HttpProblem> {
    let store = service.store();
    let status = store
        .cluster_node()
        .and_then(ClusterStatusBody::from_cluster_node)
        .ok_or_else(|| http_problem_for_store_without_cluster(&uri, store.kind()))?;
    render_json(&status)
}

impl ClusterStatusBody {
    fn from_cluster_node(node: &ClusterNode) -> Option<Self> {
        let status = ClusterStatus::clone(&*node.status()?);
        let overshoot = overshoot_buckets(node.counters().overshoot());
        Some(Self { status, capped: node.unsynced_denials(), overshoot })
    }
}

fn overshoot_buckets(overshoot: &OvershootHistogram) -> Vec<OvershootBucket> {
    let upper_bounds =
        OVERSHOOT_BOUNDS_PERMILLE.iter().map(|share| Some(*share as f64 / 1e3)).chain([None]);
    let (counts, _) = overshoot.snapshot();
    upper_bounds.zip(counts).map(|(le, count)| OvershootBucket { le, count }).collect()
}

fn http_problem_for_store_without_cluster(uri: &Uri, kind: &str) -> HttpProblem {
    let hint = format!(
        "the store is `{kind}`, not a cluster; start a cluster node with `--store cluster://`"
    );
    path_not_found(uri, &hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_overshoot_bucket_has_no_upper_bound() {
        let buckets = overshoot_buckets(&OvershootHistogram::default());
        assert_eq!(buckets.len(), OVERSHOOT_BOUNDS_PERMILLE.len() + 1);
        assert_eq!(buckets[0], OvershootBucket { le: Some(0.001), count: 0 });
        assert_eq!(
            buckets[OVERSHOOT_BOUNDS_PERMILLE.len()],
            OvershootBucket { le: None, count: 0 }
        );
    }
}

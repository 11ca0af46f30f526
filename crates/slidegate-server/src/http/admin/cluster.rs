//! `/v1/cluster`: the members of the cluster, their replication state, and the overshoot of limits.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use serde::Serialize;
use slidegate_cluster::{Overshoot, SHARES, Status};

use crate::http::problem::{Problem, not_found_with_hint};
use crate::service::Service;
use crate::store::ClusterNode;

/// The state of the cluster from the view of this node.
#[derive(Serialize)]
pub struct ClusterStatus {
    #[serde(flatten)]
    status: Status,
    /// Requests that were denied because other nodes had not acknowledged enough updates.
    capped: u64,
    /// Counters that exceeded max, by their excess as a share of max.
    overshoot: Vec<OvershootBucket>,
}

/// One bucket of the overshoot histogram.
#[derive(Debug, PartialEq, Serialize)]
struct OvershootBucket {
    /// The largest excess in this bucket, as a share of max. Each bucket begins above the bound of the previous one.
    /// Null for the last bucket, which has no upper bound.
    le: Option<f64>,
    count: u64,
}

/// Returns the state of the cluster, or 404 if the store is not a cluster.
pub async fn cluster(
    State(service): State<Arc<Service>>,
    uri: Uri,
) -> Result<Json<ClusterStatus>, Problem> {
    let policy = service.active_policy();
    let store = policy.store();
    store
        .cluster_node()
        .and_then(ClusterStatus::from_node)
        .map(Json)
        .ok_or_else(|| not_clustered(&uri, store.kind()))
}

impl ClusterStatus {
    fn from_node(node: &ClusterNode) -> Option<Self> {
        let status = Status::clone(&*node.status()?);
        let overshoot = overshoot_buckets(node.counters().overshoot());
        Some(Self { status, capped: node.capped(), overshoot })
    }
}

fn overshoot_buckets(overshoot: &Overshoot) -> Vec<OvershootBucket> {
    let upper_bounds = SHARES.iter().map(|share| Some(*share as f64 / 1e3)).chain([None]);
    let (counts, _) = overshoot.read();
    upper_bounds.zip(counts).map(|(le, count)| OvershootBucket { le, count }).collect()
}

fn not_clustered(uri: &Uri, kind: &str) -> Problem {
    let hint = format!(
        "the store is `{kind}`, not a cluster; start a cluster node with `--store cluster://`"
    );
    not_found_with_hint(uri, &hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overshoot_last_bucket_is_unbounded() {
        let buckets = overshoot_buckets(&Overshoot::default());
        assert_eq!(buckets.len(), SHARES.len() + 1);
        assert_eq!(buckets[0], OvershootBucket { le: Some(0.001), count: 0 });
        assert_eq!(buckets[SHARES.len()], OvershootBucket { le: None, count: 0 });
    }
}

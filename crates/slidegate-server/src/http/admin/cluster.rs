//! `/v1/cluster`: which nodes there are, how they keep up, and what has slipped through.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use serde::Serialize;
use slidegate_cluster::{Overshoot, SHARES, Status};

use crate::http::problem::{Problem, not_found_with_hint};
use crate::service::Service;
use crate::wire::Node;

/// How the cluster stands, as this node sees it.
#[derive(Serialize)]
pub struct ClusterStatus {
    #[serde(flatten)]
    status: Status,
    /// Requests that were denied since others had not acknowledged enough.
    capped: u64,
    /// Counts that went beyond max, by how far.
    overshoot: Vec<OvershootBucket>,
}

/// How often counts went beyond max by a share of it.
#[derive(Debug, PartialEq, Serialize)]
struct OvershootBucket {
    /// By no more than this part of max, and by more than that of the one before. Null: by any more.
    le: Option<f64>,
    count: u64,
}

/// What there is to tell; 404 if the store is no cluster.
pub async fn cluster(
    State(service): State<Arc<Service>>,
    uri: Uri,
) -> Result<Json<ClusterStatus>, Problem> {
    let policy = service.active_policy();
    let store = policy.store();
    store
        .node()
        .and_then(ClusterStatus::from_node)
        .map(Json)
        .ok_or_else(|| not_clustered(&uri, store.kind()))
}

impl ClusterStatus {
    fn from_node(node: &Node) -> Option<Self> {
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
    let hint = format!("the store is `{kind}`, which is no cluster: that is `--store cluster://`");
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

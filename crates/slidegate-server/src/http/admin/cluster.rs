//! `/v1/cluster`: which nodes there are, how they keep up, and what has slipped through.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use serde::Serialize;
use slidegate_cluster::{ClusterStatus, OVERSHOOT_BOUNDS_PERMILLE, OvershootHistogram};

use crate::http::problem::{Problem, nothing_at};
use crate::service::Service;
use crate::wire::Node;

/// How the cluster stands, as this node sees it.
#[derive(Serialize)]
pub struct Cluster {
    #[serde(flatten)]
    status: ClusterStatus,
    /// Requests that were denied since others had not acknowledged enough.
    capped: u64,
    /// Counts that went beyond max, by how far.
    overshoot: Vec<Share>,
}

/// How often counts went beyond max by a share of it.
#[derive(Debug, PartialEq, Serialize)]
struct Share {
    /// By no more than this part of max, and by more than that of the one before. Null: by any more.
    le: Option<f64>,
    count: u64,
}

/// What there is to tell; 404 if the store is no cluster.
pub async fn cluster(
    State(service): State<Arc<Service>>,
    uri: Uri,
) -> Result<Json<Cluster>, Problem> {
    let ruled = service.ruled();
    let store = ruled.store();
    store.node().and_then(Cluster::of).map(Json).ok_or_else(|| no_cluster(&uri, store.kind()))
}

impl Cluster {
    fn of(node: &Node) -> Option<Self> {
        let status = ClusterStatus::clone(&*node.status()?);
        let overshoot = shares(node.counters().overshoot());
        Some(Self { status, capped: node.unsynced_denials(), overshoot })
    }
}

fn shares(overshoot: &OvershootHistogram) -> Vec<Share> {
    let ends =
        OVERSHOOT_BOUNDS_PERMILLE.iter().map(|share| Some(*share as f64 / 1e3)).chain([None]);
    let (counts, _) = overshoot.snapshot();
    ends.zip(counts).map(|(le, count)| Share { le, count }).collect()
}

fn no_cluster(uri: &Uri, kind: &str) -> Problem {
    let why = format!("the store is `{kind}`, which is no cluster: that is `--store cluster://`");
    nothing_at(uri, &why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_share_has_an_end_but_the_last() {
        let shares = shares(&OvershootHistogram::default());
        assert_eq!(shares.len(), OVERSHOOT_BOUNDS_PERMILLE.len() + 1);
        assert_eq!(shares[0], Share { le: Some(0.001), count: 0 });
        assert_eq!(shares[OVERSHOOT_BOUNDS_PERMILLE.len()], Share { le: None, count: 0 });
    }
}

//! The servers of a store: one server, or the masters of a Redis Cluster. A call is sent to the server that has the
//! slot of its keys.

use std::sync::Arc;

use slidegate::StoreError;
use tokio::time::Instant;

use crate::call::{ScriptOperation, ScriptResult};
use crate::cluster::Cluster;
use crate::failure::Failure;
use crate::node::{BatchKey, Node};
use crate::script_request::{ScriptRequest, cluster_slot_of_key};

/// The servers of a store.
pub enum Topology {
    /// One server, or the current master as reported by Sentinels.
    Single(Arc<Node>),
    /// The masters of a Cluster.
    Cluster(Cluster),
}

impl Topology {
    /// Returns the Cluster slot of a key; 0 for a single server. One script call can decide hits whose keys are in one
    /// slot.
    pub fn slot(&self, key: &str) -> u16 {
        match self {
            Self::Single(_) => 0,
            Self::Cluster(_) => cluster_slot_of_key(key),
        }
    }

    /// Returns `true` if the circuit breakers of all servers are open.
    pub fn is_breaker_open(&self) -> bool {
        match self {
            Self::Single(node) => node.is_breaker_open(),
            Self::Cluster(cluster) => cluster.is_breaker_open(),
        }
    }

    /// Returns the reason why no server is reachable; `None` if at least one server is.
    pub fn unreachable_reason(&self) -> Option<StoreError> {
        match self {
            Self::Single(node) => node.unreachable_reason(),
            Self::Cluster(cluster) => cluster.unreachable_reason(),
        }
    }

    /// Returns `true` if the circuit breaker of the server that has this key is open.
    pub fn is_breaker_open_for_key(&self, key: &str) -> bool {
        match self {
            Self::Single(node) => node.is_breaker_open(),
            Self::Cluster(cluster) => cluster.is_breaker_open_for_slot(cluster_slot_of_key(key)),
        }
    }

    /// Decides a request whose keys are all in `slot`, by `deadline` at the latest.
    pub async fn decide(
        &self,
        slot: u16,
        request: &Arc<ScriptRequest>,
        deadline: Instant,
    ) -> ScriptResult {
        match self {
            Self::Single(node) => node.decide(BatchKey::default(), request, deadline).await,
            Self::Cluster(cluster) => {
                cluster
                    .call_master(slot, deadline, |node, batch_key| async move {
                        node.decide(batch_key, request, deadline).await
                    })
                    .await
            }
        }
    }

    /// Runs an operation on keys that are all in `slot`, in a call of its own, by `deadline` at the latest.
    pub async fn run_operation<O: ScriptOperation>(
        &self,
        slot: u16,
        operation: &O,
        deadline: Instant,
    ) -> Result<O::Reply, Failure> {
        match self {
            Self::Single(node) => node.run_operation(operation, false, deadline).await,
            Self::Cluster(cluster) => {
                cluster
                    .call_master(slot, deadline, |node, batch_key| async move {
                        node.run_operation(operation, batch_key.is_asking, deadline).await
                    })
                    .await
            }
        }
    }

    /// Makes requests to a single server wait until the returned guard is dropped. Then they share a call. Returns
    /// `None` if a call is in flight already, or if the topology is a Cluster.
    pub fn try_pause_queue(&self) -> Option<impl Drop> {
        match self {
            Self::Single(node) => node.try_pause_queue(BatchKey::default()),
            Self::Cluster(_) => None,
        }
    }
}

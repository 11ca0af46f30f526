//! The servers of a store: one server, or the masters of a Redis Cluster. A call is sent to the server that has the
//! slot of its keys, and follows redirections.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::cluster::Cluster;
use crate::execution::ScriptResult;
use crate::failure::{Failure, Redirect};
use crate::node::{BatchKey, Node};
use crate::script_operation::ScriptOperation;
use crate::script_request::ScriptRequest;
use crate::slot::slot_of;

/// Maximum number of redirections that a call follows.
const MAX_REDIRECTS_PER_CALL: usize = 5;

/// Delay before a call is retried because its slot is being migrated and only some of its keys have moved.
const SLOT_MIGRATION_RETRY_DELAY: Duration = Duration::from_millis(1);

/// The servers of a store.
pub enum Topology {
    /// One server, or the current master as reported by Sentinels.
    Single(Arc<Node>),
    /// The masters of a Cluster.
    Cluster(Cluster),
}

/// The server that a call is sent to, and the batch key: only requests with the same batch key share a call.
struct CallTarget {
    server: Arc<Node>,
    batch_key: BatchKey,
}

impl Topology {
    /// Returns the Cluster slot of a key; 0 for a single server. One script call can decide hits whose keys are in one
    /// slot.
    pub fn slot(&self, key: &str) -> u16 {
        match self {
            Self::Single(_) => 0,
            Self::Cluster(_) => slot_of(key),
        }
    }

    /// Returns `true` if the circuit breakers of all servers are open.
    pub fn is_breaker_open(&self) -> bool {
        match self {
            Self::Single(server) => server.is_breaker_open(),
            Self::Cluster(cluster) => cluster.is_breaker_open(),
        }
    }

    /// Returns `true` if a connection to at least one server has ever been established and the circuit breaker of this
    /// server is closed.
    pub fn is_reachable(&self) -> bool {
        match self {
            Self::Single(server) => server.is_reachable(),
            Self::Cluster(cluster) => cluster.is_reachable(),
        }
    }

    /// Returns `true` if the circuit breaker of the server that has this key is open.
    pub fn is_breaker_open_for_key(&self, key: &str) -> bool {
        match self {
            Self::Single(server) => server.is_breaker_open(),
            Self::Cluster(cluster) => cluster.is_breaker_open_for_slot(slot_of(key)),
        }
    }

    /// Decides a request whose keys are all in `slot`, by `deadline` at the latest.
    pub async fn decide(
        &self,
        slot: u16,
        request: &Arc<ScriptRequest>,
        deadline: Instant,
    ) -> ScriptResult {
        self.send_call_to_owner_of_slot(slot, deadline, |target| async move {
            target.server.decide(target.batch_key, request, deadline).await
        })
        .await
    }

    /// Runs an operation on keys that are all in `slot`, in a call of its own, by `deadline` at the latest.
    pub async fn run_operation<O: ScriptOperation>(
        &self,
        slot: u16,
        operation: &O,
        deadline: Instant,
    ) -> Result<O::Reply, Failure> {
        self.send_call_to_owner_of_slot(slot, deadline, |target| async move {
            target.server.run_operation(operation, target.batch_key.is_asking, deadline).await
        })
        .await
    }

    /// Makes requests to a single server wait until the returned guard is dropped. Then they share a call. Returns
    /// `None` if a call is in flight already, or if the topology is a Cluster.
    pub fn try_hold(&self) -> Option<impl Drop> {
        match self {
            Self::Single(server) => server.try_hold(BatchKey::default()),
            Self::Cluster(_) => None,
        }
    }

    /// Sends a call to the server that has the slot and follows redirections. A redirected call has charged nothing, so
    /// it can be sent again.
    async fn send_call_to_owner_of_slot<T, F>(
        &self,
        slot: u16,
        deadline: Instant,
        send: impl Fn(CallTarget) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let cluster = match self {
            Self::Single(server) => {
                return send(CallTarget { server: server.clone(), batch_key: BatchKey::default() })
                    .await;
            }
            Self::Cluster(cluster) => cluster,
        };
        let mut batch_key = BatchKey { slot, ..BatchKey::default() };
        let mut server = cluster.master(slot, deadline).await?;
        let mut redirects = 0;
        loop {
            let redirect = match send(CallTarget { server: server.clone(), batch_key }).await {
                Err(Failure::Redirect(redirect)) => redirect,
                Err(failure) => {
                    if matches!(failure, Failure::Server(_)) {
                        cluster.request_refresh();
                    }
                    return Err(failure);
                }
                result => return result,
            };
            match &redirect {
                Redirect::Moved(_) | Redirect::Ask(_) if redirects == MAX_REDIRECTS_PER_CALL => {
                    return Err(Failure::Redirect(redirect));
                }
                Redirect::Moved(address) => {
                    cluster.request_refresh();
                    server = cluster.redirect_target(&server, address)?;
                    (batch_key.is_asking, redirects) = (false, redirects + 1);
                }
                Redirect::Ask(address) => {
                    server = cluster.redirect_target(&server, address)?;
                    (batch_key.is_asking, redirects) = (true, redirects + 1);
                }
                Redirect::TryAgain if Instant::now() + SLOT_MIGRATION_RETRY_DELAY >= deadline => {
                    return Err(Failure::Redirect(redirect));
                }
                Redirect::TryAgain => {
                    // A retry without other requests may succeed: its own keys may all be on one node.
                    if batch_key.is_alone {
                        sleep(SLOT_MIGRATION_RETRY_DELAY).await;
                    }
                    server = cluster.master(slot, deadline).await?;
                    (batch_key.is_asking, batch_key.is_alone) = (false, true);
                }
            }
        }
    }
}

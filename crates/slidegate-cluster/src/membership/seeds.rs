//! Addresses at which a node looks for other nodes.

use std::net::SocketAddr;
use std::time::Duration;

use slidegate::store::restart_on_panic;
use tokio::net::lookup_host;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::error;

/// Interval at which the seeds are resolved while no other node is found. When a whole cluster starts, names often do
/// not resolve at first.
const SEED_RESOLVE_INTERVAL_WITHOUT_PEERS: Duration = Duration::from_secs(2);

/// Interval at which the seeds are resolved in a cluster, so that clusters that were disconnected find each other.
const SEED_RESOLVE_INTERVAL: Duration = Duration::from_secs(60);

/// The task that resolves seeds, and its results.
#[derive(Debug)]
pub(crate) struct SeedAddresses {
    addresses: mpsc::Receiver<Vec<SocketAddr>>,
    has_no_peers: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Drop for SeedAddresses {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl SeedAddresses {
    /// Waits until the seeds are resolved the next time. Returns all their addresses. Cancel safe.
    pub(crate) async fn next(&mut self) -> Vec<SocketAddr> {
        match self.addresses.recv().await {
            Some(addresses) => addresses,
            // The task has ended, because there are no seeds or the runtime shuts down. No addresses will follow.
            None => std::future::pending().await,
        }
    }

    /// Sets whether no other node is found.
    pub(crate) fn set_has_no_peers(&self, has_no_peers: bool) {
        self.has_no_peers.send_if_modified(|was_alone| {
            std::mem::replace(was_alone, has_no_peers) != has_no_peers
        });
    }
}

/// Starts a task that resolves the seeds again and again.
pub(crate) fn watch_seeds(seeds: Vec<String>) -> SeedAddresses {
    let (sender, addresses) = mpsc::channel(1);
    let (has_no_peers, alone) = watch::channel(true);
    let resolve = async move || {
        let mut alone = alone.clone();
        loop {
            let mut resolved = Vec::new();
            for seed in &seeds {
                // Names that do not resolve are skipped. They are resolved again after the interval.
                resolved.extend(lookup_host(seed).await.into_iter().flatten());
            }
            if seeds.is_empty() || sender.send(resolved).await.is_err() {
                return;
            }
            let interval = if *alone.borrow_and_update() {
                SEED_RESOLVE_INTERVAL_WITHOUT_PEERS
            } else {
                SEED_RESOLVE_INTERVAL
            };
            let became_alone =
                alone.wait_for(|has_no_peers| *has_no_peers && interval == SEED_RESOLVE_INTERVAL);
            // If the node loses all other nodes during the interval, it resolves the seeds at once.
            let _ = timeout(interval, became_alone).await;
        }
    };
    let task = tokio::spawn(restart_on_panic(resolve, || {
        error!("the task that resolves the seeds of the cluster panicked; it runs again");
    }));
    SeedAddresses { addresses, has_no_peers, task }
}

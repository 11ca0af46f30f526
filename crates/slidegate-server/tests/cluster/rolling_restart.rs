//! Restarts one node of a cluster after the other under load. No charge may be lost, and no request may be denied.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::cluster::node::{
    Node, NodeConfig, start_nodes, wait_for_remaining, wait_until, wait_until_connected,
};

/// The maximum of the limit that the load charges.
pub const LOAD_MAX: u64 = 100_000;

/// The `max_unsynced` of this limit. A node reaches it within 1.5 seconds of the load if a peer does not acknowledge its
/// charges, so an ungraceful exit would cause denials.
pub const LOAD_MAX_UNSYNCED: u64 = 50;

/// State shared by two threads: one sends requests to three nodes in turn, the other restarts one node after another.
pub struct RollingRestartLoad {
    /// The nodes. An entry is `None` while the node restarts.
    nodes: [Mutex<Option<Node>>; 3],
    allowed: AtomicU64,
    denied: AtomicU64,
    is_stopped: AtomicBool,
}

impl RollingRestartLoad {
    /// Starts the nodes.
    pub fn start(configs: &[NodeConfig; 3]) -> Self {
        Self {
            nodes: start_nodes(configs).map(|node| Mutex::new(Some(node))),
            allowed: AtomicU64::new(0),
            denied: AtomicU64::new(0),
            is_stopped: AtomicBool::new(false),
        }
    }

    /// Sends requests to the running nodes in turn, until `restart` returns.
    pub fn run_during(&self, restart: impl FnOnce()) {
        thread::scope(|scope| {
            scope.spawn(|| self.send_requests_until_stopped());
            restart();
            self.is_stopped.store(true, Ordering::Relaxed);
        });
    }

    fn send_requests_until_stopped(&self) {
        for node in self.nodes.iter().cycle() {
            if self.is_stopped.load(Ordering::Relaxed) {
                return;
            }
            if let Some(node) = &*node.lock().unwrap_or_else(PoisonError::into_inner) {
                let outcome = node.check("default");
                let counter = if outcome.allowed { &self.allowed } else { &self.denied };
                counter.fetch_add(1, Ordering::Relaxed);
            }
            // About 100 requests per second.
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Restarts one node after the other with these configurations. Each node knows its peers, and 100 more requests are
    /// allowed, before the next one stops.
    pub fn restart_nodes(&self, configs: &[NodeConfig; 3]) {
        for (slot, config) in self.nodes.iter().zip(configs) {
            let before = self.allowed.load(Ordering::Relaxed);
            slot.lock().unwrap().take().unwrap().stop_gracefully();
            let node = config.start();
            let peers = || node.members_in_state("alive").len();
            wait_until("the node knows its peers", peers, |peers| *peers == 2);
            *slot.lock().unwrap() = Some(node);
            let allowed = || self.allowed.load(Ordering::Relaxed);
            wait_until("100 more requests are allowed", allowed, |now| *now > before + 100);
        }
    }

    /// Asserts that no request was denied, and that all nodes know the charges of all allowed requests.
    pub fn assert_no_charge_is_lost(self) {
        let nodes = self.nodes.map(|node| node.into_inner().unwrap().unwrap());
        wait_until_connected(&nodes.each_ref());
        assert_eq!(self.denied.into_inner(), 0);
        let remaining = LOAD_MAX - self.allowed.into_inner();
        wait_for_remaining(&nodes.each_ref(), "default", remaining);
    }
}

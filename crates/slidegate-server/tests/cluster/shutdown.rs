//! Tests that the graceful shutdown of a cluster node loses no charges and does not delay the other nodes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::node::{
    Node, NodeConfig, node_configs, policy_with_max, start_nodes, wait_for_remaining, wait_until,
    wait_until_connected,
};

#[test]
fn running_nodes_do_not_wait_for_gracefully_stopped_node() {
    let [a, b, c] = start_nodes(&node_configs::<3>(&policy_with_max(90, 5)));
    assert_eq!(b.count_allowed("default", 30), 30);
    b.stop_gracefully();
    wait_until_connected(&[&a, &c]);
    wait_for_remaining(&[&a, &c], "default", 60);
    assert_eq!(a.count_allowed("default", 40), 40, "far more than max_unsynced");
    wait_for_remaining(&[&a, &c], "default", 20);
    assert_eq!(a.members_in_state("silent"), [""; 0]);
}

#[test]
fn stopping_node_replicates_last_charges_before_exit() {
    // With this long interval, only the shutdown itself can have replicated the charges in time.
    let configs = node_configs::<2>(&policy_with_max(90, 80))
        .map(|config| NodeConfig { sync_interval: "5s", ..config });
    let [a, b] = start_nodes(&configs);
    assert_eq!(b.count_allowed("default", 40), 40);
    b.stop_gracefully();
    wait_for_remaining(&[&a], "default", 50);
}

/// State shared by two threads: one sends requests to three nodes in turn, the other restarts one node after another.
struct RollingRestartLoad {
    /// The nodes. An entry is `None` while the node restarts.
    nodes: Vec<Mutex<Option<Node>>>,
    allowed: AtomicU64,
    denied: AtomicU64,
    is_stopped: AtomicBool,
}

impl RollingRestartLoad {
    /// Sends requests to the running nodes in turn, until `is_stopped` is set.
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
}

#[test]
fn rolling_restart_loses_no_charges() {
    // A node reaches max_unsynced within 1.5 seconds of this load if a peer does not acknowledge its charges, so an
    // ungraceful exit would cause denials.
    let max = 100_000;
    let configs = node_configs::<3>(&policy_with_max(max, 50));
    let nodes = start_nodes(&configs).map(|node| Mutex::new(Some(node)));
    let requests = RollingRestartLoad {
        nodes: nodes.into(),
        allowed: AtomicU64::new(0),
        denied: AtomicU64::new(0),
        is_stopped: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        scope.spawn(|| requests.send_requests_until_stopped());
        for (slot, config) in requests.nodes.iter().zip(&configs) {
            let before = requests.allowed.load(Ordering::Relaxed);
            slot.lock().unwrap().take().unwrap().stop_gracefully();
            let node = config.start();
            let peers = || node.members_in_state("alive").len();
            wait_until("the node knows its peers", peers, |peers| *peers == 2);
            *slot.lock().unwrap() = Some(node);
            let allowed = || requests.allowed.load(Ordering::Relaxed);
            wait_until("100 more requests are allowed", allowed, |now| *now > before + 100);
        }
        requests.is_stopped.store(true, Ordering::Relaxed);
    });
    let nodes: Vec<Node> =
        requests.nodes.into_iter().map(|node| node.into_inner().unwrap().unwrap()).collect();
    let nodes: Vec<&Node> = nodes.iter().collect();
    wait_until_connected(&nodes);
    assert_eq!(requests.denied.into_inner(), 0);
    wait_for_remaining(&nodes, "default", max - requests.allowed.into_inner());
}

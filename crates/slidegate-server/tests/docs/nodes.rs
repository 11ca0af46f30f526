//! Starts cluster nodes for the commands in documents. Each document has its own cluster.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::common::Server;

/// The default value of the flag `--cluster-listen`.
const DOCUMENTED_CLUSTER_ADDRESS: &str = "127.0.0.1:7946";

/// Pause between two polls of the cluster status.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of polls: 30 seconds, far longer than nodes take to connect.
const MAX_POLLS: usize = 1_500;

/// The cluster nodes that one document starts. All of them use a loopback address that no other document uses.
pub struct NodeGroup {
    address: String,
    /// Addresses of the admin listeners of the started nodes.
    admin_addresses: Vec<SocketAddr>,
    /// Whether the server that the current command starts is a cluster node.
    is_node_starting: bool,
}

impl Default for NodeGroup {
    fn default() -> Self {
        static NEXT_LOOPBACK_ADDRESS_LAST_BYTE: AtomicU8 = AtomicU8::new(128);
        let (process, nth) =
            (std::process::id(), NEXT_LOOPBACK_ADDRESS_LAST_BYTE.fetch_add(1, Ordering::Relaxed));
        let address = format!("127.{}.{}.{nth}", (process >> 8) % 254 + 1, process % 254 + 1);
        Self { address, admin_addresses: Vec::new(), is_node_starting: false }
    }
}

impl NodeGroup {
    /// Replaces 127.0.0.1 with the address of this group in the cluster flags of a server. Does not change the flags if
    /// the server is not a cluster node.
    pub fn use_own_address(&mut self, flags: &mut Vec<String>) {
        self.is_node_starting = flags.iter().any(|flag| flag == "cluster://");
        if !self.is_node_starting {
            return;
        }
        if !flags.iter().any(|flag| flag == "--cluster-listen") {
            flags.extend(["--cluster-listen".to_owned(), DOCUMENTED_CLUSTER_ADDRESS.to_owned()]);
        }
        for index in 1..flags.len() {
            if ["--cluster-listen", "--cluster-seeds"].contains(&flags[index - 1].as_str()) {
                flags[index] = flags[index].replace("127.0.0.1", &self.address);
            }
        }
    }

    /// Waits until the new node and all earlier nodes are connected. Returns at once if the server is not a cluster
    /// node.
    pub fn wait_until_connected(&mut self, server: &Server) {
        if !self.is_node_starting {
            return;
        }
        self.admin_addresses.push(server.admin_address());
        let others = self.admin_addresses.len() - 1;
        let is_connected = |status: &Value| {
            status["members"].as_array().map_or(0, Vec::len) == others && status["joining"] == false
        };
        for _ in 0..MAX_POLLS {
            if self.admin_addresses.iter().all(|admin| is_connected(&get_cluster_status(*admin))) {
                return;
            }
            thread::sleep(POLL_INTERVAL);
        }
        panic!("the nodes did not connect: {}", get_cluster_status(server.admin_address()));
    }
}

fn get_cluster_status(admin: SocketAddr) -> Value {
    let url = format!("http://{admin}/v1/cluster");
    let text = ureq::get(&url).call().unwrap().body_mut().read_to_string().unwrap();
    serde_json::from_str(&text).unwrap()
}

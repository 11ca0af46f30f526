//! Nodes of a cluster that documents start.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::common::Server;

/// Where a node listens that does not say where.
const USUAL: &str = "127.0.0.1:7946";

/// Between two looks, and how many: half a minute, far more than it takes.
const PAUSE: Duration = Duration::from_millis(20);
const MAX_LOOKS: usize = 1_500;

/// The nodes of a document, on a loopback address that nobody else has.
pub struct Nodes {
    address: String,
    /// Where they are asked.
    started: Vec<SocketAddr>,
    /// Whether the server that starts now is one.
    starts: bool,
}

impl Default for Nodes {
    fn default() -> Self {
        static NEXT: AtomicU8 = AtomicU8::new(128);
        let (process, nth) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let address = format!("127.{}.{}.{nth}", (process >> 8) % 254 + 1, process % 254 + 1);
        Self { address, started: Vec::new(), starts: false }
    }
}

impl Nodes {
    /// Has a server that is a node listen there, and look for others there.
    pub fn at_own_address(&mut self, flags: &mut Vec<String>) {
        self.starts = flags.iter().any(|flag| flag == "cluster://");
        if !self.starts {
            return;
        }
        if !flags.iter().any(|flag| flag == "--cluster-listen") {
            flags.extend(["--cluster-listen".to_owned(), USUAL.to_owned()]);
        }
        for at in 1..flags.len() {
            if ["--cluster-listen", "--cluster-seeds"].contains(&flags[at - 1].as_str()) {
                flags[at] = flags[at].replace("127.0.0.1", &self.address);
            }
        }
    }

    /// Waits until a node that has just started and all that did before know each other.
    pub fn wait_for_others(&mut self, server: &Server) {
        if !self.starts {
            return;
        }
        self.started.push(server.admin());
        let others = self.started.len() - 1;
        let knows = |status: &Value| {
            status["members"].as_array().map_or(0, Vec::len) == others && status["joining"] == false
        };
        for _ in 0..MAX_LOOKS {
            if self.started.iter().all(|node| knows(&status(*node))) {
                return;
            }
            thread::sleep(PAUSE);
        }
        panic!("a node finds no others: {}", status(server.admin()));
    }
}

fn status(admin: SocketAddr) -> Value {
    let url = format!("http://{admin}/v1/cluster");
    let text = ureq::get(&url).call().unwrap().body_mut().read_to_string().unwrap();
    serde_json::from_str(&text).unwrap()
}

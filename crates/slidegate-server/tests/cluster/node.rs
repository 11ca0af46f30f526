//! Starts cluster nodes as server processes, sends requests to the nodes, and waits until the nodes reach a state.

use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use slidegate::{Algorithm, Limit};
use slidegate_cluster::bound::max_units_in_window;

use crate::common::Server;
use crate::http::client::Client;

/// The cluster key of all nodes in a test.
pub const CLUSTER_KEY: &str = "a key that only the nodes of tests know";

/// Pause between two polls of a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Number of polls before a wait fails: 40 seconds, far longer than any wait takes.
const MAX_POLLS: usize = 2_000;

/// Returns a loopback address that no other test uses, neither in this process nor in another test process.
pub fn unused_address() -> SocketAddr {
    static NEXT_LOOPBACK_ADDRESS_LAST_BYTE: AtomicU8 = AtomicU8::new(1);
    let nth = NEXT_LOOPBACK_ADDRESS_LAST_BYTE.fetch_add(1, Ordering::Relaxed);
    assert!(nth > 0, "no unused address is left");
    let process = std::process::id();
    let [second, third] = [process >> 8, process].map(|part| u8::try_from(part % 254 + 1).unwrap());
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, second, third, nth)), 7946)
}

/// The configuration of a node. A test can start the same node several times.
#[derive(Clone)]
pub struct NodeConfig {
    pub name: String,
    pub listen: SocketAddr,
    pub advertise: Option<SocketAddr>,
    pub seeds: String,
    /// The flags of the credentials, for example the cluster key.
    pub credentials: Vec<String>,
    pub policy: String,
    pub sync_wait: &'static str,
    pub sync_interval: &'static str,
}

/// Returns the configurations of `N` nodes, named `a`, `b` and so on. The seed list of each node contains all nodes.
pub fn node_configs<const N: usize>(policy: &str) -> [NodeConfig; N] {
    let mut configs = [(); N].map(|()| NodeConfig {
        name: String::new(),
        listen: unused_address(),
        advertise: None,
        seeds: String::new(),
        credentials: key_flags(CLUSTER_KEY),
        policy: policy.to_owned(),
        // Longer than the default, since other processes compete for the cores.
        sync_wait: "500ms",
        sync_interval: "50ms",
    });
    let seeds = configs.each_ref().map(|config| config.listen.to_string()).join(",");
    for (config, name) in configs.iter_mut().zip('a'..) {
        (config.name, config.seeds) = (name.to_string(), seeds.clone());
    }
    configs
}

/// Returns the flags of a node with this cluster key.
pub fn key_flags(key: &str) -> Vec<String> {
    vec!["--cluster-key".to_owned(), key.to_owned()]
}

impl NodeConfig {
    /// Starts the node, and waits until the node accepts requests.
    pub fn start(&self) -> Node {
        let (listen, advertise) =
            (self.listen.to_string(), self.advertise.map(|address| address.to_string()));
        let mut flags = vec![
            "--store",
            "cluster://",
            "--cluster-listen",
            &listen,
            "--cluster-seeds",
            &self.seeds,
        ];
        flags.extend(["--cluster-node-name", &self.name, "--cluster-sync-wait", self.sync_wait]);
        flags.extend(["--cluster-sync-interval", self.sync_interval]);
        flags.extend(self.credentials.iter().map(String::as_str));
        if let Some(advertise) = &advertise {
            flags.extend(["--cluster-advertise", advertise]);
        }
        Node::new(Server::start_with_admin(&self.policy, &flags))
    }
}

/// Starts the nodes and waits until all of them are connected.
///
/// The first node has only itself as a seed, so the node forms the cluster at once instead of searching for others.
pub fn start_nodes<const N: usize>(configs: &[NodeConfig; N]) -> [Node; N] {
    let own = configs[0].advertise.unwrap_or(configs[0].listen).to_string();
    let mut first = Some(NodeConfig { seeds: own, ..configs[0].clone() }.start());
    let nodes = configs.each_ref().map(|config| first.take().unwrap_or_else(|| config.start()));
    wait_until_connected(&nodes.each_ref());
    nodes
}

/// A server process that is a cluster node. The process is killed when the value is dropped.
pub struct Node {
    // The log of a server has a single reader, so `Server` is not `Sync`.
    server: Mutex<Server>,
    client: Client,
    admin: Client,
}

/// The outcome of a check request: whether the request was allowed, and the remaining units of the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckOutcome {
    pub allowed: bool,
    pub remaining: u64,
}

impl Node {
    pub fn new(server: Server) -> Self {
        let (client, admin) = (Client::new(&server), Client::with_address(server.admin_address()));
        Self { server: Mutex::new(server), client, admin }
    }

    /// Suspends the process. Returns when all of its threads have stopped.
    pub fn pause(&self) {
        self.server.lock().unwrap().pause();
    }

    /// Resumes the suspended process.
    pub fn resume(&self) {
        self.server.lock().unwrap().resume();
    }

    /// Sends a Unix signal, such as `TERM`, to the process.
    pub fn send_signal(&self, name: &str) {
        self.server.lock().unwrap().send_signal(name);
    }

    /// Returns the client of the node's HTTP listener.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Sends a check request in a domain that has a single rule. An allowed request charges one unit.
    pub fn check(&self, domain: &str) -> CheckOutcome {
        self.send_check_or_peek("/v1/check", domain)
    }

    /// Returns the remaining units of the single rule in a domain, according to the counters of this node. Charges
    /// nothing.
    pub fn remaining_units(&self, domain: &str) -> u64 {
        self.send_check_or_peek("/v1/peek", domain).remaining
    }

    fn send_check_or_peek(&self, path: &str, domain: &str) -> CheckOutcome {
        let request = json!({ "domain": domain, "attributes": { "client": "alice" } });
        let response = self.client.post(path, request.to_string()).json();
        assert_eq!(response["degraded"], false, "{response}");
        let remaining = response["limits"][0]["remaining"].as_u64().unwrap();
        CheckOutcome { allowed: response["allowed"] == true, remaining }
    }

    /// Sends at most `max_requests` check requests, stops at the first denial, and returns the number of allowed
    /// requests.
    pub fn count_allowed(&self, domain: &str, max_requests: u64) -> u64 {
        (0..max_requests).take_while(|_| self.check(domain).allowed).count() as u64
    }

    /// Returns the response body of `/v1/cluster`, the state of the cluster as this node sees it.
    pub fn cluster_status(&self) -> Value {
        let response = self.admin.call("GET", "/v1/cluster");
        assert_eq!(response.status, 200, "{}", response.body);
        response.json()
    }

    /// Returns the names of the peers that this node considers to be in a state, such as `alive`.
    pub fn members_in_state(&self, state: &str) -> Vec<String> {
        let status = self.cluster_status();
        let members = status["members"].as_array().unwrap();
        let matching = members.iter().filter(|member| member["state"] == state);
        matching.map(|member| member["name"].as_str().unwrap().to_owned()).collect()
    }

    /// Returns the sum of all series of the metric `name` whose label text contains `label`.
    pub fn metric_sum(&self, name: &str, label: &str) -> f64 {
        let text = self.admin.call("GET", "/metrics").body;
        let series = text.lines().filter(|line| line.starts_with(name) && line.contains(label));
        series.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
    }

    /// Returns the first log line of the start that contains `part`. If there is none, skips later lines until a line
    /// contains it.
    pub fn wait_for_log(&self, part: &str) -> String {
        let server = self.server.lock().unwrap();
        let early = server.startup_log().iter().find(|line| line.contains(part)).cloned();
        early.unwrap_or_else(|| server.wait_for_log(part))
    }

    /// Stops the node gracefully, and asserts that the process exits with code 0.
    pub fn stop_gracefully(self) {
        self.send_signal("TERM");
        assert_eq!(self.server.into_inner().unwrap().wait_for_exit_code(), Some(0));
    }
}

/// Calls `poll` until the returned value satisfies `condition`, and returns that value. After [`MAX_POLLS`] calls,
/// panics with a message that contains `description` and the last value.
#[track_caller]
pub fn wait_until<T: Debug>(
    description: &str,
    poll: impl Fn() -> T,
    condition: impl Fn(&T) -> bool,
) -> T {
    for _ in 0..MAX_POLLS {
        let value = poll();
        if condition(&value) {
            return value;
        }
        thread::sleep(POLL_INTERVAL);
    }
    panic!("timed out waiting until {description}; last value: {:#?}", poll());
}

/// Waits until each of these nodes reports exactly the other nodes as its peers, all of them alive.
#[track_caller]
pub fn wait_until_connected(nodes: &[&Node]) {
    let statuses = || nodes.iter().map(|node| node.cluster_status()).collect::<Vec<_>>();
    wait_until("the nodes are connected", statuses, |statuses| {
        statuses.iter().all(|status| {
            let members = status["members"].as_array().unwrap();
            status["joining"] == false
                && status["majority"] == true
                && members.len() == nodes.len() - 1
                && members.iter().all(|member| member["state"] == "alive")
        })
    });
}

/// Waits until all nodes report the number `remaining` of remaining units in the domain.
#[track_caller]
pub fn wait_for_remaining(nodes: &[&Node], domain: &str, remaining: u64) {
    let values = || nodes.iter().map(|node| node.remaining_units(domain)).collect::<Vec<_>>();
    wait_until(&format!("all nodes report {remaining} units"), values, |values| {
        values.iter().all(|value| *value == remaining)
    });
}

/// Returns the documented maximum number of units that a cluster allows in a one-hour window under a limit of `max`
/// units. `incarnations` is the number of node processes that ran in the window. A restarted node is a new process.
pub fn max_allowed_in_window(max: u64, incarnations: u64, max_unsynced: u64) -> u64 {
    let buckets = Algorithm::SlidingBuckets { precision: None };
    let limit = Limit::new(format!("{max}/h").parse().unwrap(), buckets).unwrap();
    max_units_in_window(&limit, incarnations, max_unsynced, 1)
}

/// Returns a policy with one rule that allows `max` units in any hour. A node allows no further units while its peers
/// have not acknowledged `max_unsynced` units that the node has allowed.
pub fn policy_with_max(max: u64, max_unsynced: u64) -> String {
    format!(
        "rules: [{{ name: shared, per: [client], algorithm: sliding_buckets, limits: [{max}/h], cluster: {{ max_unsynced: {max_unsynced} }} }}]"
    )
}

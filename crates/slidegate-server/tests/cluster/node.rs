//! Nodes: how they are started, what they are asked, and what to wait for.

use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use slidegate::{Algorithm, Limit};
use slidegate_cluster::bound::max_units_in_window;

use crate::client::Client;
use crate::common::Server;

/// What nodes of a test have in common, and nobody else.
pub const KEY: &str = "a key that only the nodes of tests know";

/// Between two looks at what is waited for, and how often to look: 40 seconds, far more than anything takes.
const PAUSE: Duration = Duration::from_millis(20);
const MAX_LOOKS: usize = 2_000;

/// A loopback address that no other test has, and no other process of tests.
pub fn address() -> SocketAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let nth = NEXT.fetch_add(1, Ordering::Relaxed);
    assert!(nth > 0, "so many addresses are not there");
    let process = std::process::id();
    let [second, third] = [process >> 8, process].map(|part| u8::try_from(part % 254 + 1).unwrap());
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, second, third, nth)), 7946)
}

/// What a node is told to be, each time that it starts.
#[derive(Clone)]
pub struct Plan {
    pub name: String,
    pub listen: SocketAddr,
    pub advertise: Option<SocketAddr>,
    pub seeds: String,
    pub key: &'static str,
    pub policy: String,
    pub sync_wait: &'static str,
    pub sync_interval: &'static str,
}

/// So many nodes, `a` and so on, all of which are seeds.
pub fn plans<const N: usize>(policy: &str) -> [Plan; N] {
    let mut plans = [(); N].map(|()| Plan {
        name: String::new(),
        listen: address(),
        advertise: None,
        seeds: String::new(),
        key: KEY,
        policy: policy.to_owned(),
        // Others than these processes want the cores, too.
        sync_wait: "500ms",
        sync_interval: "50ms",
    });
    let seeds = plans.each_ref().map(|plan| plan.listen.to_string()).join(",");
    for (plan, name) in plans.iter_mut().zip('a'..) {
        (plan.name, plan.seeds) = (name.to_string(), seeds.clone());
    }
    plans
}

impl Plan {
    /// Starts it, and waits until it is asked.
    pub fn start(&self) -> Node {
        let (listen, advertise) =
            (self.listen.to_string(), self.advertise.map(|at| at.to_string()));
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
        if !self.key.is_empty() {
            flags.extend(["--cluster-key", self.key]);
        }
        if let Some(advertise) = &advertise {
            flags.extend(["--cluster-advertise", advertise]);
        }
        Node::of(Server::start_with_admin(&self.policy, &flags))
    }
}

/// Starts them, and waits until they know each other. The first has itself for a seed, so that it knows to be the first,
/// and nobody waits for it to find that out.
pub fn start<const N: usize>(plans: &[Plan; N]) -> [Node; N] {
    let own = plans[0].advertise.unwrap_or(plans[0].listen).to_string();
    let mut first = Some(Plan { seeds: own, ..plans[0].clone() }.start());
    let nodes = plans.each_ref().map(|plan| first.take().unwrap_or_else(|| plan.start()));
    know_each_other(&nodes.each_ref());
    nodes
}

/// A server that is a node. It is killed when dropped.
pub struct Node {
    // Its log has one reader.
    server: Mutex<Server>,
    client: Client,
    admin: Client,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said {
    pub allowed: bool,
    pub remaining: u64,
}

impl Node {
    pub fn of(server: Server) -> Self {
        let (client, admin) = (Client::new(&server), Client::with_address(server.admin()));
        Self { server: Mutex::new(server), client, admin }
    }

    /// Sends a signal, such as `STOP`.
    pub fn signal(&self, name: &str) {
        self.server.lock().unwrap().signal(name);
    }

    /// One that decides for a domain, in which one rule applies.
    pub fn check(&self, domain: &str) -> Said {
        self.ask("/v1/check", domain)
    }

    /// What is left there, as far as this node knows.
    pub fn remaining(&self, domain: &str) -> u64 {
        self.ask("/v1/peek", domain).remaining
    }

    fn ask(&self, path: &str, domain: &str) -> Said {
        let ask = json!({ "domain": domain, "attributes": { "client": "alice" } });
        let answer = self.client.post(path, ask.to_string()).json();
        assert_eq!(answer["degraded"], false, "{answer}");
        let remaining = answer["limits"][0]["remaining"].as_u64().unwrap();
        Said { allowed: answer["allowed"] == true, remaining }
    }

    /// How often it allows until it denies, or so often.
    pub fn allows(&self, domain: &str, most: u64) -> u64 {
        (0..most).take_while(|_| self.check(domain).allowed).count() as u64
    }

    /// `/v1/cluster`.
    pub fn status(&self) -> Value {
        let answer = self.admin.call("GET", "/v1/cluster");
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()
    }

    /// The names of the others that stand so.
    pub fn others(&self, state: &str) -> Vec<String> {
        let status = self.status();
        let members = status["members"].as_array().unwrap();
        let such = members.iter().filter(|member| member["state"] == state);
        such.map(|member| member["name"].as_str().unwrap().to_owned()).collect()
    }

    /// The sum of a metric's series that have this in their labels.
    pub fn metric(&self, name: &str, label: &str) -> f64 {
        let text = self.admin.call("GET", "/metrics").body;
        let series = text.lines().filter(|line| line.starts_with(name) && line.contains(label));
        series.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
    }

    /// Has it stop as it is meant to be stopped.
    pub fn stop(self) {
        self.signal("TERM");
        assert_eq!(self.server.into_inner().unwrap().exit_code(), Some(0));
    }
}

/// Waits until this holds; what is shown if it never does.
#[track_caller]
pub fn wait_until<T: Debug>(what: &str, look: impl Fn() -> T, holds: impl Fn(&T) -> bool) -> T {
    for _ in 0..MAX_LOOKS {
        let seen = look();
        if holds(&seen) {
            return seen;
        }
        thread::sleep(PAUSE);
    }
    panic!("waited in vain: {what}; it is {:#?}", look());
}

/// Waits until each of them hears all others, and no others are waited for.
#[track_caller]
pub fn know_each_other(nodes: &[&Node]) {
    let statuses = || nodes.iter().map(|node| node.status()).collect::<Vec<_>>();
    wait_until("they know each other", statuses, |statuses| {
        statuses.iter().all(|status| {
            let members = status["members"].as_array().unwrap();
            status["joining"] == false
                && status["majority"] == true
                && members.len() == nodes.len() - 1
                && members.iter().all(|member| member["state"] == "alive")
        })
    });
}

/// Waits until all say that so many units are left.
#[track_caller]
pub fn agree_on(nodes: &[&Node], domain: &str, remaining: u64) {
    let left = || nodes.iter().map(|node| node.remaining(domain)).collect::<Vec<_>>();
    wait_until(&format!("all say {remaining}"), left, |left| {
        left.iter().all(|left| *left == remaining)
    });
}

/// The most that so many incarnations may let pass within a window, by the documented bound.
pub fn bound(max: u64, incarnations: u64, max_unsynced: u64) -> u64 {
    let buckets = Algorithm::SlidingBuckets { precision: None };
    let limit = Limit::new(format!("{max}/h").parse().unwrap(), buckets).unwrap();
    max_units_in_window(&limit, incarnations, max_unsynced, 1)
}

/// A rule that never lets more than max pass in an hour, but for what nodes do not know of each other: of those that
/// wait for silent nodes.
pub fn rule(max: u64, max_unsynced: u64) -> String {
    format!(
        "rules: [{{ name: shared, per: [client], algorithm: sliding_buckets, limits: [{max}/h], cluster: {{ max_unsynced: {max_unsynced} }} }}]"
    )
}

//! A cluster: three masters, and a replica for each.

use redis::RedisResult;
use slidegate::{SystemClock, Timestamp};

use super::node::{Node, field};
use super::{Folder, free_port, wait_until};

pub const SHARDS: usize = 3;
const NODES: usize = 2 * SHARDS;
const SLOTS: u16 = 16_384;

pub struct Cluster {
    /// At first the masters of the shards, and then their replicas.
    pub nodes: Vec<Node>,
    ids: Vec<String>,
    _folder: Folder,
}

/// The master and the replica of a shard, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    pub master: usize,
    pub replica: usize,
}

impl Cluster {
    pub fn start() -> Self {
        let folder = Folder::new();
        let nodes: Vec<Node> = (0..NODES).map(|nth| node(&folder, nth)).collect();
        let id = |node: &Node| node.try_command(&["CLUSTER", "MYID"]).unwrap();
        let ids = nodes.iter().map(id).collect();
        let cluster = Self { nodes, ids, _folder: folder };
        cluster.assign_slots();
        cluster.connect_nodes();
        cluster.wait_until_settled();
        cluster
    }

    /// Each master gets its part of the slots.
    fn assign_slots(&self) {
        for (nth, node) in self.nodes.iter().enumerate() {
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(nth + 1).to_string()]);
        }
        for (nth, node) in self.nodes[..SHARDS].iter().enumerate() {
            let begin = |nth: usize| nth * usize::from(SLOTS) / SHARDS;
            let (first, last) = (begin(nth).to_string(), (begin(nth + 1) - 1).to_string());
            node.command(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
        }
    }

    /// Each meets all others at once, and the replicas begin to copy.
    fn connect_nodes(&self) {
        for (nth, node) in self.nodes.iter().enumerate() {
            for other in &self.nodes[..nth] {
                let bus: Vec<String> =
                    other.try_command(&["CONFIG", "GET", "cluster-port"]).unwrap();
                let port = other.port().to_string();
                node.command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus[1]]);
            }
        }
        for nth in SHARDS..NODES {
            let replicate = ["CLUSTER", "REPLICATE", &self.ids[nth - SHARDS]];
            wait_until("it knows its master", || {
                self.nodes[nth].try_command::<()>(&replicate).is_ok()
            });
        }
    }

    /// Waits until everybody knows everybody, all is well, and the replicas are in sync.
    pub fn wait_until_settled(&self) {
        for nth in 0..NODES {
            wait_until("a node knows everybody", || self.is_settled(nth).is_ok_and(|is| is));
        }
    }

    fn is_settled(&self, nth: usize) -> RedisResult<bool> {
        let node = &self.nodes[nth];
        let known: String = node.try_command(&["CLUSTER", "NODES"])?;
        let with =
            |flag: &str| known.lines().filter(|line| flags(line).any(|is| is == flag)).count();
        let is_bad = |line: &str| {
            flags(line).any(|flag| ["fail", "fail?", "handshake", "noaddr"].contains(&flag))
                || !line.contains(" connected")
        };
        let is_complete = known.lines().count() == NODES && !known.lines().any(is_bad);
        let has_roles = with("master") == SHARDS && with("slave") == SHARDS;
        // Who has just become a replica may still be known as that of whom it copied before.
        let part = |line: &str, nth: usize| line.split(' ').nth(nth).map(str::to_owned);
        let masters = known.lines().filter(|line| flags(line).any(|is| is == "master"));
        let mut masters = masters.filter_map(|line| part(line, 0));
        let has_replica =
            |id: &String| known.lines().any(|line| part(line, 3).as_ref() == Some(id));
        let has_roles = has_roles && masters.all(|id| has_replica(&id));
        let copies = node.is_master() || node.is_in_sync();
        Ok(is_complete && has_roles && copies && self.is_ok(nth)?)
    }

    /// Whether a node says that the cluster is well.
    pub fn is_ok(&self, nth: usize) -> RedisResult<bool> {
        let info: String = self.nodes[nth].try_command(&["CLUSTER", "INFO"])?;
        Ok(field(&info, "cluster_state") == Some("ok"))
    }

    /// Where a store finds it: these nodes.
    pub fn address_of(&self, nodes: &[usize]) -> String {
        let ports = nodes.iter().map(|&nth| format!("127.0.0.1:{}", self.nodes[nth].port()));
        format!("redis+cluster://{}", ports.collect::<Vec<_>>().join(","))
    }

    /// Where a store finds it: all nodes.
    pub fn address(&self) -> String {
        self.address_of(&(0..NODES).collect::<Vec<_>>())
    }

    /// The slot of a key, as this node counts.
    pub fn slot_of(&self, key: &str) -> u16 {
        self.nodes[0].try_command(&["CLUSTER", "KEYSLOT", key]).unwrap()
    }

    /// Who has a slot, while nobody is away.
    pub fn shard_of(&self, slot: u16) -> Shard {
        let known: String = self.nodes[0].try_command(&["CLUSTER", "NODES"]).unwrap();
        let has = |line: &&str| line.split(' ').skip(8).any(|range| is_in(range, slot));
        let id = known.lines().find(has).and_then(|line| line.split(' ').next()).unwrap();
        let copies = |line: &&str| line.split(' ').nth(3) == Some(id);
        let replica = known.lines().find(copies).and_then(|line| line.split(' ').next()).unwrap();
        let nth = |id: &str| self.ids.iter().position(|other| other == id).unwrap();
        Shard { master: nth(id), replica: nth(replica) }
    }

    /// All shards, while nobody is away.
    pub fn shards(&self) -> Vec<Shard> {
        let middle = |nth: usize| (2 * nth + 1) * usize::from(SLOTS) / NODES;
        (0..SHARDS).map(|nth| self.shard_of(middle(nth) as u16)).collect()
    }

    /// Has a replica take its master's place, once it has done all that the master did.
    pub fn request_failover(&self, replica: usize) {
        self.nodes[replica].command(&["CLUSTER", "FAILOVER"]);
    }

    /// Waits until a node is a master and says that all is well: the moment of that.
    pub fn wait_until_promoted(&self, nth: usize, clock: &SystemClock) -> Timestamp {
        let promoted_at = self.nodes[nth].wait_until_promoted(clock);
        let mut waited = false;
        wait_until("the cluster is well", || {
            let is_ok = self.is_ok(nth).is_ok_and(|is| is);
            waited |= !is_ok;
            is_ok
        });
        match waited {
            true => slidegate::Clock::now(clock),
            false => promoted_at,
        }
    }

    /// From now on a slot is on its way from a master to another, but none of its keys.
    pub fn begin_slot_migration(&self, slot: u16, from: usize, to: usize) {
        let (slot, ids) = (slot.to_string(), &self.ids);
        self.nodes[to].command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &ids[from]]);
        self.nodes[from].command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &ids[to]]);
    }

    /// Moves so many keys of a slot that is on its way. How many there were.
    pub fn move_keys(&self, slot: u16, from: usize, to: usize, max_keys: usize) -> usize {
        let (slot, max_keys) = (slot.to_string(), max_keys.to_string());
        let keys = ["CLUSTER", "GETKEYSINSLOT", &slot, &max_keys];
        let keys: Vec<String> = self.nodes[from].try_command(&keys).unwrap();
        if !keys.is_empty() {
            let port = self.nodes[to].port().to_string();
            let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            words.extend(keys.iter().map(String::as_str));
            self.nodes[from].command(&words);
        }
        keys.len()
    }

    /// Moves what keys are left, and from now on the slot is the other's. All know it soon.
    pub fn end_slot_migration(&self, slot: u16, from: usize, to: usize) {
        while self.move_keys(slot, from, to, 10) > 0 {}
        let name = slot.to_string();
        let node = ["CLUSTER", "SETSLOT", &name, "NODE", &self.ids[to]];
        // First who gets it: a moment at which nobody would want it could not be told from one at which all
        // is settled.
        self.nodes[to].command(&node);
        self.nodes[from].command(&node);
    }
}

fn node(folder: &Folder, nth: usize) -> Node {
    Node::start(folder, &nth.to_string(), || {
        let bus = free_port().to_string();
        let args = [
            ["--cluster-enabled", "yes"],
            ["--cluster-port", &bus],
            ["--cluster-node-timeout", "1000"],
            // Who has lost a shard shall not lose all.
            ["--cluster-require-full-coverage", "no"],
            ["--cluster-allow-replica-migration", "no"],
        ];
        args.concat().into_iter().map(str::to_owned).collect()
    })
}

/// The flags in a line of `CLUSTER NODES`.
fn flags(line: &str) -> impl Iterator<Item = &str> {
    line.split(' ').nth(2).unwrap_or_default().split(',')
}

/// Whether a slot is in `1-2` or is `1`.
fn is_in(range: &str, slot: u16) -> bool {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    match (first.parse::<u16>(), last.parse::<u16>()) {
        (Ok(first), Ok(last)) => (first..=last).contains(&slot),
        _ => false,
    }
}

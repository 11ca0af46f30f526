//! A Redis Cluster for tests: three masters with one replica each.

use redis::RedisResult;
use slidegate::Timestamp;
use slidegate::clock::SystemClock;

use super::node::{Node, field};
use super::{Folder, free_port, wait_until};

pub const SHARDS: usize = 3;
const CLUSTER_NODE_COUNT: usize = 2 * SHARDS;
const CLUSTER_SLOT_COUNT: u16 = 16_384;

pub struct Cluster {
    /// The nodes: first the initial masters of the shards, then one replica for each.
    pub nodes: Vec<Node>,
    ids: Vec<String>,
    _folder: Folder,
}

/// The indexes of the master and the replica of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    pub master: usize,
    pub replica: usize,
}

impl Cluster {
    pub fn start() -> Self {
        let folder = Folder::new();
        let nodes: Vec<Node> =
            (0..CLUSTER_NODE_COUNT).map(|nth| start_cluster_node(&folder, nth)).collect();
        let id = |node: &Node| node.try_command(&["CLUSTER", "MYID"]).unwrap();
        let ids = nodes.iter().map(id).collect();
        let cluster = Self { nodes, ids, _folder: folder };
        cluster.assign_slots();
        cluster.connect_nodes();
        cluster.wait_until_settled();
        cluster
    }

    /// Assigns each master its part of the slots.
    fn assign_slots(&self) {
        for (nth, node) in self.nodes.iter().enumerate() {
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(nth + 1).to_string()]);
        }
        for (nth, node) in self.nodes[..SHARDS].iter().enumerate() {
            let begin = |nth: usize| nth * usize::from(CLUSTER_SLOT_COUNT) / SHARDS;
            let (first, last) = (begin(nth).to_string(), (begin(nth + 1) - 1).to_string());
            node.command(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
        }
    }

    /// Connects all nodes to each other, and the replicas to their masters.
    fn connect_nodes(&self) {
        for (nth, node) in self.nodes.iter().enumerate() {
            for other in &self.nodes[..nth] {
                let bus: Vec<String> =
                    other.try_command(&["CONFIG", "GET", "cluster-port"]).unwrap();
                let port = other.port().to_string();
                node.command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus[1]]);
            }
        }
        for nth in SHARDS..CLUSTER_NODE_COUNT {
            let replicate = ["CLUSTER", "REPLICATE", &self.ids[nth - SHARDS]];
            wait_until("a replica knows its master", || {
                self.nodes[nth].try_command::<()>(&replicate).is_ok()
            });
        }
    }

    /// Waits until all nodes know each other, the Cluster is healthy, and the replicas are in sync.
    pub fn wait_until_settled(&self) {
        for nth in 0..CLUSTER_NODE_COUNT {
            wait_until("a node knows all others", || {
                self.is_node_settled(nth).is_ok_and(|is_ok| is_ok)
            });
        }
    }

    fn is_node_settled(&self, nth: usize) -> RedisResult<bool> {
        let node = &self.nodes[nth];
        let known: String = node.try_command(&["CLUSTER", "NODES"])?;
        let with = |flag: &str| {
            known.lines().filter(|line| parse_node_flags(line).any(|other| other == flag)).count()
        };
        let is_bad = |line: &str| {
            parse_node_flags(line)
                .any(|flag| ["fail", "fail?", "handshake", "noaddr"].contains(&flag))
                || !line.contains(" connected")
        };
        let is_complete = known.lines().count() == CLUSTER_NODE_COUNT && !known.lines().any(is_bad);
        let has_roles = with("master") == SHARDS && with("slave") == SHARDS;
        // A new replica may still be known as the replica of its former master.
        let part = |line: &str, nth: usize| line.split(' ').nth(nth).map(str::to_owned);
        let masters =
            known.lines().filter(|line| parse_node_flags(line).any(|flag| flag == "master"));
        let mut masters = masters.filter_map(|line| part(line, 0));
        let has_replica =
            |id: &String| known.lines().any(|line| part(line, 3).as_ref() == Some(id));
        let has_roles = has_roles && masters.all(|id| has_replica(&id));
        let copies = node.is_master() || node.is_in_sync();
        Ok(is_complete && has_roles && copies && self.is_ok(nth)?)
    }

    /// Returns `true` if a node considers the Cluster healthy.
    pub fn is_ok(&self, nth: usize) -> RedisResult<bool> {
        let info: String = self.nodes[nth].try_command(&["CLUSTER", "INFO"])?;
        Ok(field(&info, "cluster_state") == Some("ok"))
    }

    /// Returns a Cluster address that lists the nodes with these indexes.
    pub fn address_of(&self, nodes: &[usize]) -> String {
        let ports = nodes.iter().map(|&nth| format!("127.0.0.1:{}", self.nodes[nth].port()));
        format!("redis+cluster://{}", ports.collect::<Vec<_>>().join(","))
    }

    /// Returns a Cluster address that lists all nodes.
    pub fn address(&self) -> String {
        self.address_of(&(0..CLUSTER_NODE_COUNT).collect::<Vec<_>>())
    }

    /// Returns the slot of a key, as computed by a node.
    pub fn slot_of(&self, key: &str) -> u16 {
        self.nodes[0].try_command(&["CLUSTER", "KEYSLOT", key]).unwrap()
    }

    /// Returns the shard that owns a slot. All nodes must be running.
    pub fn shard_of(&self, slot: u16) -> Shard {
        let known: String = self.nodes[0].try_command(&["CLUSTER", "NODES"]).unwrap();
        let has = |line: &&str| line.split(' ').skip(8).any(|range| is_slot_in_range(range, slot));
        let id = known.lines().find(has).and_then(|line| line.split(' ').next()).unwrap();
        let copies = |line: &&str| line.split(' ').nth(3) == Some(id);
        let replica = known.lines().find(copies).and_then(|line| line.split(' ').next()).unwrap();
        let nth = |id: &str| self.ids.iter().position(|other| other == id).unwrap();
        Shard { master: nth(id), replica: nth(replica) }
    }

    /// Returns all shards. All nodes must be running.
    pub fn shards(&self) -> Vec<Shard> {
        let middle =
            |nth: usize| (2 * nth + 1) * usize::from(CLUSTER_SLOT_COUNT) / CLUSTER_NODE_COUNT;
        (0..SHARDS).map(|nth| self.shard_of(middle(nth) as u16)).collect()
    }

    /// Requests a failover to a replica. The replica becomes the master once it has applied all writes of its master.
    pub fn request_failover(&self, replica: usize) {
        self.nodes[replica].command(&["CLUSTER", "FAILOVER"]);
    }

    /// Waits until a node is a master and considers the Cluster healthy. Returns the time of the first check that finds
    /// this.
    pub fn wait_until_promoted(&self, nth: usize, clock: &SystemClock) -> Timestamp {
        let promoted_at = self.nodes[nth].wait_until_promoted(clock);
        let mut waited = false;
        wait_until("the cluster is well", || {
            let is_ok = self.is_ok(nth).is_ok_and(|is_ok| is_ok);
            waited |= !is_ok;
            is_ok
        });
        if waited { slidegate::clock::Clock::now(clock) } else { promoted_at }
    }

    /// Starts the migration of a slot between masters, without moving keys.
    pub fn begin_slot_migration(&self, slot: u16, from: usize, to: usize) {
        let (slot, ids) = (slot.to_string(), &self.ids);
        self.nodes[to].command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &ids[from]]);
        self.nodes[from].command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &ids[to]]);
    }

    /// Moves up to `max_keys` keys of a slot that is being migrated. Returns their number.
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

    /// Moves the remaining keys and assigns the slot to the new master. The other nodes learn about the new master a
    /// little later.
    pub fn end_slot_migration(&self, slot: u16, from: usize, to: usize) {
        while self.move_keys(slot, from, to, 10) > 0 {}
        let name = slot.to_string();
        let node = ["CLUSTER", "SETSLOT", &name, "NODE", &self.ids[to]];
        // The new master first: otherwise no node would own the slot for a moment, which looks like a settled state.
        self.nodes[to].command(&node);
        self.nodes[from].command(&node);
    }
}

fn start_cluster_node(folder: &Folder, nth: usize) -> Node {
    Node::start(folder, &nth.to_string(), || {
        let bus = free_port().to_string();
        let args = [
            ["--cluster-enabled", "yes"],
            ["--cluster-port", &bus],
            ["--cluster-node-timeout", "1000"],
            // The loss of one shard must not stop the others.
            ["--cluster-require-full-coverage", "no"],
            ["--cluster-allow-replica-migration", "no"],
        ];
        args.concat().into_iter().map(str::to_owned).collect()
    })
}

/// Returns the flags in a line of `CLUSTER NODES`.
fn parse_node_flags(line: &str) -> impl Iterator<Item = &str> {
    line.split(' ').nth(2).unwrap_or_default().split(',')
}

/// Returns `true` if a slot is in a range such as `1-2` or `1`.
fn is_slot_in_range(range: &str, slot: u16) -> bool {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    match (first.parse::<u16>(), last.parse::<u16>()) {
        (Ok(first), Ok(last)) => (first..=last).contains(&slot),
        _ => false,
    }
}

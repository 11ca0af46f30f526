//! A Sentinel service for tests: one master, one replica, three Sentinels.

use std::collections::HashMap;

use super::node::Node;
use super::{Folder, Redis, wait_until};

/// The name of the Sentinel service.
pub const NAME: &str = "service";

/// Normal intervals of the Sentinels in milliseconds. While a test waits for the Sentinels to become ready, the short
/// intervals apply instead.
const DEFAULT_SENTINEL_PERIOD_ARGS: [&str; 4] = ["info-period", "10000", "publish-period", "2000"];
const SHORT_SENTINEL_PERIOD_ARGS: [&str; 4] = ["info-period", "100", "publish-period", "100"];

pub struct Service {
    nodes: [Node; 2],
    /// The index of the master in `nodes`.
    master: usize,
    pub sentinels: Vec<Redis>,
    _folder: Folder,
}

impl Service {
    /// Starts a service and waits until it is ready for a failover.
    pub fn start() -> Self {
        let folder = Folder::new();
        let master = Node::start(&folder, "0", Vec::new);
        let replica_of =
            ["--replicaof", "127.0.0.1", &master.port().to_string()].map(str::to_owned);
        let replica = Node::start(&folder, "1", || replica_of.to_vec());
        let sentinels = (0..3).map(|nth| start_sentinel(&folder, nth, master.port())).collect();
        let service = Self { nodes: [master, replica], master: 0, sentinels, _folder: folder };
        service.wait_until_settled();
        service
    }

    /// Returns the address of the service, with all Sentinels.
    pub fn address(&self) -> String {
        let ports = self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port()));
        format!("redis+sentinel://{}/{NAME}", ports.collect::<Vec<_>>().join(","))
    }

    /// Returns the server that was the master at the last call of [`swap_roles`](Self::swap_roles), or at the start.
    pub fn master(&self) -> &Node {
        &self.nodes[self.master]
    }

    pub fn master_mut(&mut self) -> &mut Node {
        &mut self.nodes[self.master]
    }

    pub fn replica(&self) -> &Node {
        &self.nodes[1 - self.master]
    }

    /// Returns mutable references to the master and the replica.
    pub fn both_mut(&mut self) -> (&mut Node, &mut Node) {
        let [first, second] = &mut self.nodes;
        match self.master {
            0 => (first, second),
            _ => (second, first),
        }
    }

    /// Requests a failover while the master still works.
    pub fn request_failover(&self) {
        // The Sentinel may still be busy with an earlier failover.
        wait_until("a Sentinel fails over", || {
            self.sentinels[0].try_command::<()>(&["SENTINEL", "FAILOVER", NAME]).is_ok()
        });
    }

    /// Swaps the roles of master and replica in this fixture after a failover. Waits until all Sentinels know the new
    /// master and the new replica is in sync.
    pub fn swap_roles(&mut self) {
        self.master = 1 - self.master;
        for sentinel in &self.sentinels {
            // With the default intervals: an uninformed Sentinel would make the new master a replica again.
            wait_until("a Sentinel knows the new master", || {
                master_named_by(sentinel) == Some(self.master().port())
            });
        }
        self.wait_until_settled();
    }

    /// Waits until the replica is in sync and all Sentinels know each other and both servers.
    pub fn wait_until_settled(&self) {
        self.set_sentinel_periods(&SHORT_SENTINEL_PERIOD_ARGS);
        wait_until("the replica is in sync", || self.replica().is_in_sync());
        for sentinel in &self.sentinels {
            wait_until("a Sentinel knows all others", || {
                self.check_sentinel_knows_all_servers(sentinel).is_some()
            });
        }
        self.set_sentinel_periods(&DEFAULT_SENTINEL_PERIOD_ARGS);
    }

    /// Returns `Some` if a Sentinel knows the master, the replica and the other Sentinels, and considers all healthy.
    fn check_sentinel_knows_all_servers(&self, sentinel: &Redis) -> Option<()> {
        type SentinelResponseFields = HashMap<String, String>;
        let holds = |instance: &SentinelResponseFields, wanted: &[(&str, &str)]| {
            let is =
                |&(name, value): &(&str, &str)| instance.get(name).is_some_and(|is| is == value);
            wanted.iter().all(is).then_some(())
        };
        let ports = [self.master(), self.replica()].map(|node| node.port().to_string());
        let master: SentinelResponseFields =
            sentinel.try_command(&["SENTINEL", "MASTER", NAME]).ok()?;
        let wanted = [("port", &*ports[0]), ("flags", "master"), ("num-slaves", "1")];
        holds(&master, &wanted)?;
        holds(&master, &[("num-other-sentinels", "2")])?;
        let others: Vec<SentinelResponseFields> =
            sentinel.try_command(&["SENTINEL", "SENTINELS", NAME]).ok()?;
        others.iter().try_for_each(|other| holds(other, &[("flags", "sentinel")]))?;
        let replicas: Vec<SentinelResponseFields> =
            sentinel.try_command(&["SENTINEL", "REPLICAS", NAME]).ok()?;
        let wanted = [("port", &*ports[1]), ("flags", "slave"), ("master-port", &*ports[0])];
        holds(replicas.first()?, &wanted)?;
        holds(replicas.first()?, &[("master-link-status", "ok")])
    }

    fn set_sentinel_periods(&self, context: &[&str]) {
        for sentinel in &self.sentinels {
            sentinel.command(&[&["SENTINEL", "DEBUG"], context].concat());
        }
    }
}

/// Returns the port of the master that a Sentinel names, or `None` if the query fails.
pub fn master_named_by(sentinel: &Redis) -> Option<u16> {
    let address = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME];
    let (_, port): (String, u16) = sentinel.try_command(&address).ok()?;
    Some(port)
}

fn start_sentinel(folder: &Folder, nth: usize, master: u16) -> Redis {
    let name = folder.file(&format!("sentinel-{nth}.conf"));
    let config = format!(
        "sentinel monitor {NAME} 127.0.0.1 {master} 2
        sentinel down-after-milliseconds {NAME} 500
        sentinel failover-timeout {NAME} 2000"
    );
    std::fs::write(&name, config).unwrap();
    let sentinel = Redis::with_config(Some(name.as_ref()), || vec!["--sentinel".to_owned()]);
    // With the default, a Sentinel that is delayed for two seconds would do nothing for half a minute.
    sentinel.command(&["SENTINEL", "DEBUG", "tilt-trigger", "20000"]);
    sentinel
}

//! A Redis Cluster: which server is asked for which slot.
//!
//! `redis` has a client for clusters. It is not used, because it sends a command again whose answer was lost,
//! which charges twice, and because it does not tell which node a command goes to: each node has a breaker of
//! its own here, so that the loss of one leaves the others as they are.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use redis::{AsyncConnectionConfig, Client, ConnectionInfo, RedisResult, Value};
use slidegate::StoreError;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::address::host_and_port;
use crate::connect::{Trust, at_address};
use crate::failure::Failure;
use crate::server::{Manner, Server};

/// Hash slots of a Cluster.
const SLOTS: usize = 16_384;

/// The map is read anew so often though nobody has found it wrong.
const CALM: Duration = Duration::from_secs(30);

/// And so often while something is wrong.
const TROUBLED: Duration = Duration::from_millis(200);

/// And never sooner than this after it was read.
const SOONEST: Duration = Duration::from_millis(20);

/// How long to wait for one node to tell the map.
const TELLING: Duration = Duration::from_millis(500);

/// The hash slot of a key, by the part in its first braces, if there is one.
/// (Redis Cluster specification, "Hash tags".)
pub fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    crc16::State::<crc16::XMODEM>::calculate(hashed.as_bytes()) % SLOTS as u16
}

/// The masters of a Cluster.
pub struct Cluster {
    nodes: Arc<Nodes>,
    /// Whether anybody has told the map yet; none: nobody has been asked in vain either.
    is_drawn: watch::Receiver<Option<bool>>,
    keeper: JoinHandle<()>,
}

struct Nodes {
    seeds: Vec<ConnectionInfo>,
    trust: Trust,
    manner: Manner,
    map: ArcSwap<Map>,
    /// Those that are connected to, by address.
    open: Mutex<HashMap<String, Arc<Server>>>,
    /// Somebody has found the map wrong.
    wrong: Notify,
}

/// Which server has which slot.
struct Map {
    masters: Vec<Arc<Server>>,
    /// For each slot the place of its master; beyond them, if it has none.
    places: Vec<u16>,
}

impl Map {
    fn master(&self, slot: u16) -> Option<&Arc<Server>> {
        let place = *self.places.get(usize::from(slot))?;
        self.masters.get(usize::from(place))
    }
}

/// Slots from the first to the last, and the address of their master.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Range {
    first: u16,
    last: u16,
    master: String,
}

impl Cluster {
    /// Begins to look for the masters. Within a tokio runtime.
    pub fn open(seeds: Vec<ConnectionInfo>, trust: Trust, manner: Manner) -> RedisResult<Self> {
        for seed in &seeds {
            trust.one(seed)?;
        }
        let map = ArcSwap::from_pointee(Map { masters: Vec::new(), places: vec![0; SLOTS] });
        let (open, wrong) = (Mutex::default(), Notify::new());
        let nodes = Arc::new(Nodes { seeds, trust, manner, map, open, wrong });
        let (drawn, is_drawn) = watch::channel(None);
        let keeper = tokio::spawn(keep(nodes.clone(), drawn));
        Ok(Self { nodes, is_drawn, keeper })
    }

    /// Who has a slot. Waits for the first map, but not for those who did not tell it when they were asked.
    pub async fn master(&self, slot: u16, until: Instant) -> Result<Arc<Server>, Failure> {
        let unavailable = |what: String| Failure::Down(StoreError::Unavailable(what));
        if *self.is_drawn.borrow() != Some(true) {
            let mut is_drawn = self.is_drawn.clone();
            let drawn = timeout_at(until, is_drawn.wait_for(Option::is_some)).await;
            if !matches!(drawn, Ok(Ok(drawn)) if *drawn == Some(true)) {
                let text = "no node of the Cluster has told yet who has which slots";
                return Err(unavailable(text.to_owned()));
            }
        }
        let map = self.nodes.map.load();
        map.master(slot).cloned().ok_or_else(|| {
            self.is_wrong();
            unavailable(format!("no node of the Cluster has slot {slot}"))
        })
    }

    /// Whom a node has named, by `host:port`, or `:port` at its own host.
    pub fn named_by(&self, server: &Server, address: &str) -> Result<Arc<Server>, Failure> {
        let named = match (address.strip_prefix(':'), server.address().rsplit_once(':')) {
            (Some(port), Some((host, _))) => format!("{host}:{port}"),
            _ => address.to_owned(),
        };
        self.nodes.at(&named).ok_or_else(|| {
            Failure::Down(StoreError::Unavailable(format!("`{named}` is no address of a node")))
        })
    }

    /// The map turned out to be wrong, or somebody of it does not answer.
    pub fn is_wrong(&self) {
        self.nodes.wrong.notify_one();
    }

    /// Whether no master is asked: all have failed of late, or none is known.
    pub fn is_breaker_open(&self) -> bool {
        self.nodes.map.load().masters.iter().all(|master| master.is_breaker_open())
    }

    /// Returns whether any master has been reached and its breaker allows a call.
    pub fn answers(&self) -> bool {
        self.nodes.map.load().masters.iter().any(|master| master.answers())
    }

    /// Whether who has a slot is not asked.
    pub fn is_open_at(&self, slot: u16) -> bool {
        self.nodes.map.load().master(slot).is_none_or(|master| master.is_breaker_open())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

/// Reads the map again and again.
async fn keep(nodes: Arc<Nodes>, drawn: watch::Sender<Option<bool>>) {
    loop {
        let is_read = nodes.read_map().await;
        let before = *drawn.borrow();
        match (before, is_read) {
            (None, false) => {
                tracing::warn!(
                    "Redis: not asked, since no node of the Cluster tells who has which slots"
                );
                drawn.send_replace(Some(false));
            }
            (None | Some(false), true) => {
                if before.is_some() {
                    tracing::info!(
                        "Redis: asked, since a node of the Cluster tells who has which slots"
                    );
                }
                drawn.send_replace(Some(true));
            }
            // Each master has a breaker.
            (Some(_), _) => {}
        }
        sleep(SOONEST).await;
        let masters = nodes.map.load_full();
        let is_well = is_read && !masters.masters.iter().any(|master| master.is_breaker_open());
        let pause = if is_well { CALM } else { TROUBLED };
        let _ = timeout(pause, nodes.wrong.notified()).await;
    }
}

impl Nodes {
    /// Asks one after another, the masters that are known first, in any order; whether one has told.
    async fn read_map(&self) -> bool {
        let mut known: Vec<String> = self.open.lock().keys().cloned().collect();
        fastrand::shuffle(&mut known);
        let known = known.iter().filter_map(|address| self.info(address));
        for info in known.chain(self.seeds.iter().cloned()).collect::<Vec<_>>() {
            match timeout(TELLING, self.ranges_from(&info)).await {
                Ok(Ok(ranges)) if !ranges.is_empty() => {
                    self.draw(&ranges);
                    return true;
                }
                Ok(Ok(_)) => tracing::debug!("a node of the Cluster knows of no slots"),
                Ok(Err(error)) => tracing::debug!(%error, "a node of the Cluster tells no slots"),
                Err(_) => tracing::debug!("a node of the Cluster does not answer"),
            }
        }
        false
    }

    async fn ranges_from(&self, info: &ConnectionInfo) -> RedisResult<Vec<Range>> {
        let client: Client = self.trust.client(info)?;
        let config = AsyncConnectionConfig::new().set_connection_timeout(Some(TELLING));
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let told: Value = redis::cmd("CLUSTER").arg("SLOTS").query_async(&mut connection).await?;
        Ok(ranges(&told, &host_and_port(info.addr())))
    }

    /// Draws the map anew.
    fn draw(&self, ranges: &[Range]) {
        let mut addresses: Vec<&str> = Vec::new();
        let (mut masters, mut places) = (Vec::new(), vec![u16::MAX; SLOTS]);
        for range in ranges {
            let place = addresses.iter().position(|address| *address == range.master);
            let place = place.or_else(|| {
                masters.push(self.at(&range.master)?);
                addresses.push(&range.master);
                Some(addresses.len() - 1)
            });
            let Some(place) = place else { continue };
            if let Some(part) = places.get_mut(range.first.into()..=range.last.into()) {
                part.fill(place as u16);
            }
        }
        // Who is no master any more is let go when its last call has ended.
        self.open.lock().retain(|address, _| addresses.contains(&address.as_str()));
        self.map.store(Arc::new(Map { masters, places }));
    }

    /// The server at an address, connected to if it is not yet.
    fn at(&self, address: &str) -> Option<Arc<Server>> {
        let mut open = self.open.lock();
        if let Some(server) = open.get(address) {
            return Some(server.clone());
        }
        let source = self.trust.one(&self.info(address)?).ok()?;
        let server = Arc::new(Server::open(address, source, self.manner.clone()));
        open.insert(address.to_owned(), server.clone());
        Some(server)
    }

    /// How to connect to an address: as to those that were named.
    fn info(&self, address: &str) -> Option<ConnectionInfo> {
        at_address(self.seeds.first()?, address)
    }
}

/// What CLUSTER SLOTS has told: lists of first slot, last slot, master, and replicas, which are not read. What
/// is understood by nobody is left out.
fn ranges(told: &Value, told_by: &str) -> Vec<Range> {
    let Value::Array(ranges) = told else { return Vec::new() };
    let range = |value: &Value| {
        let Value::Array(parts) = value else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &parts[..] else {
            return None;
        };
        let [host, Value::Int(port), ..] = &master[..] else { return None };
        let own_host = || told_by.rsplit_once(':').map(|(host, _)| host.to_owned());
        let host = match host {
            Value::BulkString(host) => String::from_utf8(host.clone()).ok()?,
            Value::SimpleString(host) => host.clone(),
            _ => String::new(),
        };
        let host = match host.as_str() {
            // It does not know its own.
            "" | "?" => own_host()?,
            host if host.contains(':') => format!("[{host}]"),
            host => host.to_owned(),
        };
        let slot = |slot: i64| u16::try_from(slot).ok().filter(|slot| usize::from(*slot) < SLOTS);
        let (first, last) = (slot(*first)?, slot(*last)?);
        let port = u16::try_from(*port).ok()?;
        (first <= last).then(|| Range { first, last, master: format!("{host}:{port}") })
    };
    ranges.iter().filter_map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_depends_on_what_stands_in_the_first_braces() {
        // From the specification.
        assert_eq!(slot_of("123456789"), 0x31C3);
        assert_eq!(slot_of("{user1000}.following"), slot_of("user1000"));
        assert_eq!(slot_of("foo{}{bar}"), {
            crc16::State::<crc16::XMODEM>::calculate(b"foo{}{bar}") % 16_384
        });
        assert_eq!(slot_of("foo{{bar}}zap"), slot_of("{bar"));
        assert_eq!(slot_of("foo{bar}{zap}"), slot_of("bar"));
    }

    #[test]
    fn what_cluster_slots_tells_is_read_and_what_is_none_left_out() {
        let text = |text: &str| Value::BulkString(text.into());
        let node = |host: Value, port| Value::Array(vec![host, Value::Int(port), text("id")]);
        let range = |first, last, node: Value| {
            let replica = Value::Array(vec![text("replica"), Value::Int(1), text("id")]);
            Value::Array(vec![Value::Int(first), Value::Int(last), node, replica])
        };
        let told = Value::Array(vec![
            range(0, 99, node(text("10.0.0.1"), 7000)),
            range(100, 200, node(text("::1"), 7001)),
            range(201, 300, node(Value::Nil, 7002)),
            range(301, 301, node(text("?"), 7003)),
            range(302, 16_384, node(text("a"), 7004)),
            range(9, 8, node(text("a"), 7004)),
            range(302, 303, node(text("a"), 70_000)),
            range(302, 303, text("a")),
            Value::Nil,
        ]);
        let masters: Vec<_> = ranges(&told, "own:6379")
            .into_iter()
            .map(|range| (range.first, range.last, range.master))
            .collect();
        assert_eq!(
            masters,
            [
                (0, 99, "10.0.0.1:7000".to_owned()),
                (100, 200, "[::1]:7001".to_owned()),
                (201, 300, "own:7002".to_owned()),
                (301, 301, "own:7003".to_owned()),
            ]
        );
        assert!(ranges(&Value::Nil, "own:6379").is_empty());
    }
}

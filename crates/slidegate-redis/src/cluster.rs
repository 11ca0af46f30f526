//! A client of a Redis Cluster. The client has a map of slots to masters, and a [`Node`] for each master.
//!
//! The Cluster client of the `redis` crate is not used, for two reasons. It repeats a command whose response was lost,
//! which charges twice. And it does not report the node that a command is sent to, but each node needs its own circuit
//! breaker, so that the loss of one node does not affect the others.

mod redirects;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use redis::{ConnectionInfo, RedisResult, Value};
use slidegate::StoreError;
use slidegate::store::{RejectionClass, restart_on_panic};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::address::{host_and_port, with_host_and_port};
use crate::connect::ConnectionSource;
use crate::connector::Connector;
use crate::execution::CallSettings;
use crate::failure::{self, Failure};
use crate::log_throttle::LogThrottle;
use crate::node::Node;
use crate::script_request::CLUSTER_SLOT_COUNT;
use crate::tls::ClientTls;

/// Interval at which the map of slots to masters is refreshed while all nodes work.
const SLOT_MAP_REFRESH_INTERVAL: Duration = Duration::from_secs(30);

/// Interval at which the map of slots to masters is refreshed while a node fails.
const SLOT_MAP_REFRESH_INTERVAL_DURING_FAILURE: Duration = Duration::from_millis(200);

/// Minimum time between two refreshes of the slot map.
const MIN_SLOT_MAP_REFRESH_INTERVAL: Duration = Duration::from_millis(20);

/// Timeout of a query to a node for the slot map.
const SLOT_MAP_QUERY_TIMEOUT: Duration = Duration::from_millis(500);

/// A client of a Redis Cluster, which knows the master of each slot.
pub struct Cluster {
    nodes: Arc<ClusterNodes>,
    /// Whether the slot map has been loaded. `None` before the first attempt to load the map has ended.
    is_map_loaded: watch::Receiver<Option<bool>>,
    refresh_task: JoinHandle<()>,
}

/// The known nodes and the slot map, shared by calls and the task that refreshes the map.
struct ClusterNodes {
    seeds: Vec<ConnectionInfo>,
    tls: ClientTls,
    call_settings: CallSettings,
    map: ArcSwap<SlotMap>,
    /// The servers that the store connects to, by address.
    servers: Mutex<HashMap<String, Arc<Node>>>,
    /// Notified to refresh the slot map, because it is outdated or a call to a node has failed.
    refresh_requested: Notify,
    /// The error response that made the last refresh of the map fail. `None` if the refresh succeeded or failed in
    /// another way.
    rejection: Mutex<Option<StoreError>>,
}

/// The map of slots to masters.
struct SlotMap {
    masters: Vec<Arc<Node>>,
    /// For each slot, the index of its master in `masters`. The index is out of range if the slot has no master.
    master_by_slot: Vec<u16>,
}

impl SlotMap {
    /// Returns the master of a slot, or `None` if the slot has no master.
    fn master_of_slot(&self, slot: u16) -> Option<&Arc<Node>> {
        let index = *self.master_by_slot.get(usize::from(slot))?;
        self.masters.get(usize::from(index))
    }
}

/// A range of slots, both ends inclusive, and the address of its master.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SlotRange {
    first: u16,
    last: u16,
    master: String,
}

impl Cluster {
    /// Creates a client and starts to load the slot map in the background, from one of the `seeds`. Must be called
    /// within a tokio runtime.
    pub fn open(
        seeds: Vec<ConnectionInfo>,
        tls: ClientTls,
        call_settings: CallSettings,
    ) -> RedisResult<Self> {
        for seed in &seeds {
            ConnectionSource::for_server(seed, &tls)?;
        }
        let map = ArcSwap::from_pointee(SlotMap {
            masters: Vec::new(),
            master_by_slot: vec![0; CLUSTER_SLOT_COUNT],
        });
        let (servers, refresh_requested) = (Mutex::default(), Notify::new());
        let nodes = Arc::new(ClusterNodes {
            seeds,
            tls,
            call_settings,
            map,
            servers,
            refresh_requested,
            rejection: Mutex::default(),
        });
        let (is_map_loaded_sender, is_map_loaded) = watch::channel(None);
        let refresh_nodes = nodes.clone();
        let refresh = async move || {
            refresh_slot_map_in_loop(&refresh_nodes, &is_map_loaded_sender).await;
        };
        let refresh_task = tokio::spawn(restart_on_panic(refresh, || {
            tracing::error!(
                "the task that refreshes the slot map of the Redis Cluster panicked; it runs again"
            );
        }));
        Ok(Self { nodes, is_map_loaded, refresh_task })
    }

    /// Returns the master of a slot. Waits for the first attempt to load the slot map, until `deadline` at the latest.
    /// Fails if the map has never been loaded or the slot has no master.
    async fn master(&self, slot: u16, deadline: Instant) -> Result<Arc<Node>, Failure> {
        if *self.is_map_loaded.borrow() != Some(true) {
            let mut is_map_loaded = self.is_map_loaded.clone();
            let is_loaded = timeout_at(deadline, is_map_loaded.wait_for(Option::is_some)).await;
            if !matches!(is_loaded, Ok(Ok(is_loaded)) if *is_loaded == Some(true)) {
                return Err(Failure::Server(self.nodes.no_slot_map_error()));
            }
        }
        let map = self.nodes.map.load();
        map.master_of_slot(slot).cloned().ok_or_else(|| {
            self.request_refresh();
            Failure::Server(StoreError::Rejected {
                class: RejectionClass::ClusterDown,
                message: format!("hash slot {slot} has no master in the Redis Cluster"),
            })
        })
    }

    /// Returns the server to which `server` has redirected a call. The address is `host:port`, or `:port` for the host
    /// of `server`.
    fn redirect_target(&self, server: &Node, address: &str) -> Result<Arc<Node>, Failure> {
        let target = match (address.strip_prefix(':'), server.address().rsplit_once(':')) {
            (Some(port), Some((host, _))) => format!("{host}:{port}"),
            _ => address.to_owned(),
        };
        self.nodes.find_or_add_server(&target).ok_or_else(|| {
            Failure::Server(StoreError::Unavailable(format!(
                "the Redis Cluster redirected the call to `{target}`, which is not a valid address"
            )))
        })
    }

    /// Requests a refresh of the slot map, because the map is outdated or a node does not respond.
    fn request_refresh(&self) {
        self.nodes.refresh_requested.notify_one();
    }

    /// Returns `true` if the circuit breakers of all known masters are open, or if no master is known.
    pub fn is_breaker_open(&self) -> bool {
        self.nodes.map.load().masters.iter().all(|master| master.is_breaker_open())
    }

    /// Returns the reason why no master is reachable; `None` if at least one master is.
    pub fn unreachable_reason(&self) -> Option<StoreError> {
        let map = self.nodes.map.load();
        let reasons = map.masters.iter().map(|master| master.unreachable_reason());
        let reasons: Option<Vec<StoreError>> = reasons.collect();
        reasons.map(|reasons| {
            reasons.into_iter().next().unwrap_or_else(|| self.nodes.no_slot_map_error())
        })
    }

    /// Returns `true` if the circuit breaker of the master of a slot is open, or if the slot has no master.
    pub fn is_breaker_open_for_slot(&self, slot: u16) -> bool {
        self.nodes.map.load().master_of_slot(slot).is_none_or(|master| master.is_breaker_open())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.refresh_task.abort();
    }
}

/// Refreshes the slot map periodically and on request, in an endless loop.
async fn refresh_slot_map_in_loop(
    nodes: &ClusterNodes,
    is_map_loaded: &watch::Sender<Option<bool>>,
) {
    let never_reached_log = LogThrottle::default();
    loop {
        let is_refreshed = nodes.refresh_slot_map().await;
        let before = *is_map_loaded.borrow();
        match (before, is_refreshed) {
            (None | Some(false), false) => {
                let error = nodes.no_slot_map_error();
                // Logs each class of error separately: the first attempt often times out, and a later one shows the
                // actual reason.
                if never_reached_log.should_log(error.class()) {
                    tracing::error!(
                        class = error.class(),
                        error = error.to_string(),
                        addresses = nodes.seed_addresses(),
                        remedy = error.remedy(),
                        "no node of the Redis Cluster returned the slot map, so Redis cannot be used; retrying"
                    );
                }
                is_map_loaded.send_replace(Some(false));
            }
            (None | Some(false), true) => {
                if before.is_some() {
                    tracing::info!("slot map of the Redis Cluster loaded");
                }
                is_map_loaded.send_replace(Some(true));
            }
            // After the map was loaded once, this task logs no outage, because the circuit breakers of the masters
            // report it.
            (Some(true), _) => {}
        }
        sleep(MIN_SLOT_MAP_REFRESH_INTERVAL).await;
        let map = nodes.map.load_full();
        let is_healthy = is_refreshed && !map.masters.iter().any(|master| master.is_breaker_open());
        let interval = if is_healthy {
            SLOT_MAP_REFRESH_INTERVAL
        } else {
            SLOT_MAP_REFRESH_INTERVAL_DURING_FAILURE
        };
        let _ = timeout(interval, nodes.refresh_requested.notified()).await;
    }
}

impl ClusterNodes {
    /// Returns the addresses of the seeds for log messages, without passwords.
    fn seed_addresses(&self) -> String {
        let addresses: Vec<_> = self.seeds.iter().map(|seed| host_and_port(seed.addr())).collect();
        addresses.join(",")
    }

    /// Queries one node after another for the slot map, until a node returns one: first the known servers in random
    /// order, then the seeds. Returns `true` if the map was refreshed.
    async fn refresh_slot_map(&self) -> bool {
        let mut rejection = None;
        let mut known: Vec<String> = self.servers.lock().keys().cloned().collect();
        fastrand::shuffle(&mut known);
        let known = known.iter().filter_map(|address| self.connection_info(address));
        for info in known.chain(self.seeds.iter().cloned()).collect::<Vec<_>>() {
            match timeout(SLOT_MAP_QUERY_TIMEOUT, self.fetch_slot_ranges(&info)).await {
                Ok(Ok(ranges)) if !ranges.is_empty() => {
                    self.replace_slot_map(&ranges);
                    return true;
                }
                Ok(Ok(_)) => tracing::debug!("a node of the Redis Cluster has no slots"),
                Ok(Err(error)) => {
                    tracing::debug!(error = error.to_string(), "query for the slot map failed");
                    if let Some(class) = failure::rejection_class(&error) {
                        let message = failure::error_message(&error);
                        rejection = Some(StoreError::Rejected { class, message });
                    }
                }
                Err(_) => tracing::debug!("query for the slot map timed out"),
            }
        }
        *self.rejection.lock() = rejection;
        false
    }

    /// Returns the error of a call that needs the slot map, which no node has returned.
    fn no_slot_map_error(&self) -> StoreError {
        self.rejection.lock().clone().unwrap_or_else(|| {
            StoreError::Unavailable(
                "no node of the Redis Cluster has returned the slot map; check the addresses, and that the servers \
                 run in cluster mode"
                    .to_owned(),
            )
        })
    }

    /// Queries a node for the slot map. Returns the ranges of slots that have a master.
    async fn fetch_slot_ranges(&self, info: &ConnectionInfo) -> RedisResult<Vec<SlotRange>> {
        let connector = Connector::new(info, &self.tls)?;
        let mut connection = connector.connect(SLOT_MAP_QUERY_TIMEOUT).await?;
        let response: Value =
            redis::cmd("CLUSTER").arg("SLOTS").query_async(&mut connection.commands).await?;
        Ok(parse_slot_ranges(&response, &host_and_port(info.addr())))
    }

    /// Replaces the slot map, and removes the servers that are no longer masters.
    fn replace_slot_map(&self, ranges: &[SlotRange]) {
        let mut addresses: Vec<&str> = Vec::new();
        let (mut masters, mut master_by_slot) = (Vec::new(), vec![u16::MAX; CLUSTER_SLOT_COUNT]);
        for range in ranges {
            let index = addresses.iter().position(|address| *address == range.master);
            let index = index.or_else(|| {
                masters.push(self.find_or_add_server(&range.master)?);
                addresses.push(&range.master);
                Some(addresses.len() - 1)
            });
            let Some(index) = index else { continue };
            if let Some(part) = master_by_slot.get_mut(range.first.into()..=range.last.into()) {
                part.fill(index as u16);
            }
        }
        // A server that is no longer a master is closed when its last call has ended.
        self.servers.lock().retain(|address, _| addresses.contains(&address.as_str()));
        self.map.store(Arc::new(SlotMap { masters, master_by_slot }));
    }

    /// Returns the server at an address. If the server is new, starts to connect to it. Returns `None` if the address
    /// is invalid.
    fn find_or_add_server(&self, address: &str) -> Option<Arc<Node>> {
        let mut servers = self.servers.lock();
        if let Some(server) = servers.get(address) {
            return Some(server.clone());
        }
        let info = self.connection_info(address)?;
        let source = ConnectionSource::for_server(&info, &self.tls).ok()?;
        let server = Node::open(address, source, self.call_settings.clone());
        servers.insert(address.to_owned(), server.clone());
        Some(server)
    }

    /// Returns the connection settings for an address: a copy of the first seed with another host and port. Returns
    /// `None` if the address is invalid.
    fn connection_info(&self, address: &str) -> Option<ConnectionInfo> {
        with_host_and_port(self.seeds.first()?, address)
    }
}

/// Parses the response to `CLUSTER SLOTS`: a list of entries, each with first slot, last slot, master, and replicas,
/// which are ignored. Invalid entries are omitted. If an entry has no host, its master is on the host of
/// `node_address`, the node that responded.
fn parse_slot_ranges(response: &Value, node_address: &str) -> Vec<SlotRange> {
    let Value::Array(ranges) = response else { return Vec::new() };
    let range = |value: &Value| {
        let Value::Array(parts) = value else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &parts[..] else {
            return None;
        };
        let [host, Value::Int(port), ..] = &master[..] else { return None };
        let responding_host = || node_address.rsplit_once(':').map(|(host, _)| host.to_owned());
        let host = match host {
            Value::BulkString(host) => String::from_utf8(host.clone()).ok()?,
            Value::SimpleString(host) => host.clone(),
            _ => String::new(),
        };
        let host = match host.as_str() {
            // An empty host or `?` means that the node does not know its own host. The host of `node_address` is then
            // used.
            "" | "?" => responding_host()?,
            host if host.contains(':') => format!("[{host}]"),
            host => host.to_owned(),
        };
        let slot = |slot: i64| {
            u16::try_from(slot).ok().filter(|slot| usize::from(*slot) < CLUSTER_SLOT_COUNT)
        };
        let (first, last) = (slot(*first)?, slot(*last)?);
        let port = u16::try_from(*port).ok()?;
        (first <= last).then(|| SlotRange { first, last, master: format!("{host}:{port}") })
    };
    ranges.iter().filter_map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_slot_ranges_are_skipped() {
        let text = |text: &str| Value::BulkString(text.into());
        let node = |host: Value, port| Value::Array(vec![host, Value::Int(port), text("id")]);
        let range = |first, last, node: Value| {
            let replica = Value::Array(vec![text("replica"), Value::Int(1), text("id")]);
            Value::Array(vec![Value::Int(first), Value::Int(last), node, replica])
        };
        let response = Value::Array(vec![
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
        let masters: Vec<_> = parse_slot_ranges(&response, "own:6379")
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
        assert!(parse_slot_ranges(&Value::Nil, "own:6379").is_empty());
    }
}

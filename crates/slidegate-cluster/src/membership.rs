//! Membership: which nodes are in the cluster, and which of them are alive.
//!
//! Nodes exchange lists of the members with their newest heartbeats. A member is *silent* if no new heartbeat has
//! arrived for [`SILENCE_TIMEOUT`], neither from the member nor through other nodes: no node that this node can reach
//! sees the member, but it may still admit requests. A member has *left* if it announced its departure, or if a newer
//! incarnation has the same name. A member whose clock differs by more than the limit is *skewed*, and treated like a
//! silent member.
//!
//! [`Membership`] has no I/O and no clock.

mod address;
mod seeds;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use slidegate::Timestamp;
use tokio::time::Instant;
use tracing::warn;

use crate::clock_limit::{ClockSkewLimit, clock_offset_us};
use crate::message::{MAX_MEMBERS, MemberEntry};
use crate::node_info::NodeInfo;
use crate::pn_counter::Incarnation;

pub use address::{AdvertisedAddressError, has_other_seeds, listen_on, resolve_advertised_address};
pub(crate) use seeds::{SeedAddresses, watch_seeds};

/// Interval at which a node sends its list of members to each node that it is connected to.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);

/// Time without a new heartbeat after which a member is silent.
pub const SILENCE_TIMEOUT: Duration = Duration::from_secs(3);

/// Time for which a silent or departed node is remembered. Nodes that are disconnected for longer find each other
/// again through their seeds. With a longer time, the old incarnations of a node that restarts repeatedly could fill
/// the lists.
const SILENT_NODE_RETENTION_TIME: Duration = Duration::from_secs(600);

/// Maximum number of known nodes, including silent and departed ones.
const MAX_KNOWN_NODES: usize = 2 * MAX_MEMBERS;

/// Time for which a newer incarnation of a name keeps its place after it became silent, although an older one is live.
/// Otherwise a late heartbeat of a node that was replaced would remove its successor.
const NEWER_INCARNATION_GRACE_TIME: Duration = Duration::from_secs(10);

/// Number of messages from which a clock is measured. The message with the shortest delay counts.
const CLOCK_SAMPLES_PER_NODE: usize = 4;

/// Minimum time between two warnings about the clock of a member.
const CLOCK_WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// The other nodes of a cluster, ordered by name. A node that was seen before and is in no list is silent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MembershipView {
    /// Nodes whose heartbeats arrive, at most one per name.
    pub live: Vec<NodeInfo>,
    /// Nodes whose heartbeats arrive, but whose clock differs by more than the limit.
    pub skewed: Vec<NodeInfo>,
    /// Nodes that have announced that they leave, and nodes that were replaced by another incarnation of the same name.
    /// They charge nothing more. Each is listed for some minutes.
    pub left: Vec<Incarnation>,
    /// Live nodes from which another live node receives no messages, so that this node relays their counters.
    pub relayed: BTreeSet<Incarnation>,
}

impl MembershipView {
    /// Returns `true` if this node and the live nodes are more than the skewed nodes, or exactly as many and one of
    /// them has the smallest name.
    pub(crate) fn live_nodes_are_majority(&self, own: &NodeInfo) -> bool {
        let live = || self.live.iter().chain([own]).map(|node| &node.name);
        match live().count().cmp(&self.skewed.len()) {
            Ordering::Greater => true,
            Ordering::Equal => live().min() < self.skewed.iter().map(|node| &node.name).min(),
            Ordering::Less => false,
        }
    }
}

/// Settings of the membership of a node.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Maximum difference between the clocks of two nodes.
    pub clock_limit: ClockSkewLimit,
    /// Time without a new heartbeat after which a member is silent: several times the interval at which
    /// [`Membership::next_member_list`] is called.
    pub silence_timeout: Duration,
}

/// The members of a cluster, as known to one node.
#[derive(Debug)]
pub struct Membership {
    own: NodeInfo,
    settings: Settings,
    heartbeat: u64,
    is_leaving: bool,
    nodes: BTreeMap<Incarnation, KnownNode>,
    /// The newest other incarnation with the name of this node for which a warning was logged, so that it is not
    /// repeated.
    newest_warned_namesake: Incarnation,
}

/// Another node: its newest heartbeat, and the last measurements of its clock.
#[derive(Debug)]
struct KnownNode {
    node: NodeInfo,
    heartbeat: u64,
    has_left: bool,
    known_since: Instant,
    /// The time at which the newest heartbeat arrived, directly or through other nodes.
    heartbeat_at: Instant,
    /// The time of the last message from the node itself.
    received_at: Option<Instant>,
    /// The last measured offsets of the node's clock, in microseconds.
    clock_samples: VecDeque<i64>,
    clock_warned_at: Option<Instant>,
    /// The members from which the node receives no messages, according to its last list.
    indirect: Vec<Incarnation>,
}

impl KnownNode {
    fn new(node: NodeInfo, (heartbeat, heartbeat_at): (u64, Instant), now: Instant) -> Self {
        Self {
            node,
            heartbeat,
            has_left: false,
            known_since: now,
            heartbeat_at,
            received_at: None,
            clock_samples: VecDeque::new(),
            clock_warned_at: None,
            indirect: Vec::new(),
        }
    }

    fn is_retention_expired(&self, now: Instant) -> bool {
        now.duration_since(self.heartbeat_at) >= SILENT_NODE_RETENTION_TIME
    }
}

impl Membership {
    /// Creates the membership of a node that knows no other node.
    pub fn new(own: NodeInfo, settings: Settings) -> Self {
        Self {
            own,
            settings,
            heartbeat: 0,
            is_leaving: false,
            nodes: BTreeMap::new(),
            newest_warned_namesake: Incarnation::default(),
        }
    }

    /// Handles a node that has introduced itself on a connection.
    pub fn on_node_introduced(&mut self, node: NodeInfo, now: Instant) {
        if let Some(known) = self.get_or_add(&node, (0, now), now) {
            known.heartbeat_at = now;
            known.received_at = Some(now);
        }
    }

    /// Handles a list of members that another node has sent. `wall_time` is the time of this node's clock.
    pub fn on_member_list(
        &mut self,
        from: Incarnation,
        entries: &[MemberEntry],
        sent_at: Timestamp,
        wall_time: Timestamp,
        now: Instant,
    ) {
        for entry in entries {
            let heartbeat_at = now.checked_sub(entry.silent_for).unwrap_or(now);
            let heartbeat = (entry.heartbeat, heartbeat_at);
            let Some(known) = self.get_or_add(&entry.node, heartbeat, now) else { continue };
            known.has_left |= entry.has_left;
            if entry.heartbeat > known.heartbeat {
                known.heartbeat = entry.heartbeat;
                known.heartbeat_at = now;
            }
        }
        let Some(sender) = self.nodes.get_mut(&from) else { return };
        sender.received_at = Some(now);
        sender.clock_samples.truncate(CLOCK_SAMPLES_PER_NODE - 1);
        sender.clock_samples.push_front(clock_offset_us(sent_at, wall_time));
        let indirect = entries.iter().filter(|entry| !entry.is_direct && !entry.has_left);
        sender.indirect = indirect.map(|entry| entry.node.incarnation).collect();
        self.warn_about_clock(from, now);
    }

    /// Returns the entry of another node. If the node is new, adds it with the given newest heartbeat and its time.
    /// Returns `None` for this node, and if too many nodes are known.
    fn get_or_add(
        &mut self,
        node: &NodeInfo,
        heartbeat: (u64, Instant),
        now: Instant,
    ) -> Option<&mut KnownNode> {
        if node.incarnation == self.own.incarnation {
            return None;
        }
        if !self.nodes.contains_key(&node.incarnation) && self.nodes.len() >= MAX_KNOWN_NODES {
            return None;
        }
        let new = || KnownNode::new(node.clone(), heartbeat, now);
        Some(self.nodes.entry(node.incarnation).or_insert_with(new))
    }

    fn is_alive(&self, known: &KnownNode, now: Instant) -> bool {
        !known.has_left && now.duration_since(known.heartbeat_at) < self.settings.silence_timeout
    }

    /// Returns `true` if a node itself has sent messages recently, or may do so soon because it is new.
    fn is_direct(&self, known: &KnownNode, now: Instant) -> bool {
        let since = known.received_at.unwrap_or(known.known_since);
        now.duration_since(since) < self.settings.silence_timeout
    }

    fn warn_about_clock(&mut self, of: Incarnation, now: Instant) {
        let Some(offset_us) = self.clock_offset_us(of, now) else { return };
        let Some(known) = self.nodes.get_mut(&of) else { return };
        let is_due = known
            .clock_warned_at
            .is_none_or(|warned_at| now.duration_since(warned_at) >= CLOCK_WARNING_INTERVAL);
        if self.settings.clock_limit.allows_offset(offset_us) || !is_due {
            return;
        }
        known.clock_warned_at = Some(now);
        let (name, seconds) = (&known.node.name, offset_us as f64 / 1e6);
        warn!(
            %name,
            "the clock of a cluster node differs by {seconds:+.1} s, more than --cluster-max-clock-skew; \
             each of the two treats the other like a node that does not respond; synchronize the clocks, for example with NTP"
        );
    }

    /// Returns the next list of members to send to other nodes: a new heartbeat of this node, and the newest heartbeats
    /// of the other nodes. Forgets nodes that have been silent for a long time.
    pub fn next_member_list(&mut self, now: Instant) -> Vec<MemberEntry> {
        self.heartbeat += 1;
        self.nodes.retain(|_, known| !known.is_retention_expired(now));
        self.list(now)
    }

    /// Returns the list of members with the last heartbeat of this node.
    pub fn list(&self, now: Instant) -> Vec<MemberEntry> {
        let own = MemberEntry {
            node: self.own.clone(),
            heartbeat: self.heartbeat,
            has_left: self.is_leaving,
            is_direct: true,
            silent_for: Duration::ZERO,
        };
        let mut others: Vec<&KnownNode> = self.nodes.values().collect();
        // The list has a maximum length, so live nodes and recent heartbeats come first.
        others.sort_by_key(|known| {
            (!self.is_alive(known, now), std::cmp::Reverse(known.heartbeat_at))
        });
        let others = others.into_iter().map(|known| MemberEntry {
            node: known.node.clone(),
            heartbeat: known.heartbeat,
            has_left: known.has_left,
            is_direct: self.is_direct(known, now),
            silent_for: now.duration_since(known.heartbeat_at),
        });
        std::iter::once(own).chain(others).take(MAX_MEMBERS).collect()
    }

    /// Announces in each further list that this node leaves.
    pub fn leave(&mut self) {
        self.is_leaving = true;
    }

    /// Returns the nodes to which a connection must be kept: all known nodes that have not left.
    pub fn peers(&self) -> Vec<NodeInfo> {
        let others = self.nodes.values().filter(|known| !known.has_left);
        others.map(|known| known.node.clone()).collect()
    }

    /// Returns the offset of a member's clock in microseconds, positive if it is ahead. Returns `None` if this node
    /// receives no messages from it. The delay of a message only makes a clock seem to be behind, so the largest of the
    /// last offsets is the most exact one.
    pub fn clock_offset_us(&self, of: Incarnation, now: Instant) -> Option<i64> {
        let known = self.nodes.get(&of).filter(|known| self.is_direct(known, now))?;
        known.clock_samples.iter().max().copied()
    }

    /// Returns the lists of other nodes. For each name, one incarnation is current: the newest live incarnation, or the
    /// newest one if none is live. All other incarnations of the name count as replaced. A node whose clock was set
    /// back thus becomes current after ten seconds, although it has an older incarnation after its restart.
    pub fn view(&mut self, now: Instant) -> MembershipView {
        self.warn_about_namesakes(now);
        let mut by_name: BTreeMap<Arc<str>, Vec<&KnownNode>> = BTreeMap::new();
        for known in self.nodes.values() {
            by_name.entry(known.node.name.clone()).or_default().push(known);
        }
        let mut view = MembershipView::default();
        for (name, mut incarnations) in by_name {
            incarnations.sort_by_key(|known| (self.is_alive(known, now), known.node.incarnation));
            if must_keep_newer_incarnation(&incarnations) {
                continue;
            }
            let is_own_name = name == self.own.name;
            let current =
                incarnations.pop_if(|newest| !is_own_name || self.is_running_namesake(newest, now));
            match current {
                Some(current) if current.has_left => view.left.push(current.node.incarnation),
                Some(current) if !self.is_alive(current, now) => {}
                Some(current) if self.has_skewed_clock(current, now) => {
                    view.skewed.push(current.node.clone());
                }
                Some(current) => view.live.push(current.node.clone()),
                None => {}
            }
            view.left.extend(incarnations.iter().map(|replaced| replaced.node.incarnation));
        }
        let live: BTreeSet<Incarnation> = view.live.iter().map(|node| node.incarnation).collect();
        let indirect =
            live.iter().filter_map(|of| self.nodes.get(of)).flat_map(|known| &known.indirect);
        view.relayed = indirect.copied().filter(|of| live.contains(of)).collect();
        view
    }

    fn has_skewed_clock(&self, known: &KnownNode, now: Instant) -> bool {
        let offset_us = self.clock_offset_us(known.node.incarnation, now);
        offset_us.is_some_and(|offset_us| !self.settings.clock_limit.allows_offset(offset_us))
    }

    /// Returns `true` if `known` is a running node with the same name as this node that was started after this node.
    /// Such a node may admit requests. All other incarnations with the name of this node count as replaced by it.
    fn is_running_namesake(&self, known: &KnownNode, now: Instant) -> bool {
        self.is_alive(known, now) && known.node.incarnation > self.own.incarnation
    }

    fn warn_about_namesakes(&mut self, now: Instant) {
        for known in self.nodes.values().filter(|known| known.node.name == self.own.name) {
            if self.is_running_namesake(known, now)
                && known.node.incarnation > self.newest_warned_namesake
            {
                self.newest_warned_namesake = known.node.incarnation;
                let (name, address) = (&known.node.name, known.node.address);
                warn!(%name, ?address, "another node has the name of this node; give each node a unique name");
            }
        }
    }
}

/// Returns `true` if the last of the incarnations of a name must not replace the others yet, because a newer one has
/// become silent only recently.
fn must_keep_newer_incarnation(incarnations: &[&KnownNode]) -> bool {
    let Some((current, others)) = incarnations.split_last() else { return false };
    others.iter().any(|other| {
        other.node.incarnation > current.node.incarnation
            && !other.has_left
            && current.heartbeat_at < other.heartbeat_at + NEWER_INCARNATION_GRACE_TIME
    })
}

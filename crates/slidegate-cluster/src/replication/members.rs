//! Members of the cluster. The engine tracks which members are alive, silent or departed, and which members are voters.
//! A voter counts towards a majority.

use std::collections::VecDeque;

use slidegate::Timestamp;

use super::peer::PeerState;
use super::settings::{elapsed_us, to_micros};
use super::{OutboundFrame, ReplicationEngine};
use crate::membership::MembershipView;
use crate::message::{MAX_MEMBERS, Roster, RosterEntry};
use crate::node_info::NodeInfo;
use crate::pn_counter::Incarnation;
use crate::replicated_counters::ReplicatedCounters;

/// Maximum number of departed members that are remembered. A remembered member is not added again.
const MAX_STORED_DEPARTED_MEMBERS: usize = 1024;
/// Maximum number of departed members in a roster, the member list that is sent to other nodes.
const MAX_DEPARTED_MEMBERS_IN_ROSTER: usize = 32;

/// Members that have left or were removed after a long silence, most recent first.
#[derive(Debug, Default)]
pub(super) struct DepartedMembers(VecDeque<DepartedMember>);

#[derive(Debug)]
struct DepartedMember {
    incarnation: Incarnation,
    name: Box<str>,
    /// Whether the member was removed only because it was silent for too long. It may return.
    is_forgotten: bool,
}

impl DepartedMembers {
    fn insert(&mut self, incarnation: Incarnation, name: &str, is_forgotten: bool) {
        self.0.retain(|departed| departed.incarnation != incarnation);
        self.0.push_front(DepartedMember { incarnation, name: name.into(), is_forgotten });
        self.0.truncate(MAX_STORED_DEPARTED_MEMBERS);
    }

    fn contains(&self, incarnation: Incarnation) -> bool {
        self.0.iter().any(|departed| departed.incarnation == incarnation)
    }

    /// Removes a returning member from the departed members, if it was removed only because of a long silence.
    fn remove_unless_announced(&mut self, incarnation: Incarnation) {
        self.0.retain(|departed| departed.incarnation != incarnation || !departed.is_forgotten);
    }

    fn iter_announced_departures(&self) -> impl Iterator<Item = &DepartedMember> {
        self.0.iter().filter(|departed| !departed.is_forgotten)
    }
}

impl ReplicationEngine {
    /// Handles a change reported by the failure detector. Members that are neither alive nor have left are silent, and
    /// so are members whose clock is skewed, and members known only from rosters.
    pub fn on_membership_changed(
        &mut self,
        counters: &dyn ReplicatedCounters,
        view: &MembershipView,
        now: Timestamp,
    ) -> Vec<OutboundFrame> {
        view.left.iter().for_each(|incarnation| self.on_member_left(*incarnation, now));
        for node in &view.live {
            self.on_member_alive(counters, node, now);
        }
        // If the skewed nodes are the majority, the clock of this node is wrong. It then joins no cluster, but must not
        // start one of its own, so the skewed nodes become silent members.
        if !view.live_nodes_are_majority(&self.local_node) {
            for node in &view.skewed {
                self.departed.remove_unless_announced(node.incarnation);
                self.add_member(node, Some(now), now);
            }
        }
        for sender in view.relayed.difference(&std::mem::take(&mut self.relayed)) {
            self.schedule_incarnation_to_relay(*sender);
        }
        self.relayed.clone_from(&view.relayed);
        let has_disappeared = |peer: &&mut PeerState| {
            let is_alive = view.live.iter().any(|node| node.incarnation == peer.node.incarnation);
            peer.is_alive() && !is_alive
        };
        let mut silent = Vec::new();
        for peer in self.peers.values_mut().filter(has_disappeared) {
            peer.mark_silent(now);
            silent.push(peer.node.incarnation);
        }
        silent.into_iter().for_each(|incarnation| self.schedule_incarnation_to_relay(incarnation));
        self.prune_flush_history();
        self.publish_progress(now);
        self.take_frames_to_send(now)
    }

    /// Handles a node that is alive: adds it as a member if necessary, and starts a new epoch of the stream to it if it
    /// is new or was silent.
    fn on_member_alive(
        &mut self,
        counters: &dyn ReplicatedCounters,
        node: &NodeInfo,
        now: Timestamp,
    ) {
        self.departed.remove_unless_announced(node.incarnation);
        if !self.add_member(node, None, now) {
            return;
        }
        let flush = self.flush;
        let Some(peer) = self.peers.get_mut(&node.incarnation) else { return };
        if std::mem::take(&mut peer.is_known_indirectly) {
            peer.acknowledged_flush = peer.acknowledged_flush.max(flush);
        }
        let was_silent = peer.silent_since.take().is_some();
        peer.node.address = node.address;
        if was_silent || peer.outgoing.sent.epoch == 0 {
            peer.on_link_up();
            peer.outgoing.refill_budget(self.settings.interval_bytes);
            // The progress is published before anything is sent to the member: later charges must not assume that this
            // node is alone.
            self.publish_progress(now);
            self.start_stream_epoch(counters, node.incarnation, now);
        }
    }

    /// Adds a node as a member unless it has left. Returns `true` if the node is a member after the call.
    fn add_member(
        &mut self,
        node: &NodeInfo,
        silent_since: Option<Timestamp>,
        now: Timestamp,
    ) -> bool {
        let NodeInfo { incarnation, name, .. } = node;
        if *incarnation == self.local_node.incarnation || self.departed.contains(*incarnation) {
            return false;
        }
        if self.peers.contains_key(incarnation) {
            return true;
        }
        let namesakes = self.peers.values().map(|peer| &peer.node).chain([&self.local_node]);
        let (older, newer): (Vec<_>, Vec<_>) = namesakes
            .filter(|other| other.name == *name)
            .map(|other| other.incarnation)
            .partition(|other| other < incarnation);
        if !newer.is_empty() || older.contains(&self.local_node.incarnation) {
            self.departed.insert(*incarnation, name, false);
            return false;
        }
        older.into_iter().for_each(|other| self.on_member_left(other, now));
        // A newcomer may not charge freely before it has received all charges made up to now, so it need not
        // acknowledge earlier flushes. But if this node is joining or partitioned, the unknown node may be an old
        // member, which must acknowledge all flushes.
        let is_newcomer = self.is_settled && self.majority_since.is_some();
        let acknowledged_flush = if is_newcomer { self.flush } else { 0 };
        let mut peer = PeerState::new(node.clone(), silent_since, acknowledged_flush);
        peer.is_known_indirectly = is_newcomer && silent_since.is_some();
        self.peers.insert(*incarnation, peer);
        self.roster_version += 1;
        true
    }

    /// Removes a member that has left and charges nothing more.
    pub(super) fn on_member_left(&mut self, incarnation: Incarnation, now: Timestamp) {
        self.remove_member(incarnation, false, now);
    }

    /// Removes members whose charges have expired from all windows since they became silent. Only a majority forgets
    /// members: a node that is cut off would otherwise be alone, and charge freely.
    pub(super) fn remove_members_silent_for_too_long(&mut self, now: Timestamp) {
        let Some(majority_since) = self.majority_since else { return };
        let longest_us = self
            .longest_lifetime_us
            .saturating_add(self.settings.clock_limit.max_clock_difference_us());
        let timeout_us = to_micros(self.settings.min_silent_timeout).max(longest_us);
        let is_forgotten = |peer: &&PeerState| {
            peer.silent_since
                .is_some_and(|since| elapsed_us(since.max(majority_since), now) > timeout_us)
        };
        let forgotten = self.peers.values().filter(is_forgotten);
        let forgotten: Vec<Incarnation> = forgotten.map(|peer| peer.node.incarnation).collect();
        forgotten.into_iter().for_each(|incarnation| self.remove_member(incarnation, true, now));
    }

    fn remove_member(&mut self, incarnation: Incarnation, is_forgotten: bool, now: Timestamp) {
        if let Some(peer) = self.peers.remove(&incarnation) {
            self.departed.insert(incarnation, &peer.node.name, is_forgotten);
            self.roster_version += 1;
            self.schedule_incarnation_to_relay(incarnation);
            self.prune_flush_history();
            self.publish_progress(now);
        }
    }

    /// Merges a roster received from a member: adds members that this node does not know, and removes members that have
    /// left.
    pub(super) fn merge_roster(&mut self, from: Incarnation, roster: Roster, now: Timestamp) {
        if let Some(peer) = self.peers.get_mut(&from) {
            if roster.is_settled && !peer.is_settled && !peer.has_acknowledged {
                // The peer charges freely without having received updates from this node: two clusters meet. Only
                // flushes that have arrived at the peer count as acknowledged.
                peer.acknowledged_flush = peer.delivered_flush;
            }
            peer.is_settled = roster.is_settled;
        }
        let (departed, members): (Vec<_>, Vec<_>) =
            roster.entries.into_iter().partition(|entry| entry.has_left);
        // First, because a member may have replaced a newer incarnation with its name.
        for RosterEntry { incarnation, name, .. } in departed {
            if incarnation != self.local_node.incarnation {
                self.on_member_left(incarnation, now);
                self.departed.insert(incarnation, &name, false);
            }
        }
        for RosterEntry { incarnation, name, .. } in members {
            if self.peers.len() < MAX_MEMBERS {
                let node = NodeInfo { incarnation, name: (*name).into(), address: None };
                self.add_member(&node, Some(now), now);
            }
        }
    }

    /// Returns the roster that this node sends to other members.
    pub(super) fn build_roster(&self) -> Roster {
        let entry = |incarnation: Incarnation, name: &str, has_left: bool| RosterEntry {
            incarnation,
            name: name.into(),
            has_left,
        };
        let nodes = self.peers.values().map(|peer| &peer.node).chain([&self.local_node]);
        let members = nodes.map(|node| entry(node.incarnation, &node.name, false));
        let departed =
            self.departed.iter_announced_departures().take(MAX_DEPARTED_MEMBERS_IN_ROSTER);
        let departed = departed.map(|departed| entry(departed.incarnation, &departed.name, true));
        let is_settled = self.is_settled && !self.must_send_joined_state;
        Roster { is_settled, entries: members.chain(departed).collect() }
    }

    /// Updates `is_joining` and `is_settled`. This node has joined when a settled member has sent its full state to
    /// this node. This node becomes settled when all other members have acknowledged its frames, or when more than half
    /// of all members are voters that have acknowledged its frames. A settled node counts towards a majority if the
    /// network is partitioned.
    pub(super) fn update_join_state(&mut self) {
        if self.is_joining && self.peers.values().any(PeerState::can_join_via_peer) {
            self.finish_joining();
        }
        if self.is_settled || self.is_joining {
            return;
        }
        let has_acknowledged = |peer: &&PeerState| peer.has_acknowledged;
        let all = self.peers.values().all(|peer| peer.has_acknowledged);
        let voters = self.peers.values().filter(has_acknowledged).filter(|peer| peer.is_voter());
        if all || voters.count() * 2 > self.peers.len() + 1 {
            self.is_settled = true;
            self.roster_version += 1;
        }
    }

    pub(super) fn finish_joining(&mut self) {
        self.is_joining = false;
        self.must_send_joined_state = true;
    }

    /// Sends the full state to all members after this node has joined.
    pub(super) fn send_joined_state(&mut self, counters: &dyn ReplicatedCounters, now: Timestamp) {
        if !std::mem::take(&mut self.must_send_joined_state) {
            return;
        }
        let peers = self.peers.values_mut().filter(|peer| peer.is_alive());
        let peers = peers.map(|peer| {
            peer.needs_full_state = true;
            peer.node.incarnation
        });
        for peer in peers.collect::<Vec<_>>() {
            self.start_stream_epoch(counters, peer, now);
        }
    }

    /// Returns `true` if this node and the reachable voters are a majority. A majority is more than half of all
    /// members, or exactly half of them if this half contains the member with the smallest name.
    pub(super) fn belongs_to_majority(&self) -> bool {
        let local_name = self.is_settled.then_some(&self.local_node.name);
        let others = self.peers.values().filter(|peer| peer.is_voter());
        let voters: Vec<_> = others.map(|peer| &peer.node.name).chain(local_name).collect();
        let all = self.peers.values().map(|peer| &peer.node.name).chain([&self.local_node.name]);
        match (2 * voters.len()).cmp(&(self.peers.len() + 1)) {
            std::cmp::Ordering::Less => false,
            std::cmp::Ordering::Equal => voters.iter().min() == all.min().as_ref(),
            std::cmp::Ordering::Greater => true,
        }
    }
}

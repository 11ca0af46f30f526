//! Who is there, who was, and who may be counted on.

use std::collections::VecDeque;

use slidegate::Timestamp;

use super::peer::Peer;
use super::settings::{Node, micros, since_us};
use super::{Addressed, Engine};
use crate::counts::Incarnation;
use crate::ledger::Ledger;
use crate::message::{Listed, MAX_LISTED, Roster};

/// So many that have left are remembered, so that nobody takes them for members again.
const MAX_DEPARTED: usize = 1024;
/// Of those, so many are told to others.
const MAX_TOLD: usize = 32;

/// Those that have left, the last of them first.
#[derive(Debug, Default)]
pub(super) struct Departed(VecDeque<Gone>);

#[derive(Debug)]
struct Gone {
    incarnation: Incarnation,
    name: Box<str>,
    /// Whether it was only silent for too long: it may come back.
    is_forgotten: bool,
}

impl Departed {
    fn note(&mut self, incarnation: Incarnation, name: &str, is_forgotten: bool) {
        self.0.retain(|gone| gone.incarnation != incarnation);
        self.0.push_front(Gone { incarnation, name: name.into(), is_forgotten });
        self.0.truncate(MAX_DEPARTED);
    }

    fn has(&self, incarnation: Incarnation) -> bool {
        self.0.iter().any(|gone| gone.incarnation == incarnation)
    }

    /// Whoever was only forgotten is there again.
    fn remember(&mut self, incarnation: Incarnation) {
        self.0.retain(|gone| gone.incarnation != incarnation || !gone.is_forgotten);
    }

    fn left(&self) -> impl Iterator<Item = &Gone> {
        self.0.iter().filter(|gone| !gone.is_forgotten)
    }
}

impl Engine {
    /// Who is there, as the failure detector knows it. Members that are neither alive nor have left are silent; so
    /// are those that only others have told of.
    pub fn members(
        &mut self,
        ledger: &dyn Ledger,
        alive: &[Node],
        left: &[Incarnation],
        now: Timestamp,
    ) -> Vec<Addressed> {
        left.iter().for_each(|incarnation| self.left(*incarnation, now));
        for node in alive {
            self.alive(ledger, node, now);
        }
        let is_gone = |peer: &&mut Peer| {
            let is_there = alive.iter().any(|node| node.incarnation == peer.node.incarnation);
            peer.is_alive() && !is_there
        };
        let mut silent = Vec::new();
        for peer in self.peers.values_mut().filter(is_gone) {
            peer.fall_silent(now);
            silent.push(peer.node.incarnation);
        }
        silent.into_iter().for_each(|incarnation| self.relay(incarnation));
        self.forget_told();
        self.publish(now);
        self.send(now)
    }

    /// A node is there.
    fn alive(&mut self, ledger: &dyn Ledger, node: &Node, now: Timestamp) {
        self.departed.remember(node.incarnation);
        if !self.introduce(node, None, now) {
            return;
        }
        let flush = self.flush;
        let Some(peer) = self.peers.get_mut(&node.incarnation) else { return };
        if std::mem::take(&mut peer.is_hearsay) {
            peer.acknowledged = peer.acknowledged.max(flush);
        }
        let was_silent = peer.silent_since.take().is_some();
        peer.node.address = node.address;
        if was_silent || peer.outgoing.sent.epoch == 0 {
            peer.link_up();
            peer.outgoing.evict_if_full(self.settings.interval_bytes);
            // Before anything is told to it: what is charged later must not take this node for alone.
            self.publish(now);
            self.begin(ledger, node.incarnation, now);
        }
    }

    /// Makes a node a member, unless it has left. Says whether it is one.
    fn introduce(&mut self, node: &Node, silent_since: Option<Timestamp>, now: Timestamp) -> bool {
        let Node { incarnation, name, .. } = node;
        if *incarnation == self.me.incarnation || self.departed.has(*incarnation) {
            return false;
        }
        if self.peers.contains_key(incarnation) {
            return true;
        }
        let namesakes = self.peers.values().map(|peer| &peer.node).chain([&self.me]);
        let (older, newer): (Vec<_>, Vec<_>) = namesakes
            .filter(|other| other.name == *name)
            .map(|other| other.incarnation)
            .partition(|other| other < incarnation);
        if !newer.is_empty() || older.contains(&self.me.incarnation) {
            self.departed.note(*incarnation, name, false);
            return false;
        }
        older.into_iter().for_each(|other| self.left(other, now));
        // Whoever joins a cluster may not charge freely before it has heard all that was counted up to now. But whoever
        // is new to one that joins, or that has been apart, may be an old member.
        let is_joiner = self.is_settled && self.majority_since.is_some();
        let acknowledged = if is_joiner { self.flush } else { 0 };
        let mut peer = Peer::new(node.clone(), silent_since, acknowledged);
        peer.is_hearsay = is_joiner && silent_since.is_some();
        self.peers.insert(*incarnation, peer);
        self.roster += 1;
        true
    }

    /// A node counts no more.
    pub(super) fn left(&mut self, incarnation: Incarnation, now: Timestamp) {
        self.remove(incarnation, false, now);
    }

    /// Those that have been silent for so long that nobody waits for them any more count no more, either.
    pub(super) fn forget_silent(&mut self, now: Timestamp) {
        let after_us = micros(self.settings.forget_after);
        let is_forgotten =
            |peer: &&Peer| peer.silent_since.is_some_and(|since| since_us(since, now) > after_us);
        let forgotten = self.peers.values().filter(is_forgotten);
        let forgotten: Vec<Incarnation> = forgotten.map(|peer| peer.node.incarnation).collect();
        forgotten.into_iter().for_each(|incarnation| self.remove(incarnation, true, now));
    }

    fn remove(&mut self, incarnation: Incarnation, is_forgotten: bool, now: Timestamp) {
        if let Some(peer) = self.peers.remove(&incarnation) {
            self.departed.note(incarnation, &peer.node.name, is_forgotten);
            self.roster += 1;
            self.relay(incarnation);
            self.forget_told();
            self.publish(now);
        }
    }

    /// Takes in whom a member counts.
    pub(super) fn take_roster(&mut self, from: Incarnation, roster: Roster, now: Timestamp) {
        if let Some(peer) = self.peers.get_mut(&from) {
            if roster.is_settled && !peer.is_settled && !peer.has_acknowledged {
                // It charges freely although it has not heard of us: another cluster meets this one.
                peer.acknowledged = peer.arrived;
            }
            peer.is_settled = roster.is_settled;
        }
        for Listed { incarnation, name, has_left } in roster.listed {
            if has_left && incarnation != self.me.incarnation {
                self.left(incarnation, now);
                self.departed.note(incarnation, &name, false);
            } else if !has_left && self.peers.len() < MAX_LISTED {
                let node = Node { incarnation, name: (*name).into(), address: None };
                self.introduce(&node, Some(now), now);
            }
        }
    }

    /// Who is there, for others.
    pub(super) fn roster(&self) -> Roster {
        let listed = |incarnation: Incarnation, name: &str, has_left: bool| Listed {
            incarnation,
            name: name.into(),
            has_left,
        };
        let nodes = self.peers.values().map(|peer| &peer.node).chain([&self.me]);
        let members = nodes.map(|node| listed(node.incarnation, &node.name, false));
        let departed = self.departed.left().take(MAX_TOLD);
        let departed = departed.map(|gone| listed(gone.incarnation, &gone.name, true));
        Roster { is_settled: self.is_settled, listed: members.chain(departed).collect() }
    }

    /// Finds out whether a settled member has told all that it knows, so that this node knows who is there; and whether
    /// all members know of this one, or a majority while the others are silent: from then on it may
    /// be counted on in a partition.
    pub(super) fn settle(&mut self) {
        self.is_joining &= !self.peers.values().any(Peer::knows_the_cluster);
        if self.is_settled || self.is_joining {
            return;
        }
        let has_acknowledged = |peer: &&Peer| peer.has_acknowledged;
        let all = self.peers.values().all(|peer| peer.has_acknowledged);
        let voters = self.peers.values().filter(has_acknowledged).filter(|peer| peer.is_voter());
        if all || voters.count() * 2 > self.peers.len() + 1 {
            self.is_settled = true;
            self.roster += 1;
        }
    }

    /// Whether this node and the voters that it hears are more than half of all members, or of an even split the half
    /// with the smallest name.
    pub(super) fn is_majority(&self) -> bool {
        let me = self.is_settled.then_some(&self.me.name);
        let others = self.peers.values().filter(|peer| peer.is_voter());
        let voters: Vec<_> = others.map(|peer| &peer.node.name).chain(me).collect();
        let all = self.peers.values().map(|peer| &peer.node.name).chain([&self.me.name]);
        match (2 * voters.len()).cmp(&(self.peers.len() + 1)) {
            std::cmp::Ordering::Less => false,
            std::cmp::Ordering::Equal => voters.iter().min() == all.min().as_ref(),
            std::cmp::Ordering::Greater => true,
        }
    }
}

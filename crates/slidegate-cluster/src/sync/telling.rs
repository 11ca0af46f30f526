//! What is told, and when.

use std::sync::Arc;

use slidegate::Timestamp;

use super::outgoing::Waiting;
use super::peer::Peer;
use super::settings::{micros, since_us};
use super::{Addressed, Engine, SHORTEST_STUCK_US};
use crate::counts::{Incarnation, Told};
use crate::ledger::{Flush, Ledger};
use crate::message::{Bodies, Body, ack_frame};

/// Bytes that a changed key is taken to need, when it is reckoned how many have room.
const BYTES_PER_KEY: usize = 16;

/// The times of so many flushes are kept, for the lag of members.
const MAX_TOLD_AT: usize = 4096;

/// Tallies that are passed on in an interval, at most.
const MAX_PASSED_ON: usize = 16_384;

/// So many incarnations are remembered whose counts were told to all, or wait for it.
const MAX_RELAYED: usize = 64;

impl Engine {
    /// Tells all members that are alive what has changed here.
    pub(super) fn tell_changed(&mut self, ledger: &dyn Ledger, now: Timestamp) {
        let most_keys = self.flush_room / BYTES_PER_KEY;
        if most_keys == 0 || !self.peers.values().any(Peer::is_alive) {
            return;
        }
        let mut told = Vec::new();
        ledger.take_changed(self.flush + 1, most_keys, &mut told);
        let bodies = Body::of(&told);
        let bytes: usize = bodies.iter().map(Body::frame_bytes).sum();
        self.flush_room = self.flush_room.saturating_sub(bytes);
        self.tell_all(bodies, &[], now);
    }

    /// Tells all that are alive what those have counted that count no more, so that they agree on it.
    pub(super) fn tell_relayed(&mut self, ledger: &dyn Ledger, now: Timestamp) {
        for incarnation in std::mem::take(&mut self.to_relay) {
            let mut bodies = Bodies::default();
            ledger.of(incarnation, now, &mut |told| bodies.push(&told));
            self.tell_all(bodies.end(), &[incarnation], now);
        }
        let passed_on = std::mem::take(&mut self.to_pass_on);
        let mut of: Vec<Incarnation> = passed_on.iter().map(|told| told.incarnation).collect();
        of.sort_unstable();
        of.dedup();
        self.tell_all(Body::of(&passed_on), &of, now);
    }

    /// Has what came from one that is no member here, or silent, passed on at the next tick: others may not hear it.
    pub(super) fn pass_on(&mut self, tallies: &[Told]) {
        for told in tallies {
            let is_alive = self.peers.get(&told.incarnation).is_some_and(Peer::is_alive);
            if !is_alive && self.to_pass_on.len() < MAX_PASSED_ON {
                self.to_pass_on.push(*told);
            } else if !is_alive {
                self.relay(told.incarnation);
            }
        }
    }

    /// Has the counts of an incarnation told to all at the next tick.
    pub(super) fn relay(&mut self, incarnation: Incarnation) {
        if !self.to_relay.contains(&incarnation) && self.to_relay.len() < MAX_RELAYED {
            self.to_relay.push(incarnation);
        }
    }

    /// Adds to the stream of each member that is alive, as one flush: counts of this node, or of others.
    fn tell_all(&mut self, bodies: Vec<Body>, of: &[Incarnation], now: Timestamp) {
        if bodies.is_empty() {
            return;
        }
        let before = self.flush;
        self.flush += 1;
        self.note_told(of, now);
        let last = bodies.len() - 1;
        let bodies: Vec<Arc<Body>> = bodies.into_iter().map(Arc::new).collect();
        for peer in self.peers.values_mut().filter(|peer| peer.is_alive()) {
            for (nth, body) in bodies.iter().enumerate() {
                let covers = if nth == last { self.flush } else { before };
                peer.outgoing.push(body, covers);
            }
        }
    }

    fn note_told(&mut self, of: &[Incarnation], now: Timestamp) {
        self.told_at.insert(self.flush, now);
        if self.told_at.len() > MAX_TOLD_AT {
            self.told_at.pop_first();
        }
        self.relayed.retain(|(incarnation, _)| !of.contains(incarnation));
        self.relayed.extend(of.iter().map(|incarnation| (*incarnation, self.flush)));
        let too_many = self.relayed.len().saturating_sub(MAX_RELAYED);
        self.relayed.drain(..too_many);
    }

    /// Forgets about flushes that have arrived everywhere.
    pub(super) fn forget_told(&mut self) {
        let alive = self.peers.values().filter(|peer| peer.is_alive());
        let arrived = alive.map(|peer| peer.arrived).min().unwrap_or(Flush::MAX);
        self.relayed.retain(|(_, flush)| *flush > arrived);
        let waited_for = self.peers.values().filter(|peer| !peer.is_hearsay);
        let all = waited_for.map(|peer| peer.acknowledged);
        let acknowledged = all.min().unwrap_or(Flush::MAX);
        self.told_at = self.told_at.split_off(&acknowledged.saturating_add(1));
    }

    /// Begins the streams anew in which nothing arrives any more.
    pub(super) fn begin_stuck_anew(&mut self, ledger: &dyn Ledger, now: Timestamp) {
        let after_us = (2 * micros(self.settings.interval)).max(SHORTEST_STUCK_US);
        let peers = self.peers.values_mut().filter(|peer| peer.is_alive());
        let stuck = peers.filter_map(|peer| {
            let is_stuck = peer.is_stuck(now, after_us);
            is_stuck.then_some(peer.node.incarnation)
        });
        for incarnation in stuck.collect::<Vec<_>>() {
            self.begin(ledger, incarnation, now);
        }
    }

    /// Begins the stream to a peer anew: with what has changed since that flush which has arrived there, or with
    /// all that is known, and then the roster.
    pub(super) fn begin(&mut self, ledger: &dyn Ledger, to: Incarnation, now: Timestamp) {
        let roster = Body::of_roster(&self.roster(), true);
        let Some(peer) = self.peers.get_mut(&to) else { return };
        let mut bodies = Bodies::default();
        let mut tell = |told: Told| {
            if told.incarnation != to {
                bodies.push(&told);
            }
        };
        ledger.changed_since(peer.arrived, peer.owes_all, now, &mut tell);
        if !peer.owes_all {
            let missed = self.relayed.iter().filter(|(_, flush)| *flush > peer.arrived);
            missed.for_each(|(incarnation, _)| ledger.of(*incarnation, now, &mut tell));
        }
        let covers = peer.arrived;
        let tallies = bodies.end().into_iter();
        let tallies = tallies.map(|body| Waiting { body: Arc::new(body), covers });
        let end = Waiting { body: Arc::new(roster), covers: self.flush };
        self.epoch += 1;
        peer.outgoing.begin(self.epoch, tallies.chain([end]).collect());
        peer.roster_told = self.roster;
    }

    /// Sends what there is to send and room for, acknowledgements at last.
    pub(super) fn send(&mut self, now: Timestamp) -> Vec<Addressed> {
        self.tell_roster();
        let mut frames = Vec::new();
        for (to, peer) in self.peers.iter_mut().filter(|(_, peer)| peer.is_alive()) {
            while let Some(frame) = peer.outgoing.next_frame(now) {
                peer.sent.note(frame.len());
                frames.push((*to, frame));
            }
            if let Some(ack) = peer.take_owed_ack() {
                let frame = ack_frame(&ack);
                peer.sent.note(frame.len());
                frames.push((*to, frame));
            }
        }
        frames
    }

    /// Tells a roster that has changed.
    fn tell_roster(&mut self) {
        let is_told = |roster_told: u64| roster_told == self.roster;
        if self.peers.values().all(|peer| is_told(peer.roster_told) || !peer.is_alive()) {
            return;
        }
        let body = Arc::new(Body::of_roster(&self.roster(), false));
        for peer in self.peers.values_mut().filter(|peer| peer.is_alive()) {
            if peer.roster_told != self.roster {
                peer.roster_told = self.roster;
                peer.outgoing.push(&body, self.flush);
            }
        }
    }

    /// How long ago the oldest flush was told that a member has not acknowledged, in microseconds.
    pub(super) fn lag_us(&self, acknowledged: Flush, now: Timestamp) -> u64 {
        let oldest = self.told_at.range(acknowledged + 1..).next();
        oldest.map_or(0, |(_, told_at)| since_us(*told_at, now))
    }
}

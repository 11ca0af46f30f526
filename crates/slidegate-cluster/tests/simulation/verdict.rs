//! Whether the bound held, and whether all agree.

use std::collections::BTreeMap;

use slidegate::testkit::oracle::Oracle;
use slidegate::{Algorithm, Limit, Timestamp};
use slidegate_cluster::bound;
use slidegate_cluster::pn_counter::Incarnation;

/// One charge that was allowed.
#[derive(Clone, Copy, Debug)]
pub struct Charged {
    /// By the clock of the node.
    pub date_us: u64,
    /// By the clock of the simulation.
    pub at_us: u64,
    pub units: u64,
    pub by: Incarnation,
    /// Units that the node might have had unacknowledged then.
    pub most_unsynced: u64,
    pub is_given_back: bool,
}

/// What happened in runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub runs: u64,
    pub allowed: u64,
    pub denied: u64,
    /// Requests that waited for others.
    pub unsynced: u64,
    pub frames: u64,
    pub restarts: u64,
    pub left: u64,
    pub partitions: u64,
    /// Times that a node went on without a member that had been silent for too long.
    pub went_on_without: u64,
    /// Units that were charged after the last reset or refund, and therefore must be counted at the end.
    pub counted_after: u64,
    /// Tallies that were compared in the end.
    pub agreed_on: u64,
    /// Runs in which a window held more than one node alone would have let in.
    pub overshot: u64,
    /// The most that was let in, of a thousand of the bound.
    pub nearest_to_bound: u64,
}

impl Seen {
    pub fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.allowed += other.allowed;
        self.denied += other.denied;
        self.unsynced += other.unsynced;
        self.frames += other.frames;
        self.restarts += other.restarts;
        self.left += other.left;
        self.partitions += other.partitions;
        self.went_on_without += other.went_on_without;
        self.counted_after += other.counted_after;
        self.agreed_on += other.agreed_on;
        self.overshot += other.overshot;
        self.nearest_to_bound = self.nearest_to_bound.max(other.nearest_to_bound);
    }

    /// A thousand runs in which nothing went wrong would hold nothing true.
    pub fn assert_that_it_was_rough(&self) {
        assert!(self.allowed > 100 * self.runs && self.denied > 100 * self.runs, "{self:?}");
        assert!(self.unsynced > self.runs && self.restarts > self.runs, "{self:?}");
        assert!(self.left > self.runs / 10 && self.partitions > self.runs, "{self:?}");
        assert!(self.went_on_without > self.runs / 10 && self.agreed_on > self.runs, "{self:?}");
        assert!(self.counted_after > self.runs / 4, "{self:?}");
        assert!(self.overshot > self.runs / 20 && self.nearest_to_bound > 800, "{self:?}");
    }
}

/// What nodes had charged on one key in one window.
#[derive(Default)]
struct Inside {
    units: u64,
    /// Of each incarnation, the most that others may not have known.
    unseen: BTreeMap<Incarnation, u64>,
}

/// Holds the charges on a key against the bound.
pub fn hold_bound(limit: &Limit, charges: &[Charged], seen: &mut Seen) -> Result<(), String> {
    let mut kept: Vec<&Charged> = charges.iter().filter(|charged| !charged.is_given_back).collect();
    kept.sort_by_key(|charged| charged.date_us);
    let window_us = limit.quota().window().as_micros() as u64;
    let promise = bound::max_units_in_window(limit, 1, 0, 0);
    let mut most = 0;
    for (nth, last) in kept.iter().enumerate() {
        let is_last_of_its_moment =
            kept.get(nth + 1).is_none_or(|next| next.date_us > last.date_us);
        if !is_last_of_its_moment {
            continue;
        }
        let inside = within(&kept[..=nth], last.date_us, window_us);
        let bound = bound_of(limit, &inside.unseen);
        most = most.max(inside.units);
        seen.nearest_to_bound = seen.nearest_to_bound.max(inside.units * 1_000 / bound.max(1));
        if inside.units > bound {
            let Inside { units, unseen } = inside;
            let end = last.date_us;
            return Err(format!(
                "{units} units in the window that ends at {end}, at most {bound}: {unseen:?}"
            ));
        }
    }
    if kept.len() < 300 {
        assert_eq!(most, by_the_oracle(limit, &kept), "the oracle knows better");
    }
    seen.overshot = seen.overshot.max(u64::from(most > promise));
    Ok(())
}

/// The charges in the window that ends with the last of them.
fn within(charges: &[&Charged], end_us: u64, window_us: u64) -> Inside {
    let mut inside = Inside::default();
    for charged in charges.iter().rev().take_while(|charged| charged.date_us + window_us > end_us) {
        inside.units += charged.units;
        let unseen = inside.unseen.entry(charged.by).or_default();
        *unseen = (*unseen).max(charged.most_unsynced).max(charged.units);
    }
    inside
}

/// The documented bound, where each node may have had another number of unacknowledged units.
fn bound_of(limit: &Limit, unseen: &BTreeMap<Incarnation, u64>) -> u64 {
    let mut unseen: Vec<u64> = unseen.values().copied().collect();
    unseen.sort_unstable();
    let of_others = unseen.iter().skip(1).map(|units| bound::overshoot_bound(limit, 2, *units, 0));
    bound::max_units_in_window(limit, 1, 0, 0) + of_others.sum::<u64>()
}

fn by_the_oracle(limit: &Limit, charges: &[&Charged]) -> u64 {
    let mut oracle = Oracle::default();
    for charged in charges {
        oracle.charge(Timestamp::from_micros(charged.date_us), charged.units);
    }
    oracle.max_units_in_any_window(limit.quota().window())
}

/// Holds each window of a fixed window by itself against its bound, which is stricter than that of any window.
pub fn hold_fixed(limit: &Limit, charges: &[Charged], ahead_us: u64) -> Result<(), String> {
    if !matches!(limit.algorithm(), Algorithm::FixedWindow { .. }) {
        return Ok(());
    }
    let window_us = limit.quota().window().as_micros() as u64;
    let mut windows: BTreeMap<u64, Inside> = BTreeMap::new();
    for charged in charges.iter().filter(|charged| !charged.is_given_back) {
        let inside = windows.entry((charged.date_us + ahead_us) / window_us).or_default();
        inside.units += charged.units;
        let unseen = inside.unseen.entry(charged.by).or_default();
        *unseen = (*unseen).max(charged.most_unsynced).max(charged.units);
    }
    for (window, Inside { units, unseen }) in windows {
        let mut of_each: Vec<u64> = unseen.values().copied().collect();
        of_each.sort_unstable();
        let bound = limit.quota().max() + of_each.iter().skip(1).sum::<u64>();
        if units > bound {
            return Err(format!(
                "{units} units in fixed window {window}, at most {bound}: {unseen:?}"
            ));
        }
    }
    Ok(())
}

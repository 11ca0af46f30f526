//! Decides requests, one step each.

use std::time::Duration;

use slidegate::algorithm::additive::AnyAdditive;
use slidegate::store::table::Slot;
use slidegate::store::{
    Charge, ChargeResult, CounterId, Outcomes, Receipt, admits, is_charged, pending_units,
};
use slidegate::{Hit, Outcome, StoreError, Timestamp, Veto};
use smallvec::SmallVec;

use super::{Counters, HasTable, HitLocation, Hot, KindId, LockedShards, Shard, shard_of_held};
use crate::book::Book;
use crate::overshoot::Over;
use crate::terms::Terms;

/// What became of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Attempt {
    /// It is decided.
    Decided(ChargeResult),
    /// It fits, but too much of what was charged before has not been acknowledged by every member. Nothing was
    /// charged. It may be tried again once they have answered.
    Unsynced,
}

/// What becomes of a request that fits, but of whose keys too much has not been acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtCap {
    /// It may be tried again.
    Wait,
    /// It is denied.
    Deny,
}

/// The present, as one request sees it.
#[derive(Clone, Copy)]
struct View {
    now: Timestamp,
    /// Looked at while the shards are held: what is charged before somebody joins is in what he is told.
    is_alone: bool,
    at_cap: AtCap,
}

/// A hit, the units that must be free, and the present on its counter's own clock.
#[derive(Clone, Copy)]
struct Ask<'a> {
    hit: &'a Hit<'a>,
    required: u64,
    now: Timestamp,
}

impl Counters {
    /// Takes the hits of one request, if none denies it and enough of what was charged here before is known to the
    /// others.
    ///
    /// # Errors
    /// If one of the limits cannot be counted by several nodes.
    #[inline(always)]
    pub fn take(
        &self,
        hits: &[Hit<'_>],
        now: Timestamp,
        at_cap: AtCap,
    ) -> Result<Attempt, StoreError> {
        if let [hit] = hits {
            let location = self.location(hit)?;
            let shard = &mut *self.shards[location.shard].0.lock();
            self.sweep_now_and_then(shard, now);
            let view = View { now, is_alone: self.progress.is_alone(), at_cap };
            return with_counter!(location.counter, counter => {
                self.decide_one(shard, counter, hit, location, view)
            });
        }
        self.take_several(hits, now, at_cap)
    }

    fn take_several(
        &self,
        hits: &[Hit<'_>],
        now: Timestamp,
        at_cap: AtCap,
    ) -> Result<Attempt, StoreError> {
        let locations = self.locations(hits)?;
        let mut held = self.lock(&locations);
        for (_, shard) in &mut held {
            self.sweep_now_and_then(shard, now);
        }
        let view = View { now, is_alone: self.progress.is_alone(), at_cap };
        self.decide(&mut held, hits, &locations, view)
    }

    /// The commonest request, of one hit: one look-up.
    #[inline(always)]
    fn decide_one<C: HasTable>(
        &self,
        shard: &mut Shard,
        counter: C,
        hit: &Hit<'_>,
        location: HitLocation,
        view: View,
    ) -> Result<Attempt, StoreError> {
        let ask = Ask { hit, required: hit.required, now: location.own(view.now) };
        let slot = self.find(shard, counter, hit, location, view.now)?;
        let (mut outcome, is_capped) = self.look(shard, counter, slot, location, ask, view);
        if is_capped {
            if view.at_cap == AtCap::Wait {
                return Ok(Attempt::Unsynced);
            }
            outcome = self.at_cap(shard, location, ask, &outcome, view);
        }
        let allowed = outcome.fits() || hit.veto == Veto::Never;
        let receipt = match is_charged(hit, allowed, &outcome) {
            true => {
                let charge =
                    self.charge(shard, counter, slot, location, (hit, &mut outcome), view)?;
                Receipt { charges: SmallVec::from_buf([charge]) }
            }
            false => Receipt::default(),
        };
        let outcomes = Outcomes::from_buf_and_len([outcome; 2], 1);
        Ok(Attempt::Decided(ChargeResult { allowed, outcomes, receipt }))
    }

    /// Decides one request whose shards are held.
    fn decide(
        &self,
        held: &mut LockedShards<'_>,
        hits: &[Hit<'_>],
        locations: &[HitLocation],
        view: View,
    ) -> Result<Attempt, StoreError> {
        let (mut outcomes, capped) = self.look_all(held, hits, locations, view)?;
        if !capped.is_empty() && admits(hits, &outcomes) {
            if view.at_cap == AtCap::Wait {
                return Ok(Attempt::Unsynced);
            }
            for (nth, outcome) in capped {
                outcomes[nth] = outcome;
            }
        }
        let allowed = admits(hits, &outcomes);
        let mut receipt = Receipt::default();
        for ((hit, location), outcome) in hits.iter().zip(locations).zip(&mut outcomes) {
            if is_charged(hit, allowed, outcome) {
                let shard = shard_of_held(held, location);
                receipt.charges.push(with_counter!(location.counter, counter => {
                    let slot = self.find(shard, counter, hit, *location, view.now)?;
                    self.charge(shard, counter, slot, *location, (hit, outcome), view)?
                }));
            }
        }
        Ok(Attempt::Decided(ChargeResult { allowed, outcomes, receipt }))
    }

    /// How each hit would fare by the counts, if those before it were charged; and which of them may yet not be
    /// charged, with what they are told.
    #[expect(clippy::type_complexity, reason = "both are lists by place")]
    fn look_all(
        &self,
        held: &mut LockedShards<'_>,
        hits: &[Hit<'_>],
        locations: &[HitLocation],
        view: View,
    ) -> Result<(Outcomes, SmallVec<[(usize, Outcome); 1]>), StoreError> {
        let mut outcomes = Outcomes::with_capacity(hits.len());
        let mut capped = SmallVec::new();
        for (nth, (hit, location)) in hits.iter().zip(locations).enumerate() {
            let is_same = |earlier: usize| locations[earlier].fingerprint == location.fingerprint;
            let pending = pending_units(&hits[..nth], &outcomes, is_same);
            let required = hit.required.saturating_add(pending);
            let ask = Ask { hit, required, now: location.own(view.now) };
            let shard = shard_of_held(held, location);
            let (outcome, is_capped) = with_counter!(location.counter, counter => {
                let slot = self.find(shard, counter, hit, *location, view.now)?;
                self.look(shard, counter, slot, *location, ask, view)
            });
            if is_capped {
                capped.push((nth, self.at_cap(shard, *location, ask, &outcome, view)));
            }
            outcomes.push(outcome);
        }
        Ok((outcomes, capped))
    }

    /// What [`take`](Self::take) would find by the counts.
    ///
    /// # Errors
    /// As there.
    pub fn peek(&self, hits: &[Hit<'_>], now: Timestamp) -> Result<Outcomes, StoreError> {
        let locations = self.locations(hits)?;
        let view = View { now, is_alone: true, at_cap: AtCap::Deny };
        Ok(self.look_all(&mut self.lock(&locations), hits, &locations, view)?.0)
    }

    /// Where a key's state is; made if others have told of it.
    #[inline(always)]
    pub(super) fn find<C: HasTable>(
        &self,
        shard: &mut Shard,
        _: C,
        hit: &Hit<'_>,
        location: HitLocation,
        now: Timestamp,
    ) -> Result<Option<usize>, StoreError> {
        let slot = C::table(&mut shard.states).find(location.fingerprint);
        if slot.is_none()
            && !shard.books.is_empty()
            && shard.books.get(location.fingerprint).is_some()
        {
            let kind = self.kinds.of(hit, location.counter)?;
            return Ok(Some(self.insert::<C>(shard, location.fingerprint, kind, now)));
        }
        Ok(slot)
    }

    /// How a hit would fare by the counts, and whether it may yet not be charged because the others do not know
    /// enough of what was.
    #[inline(always)]
    fn look<C: HasTable>(
        &self,
        shard: &mut Shard,
        counter: C,
        slot: Option<usize>,
        location: HitLocation,
        ask: Ask<'_>,
        view: View,
    ) -> (Outcome, bool) {
        let Some(slot) = slot else {
            return (counter.peek(&C::State::default(), ask.now, ask.required), false);
        };
        if C::table(&mut shard.states).slot(slot).state.asks_book {
            self.read_book(shard, counter, slot, location, ask);
        }
        let hot = &mut C::table(&mut shard.states).slot_mut(slot).state;
        let outcome = counter.peek(&hot.state, ask.now, ask.required);
        let is_capped = hot.unsynced > 0
            && outcome.fits()
            && !view.is_alone
            && ask.hit.veto != Veto::Never
            && !Terms::of(ask.hit).allows(
                ask.required.max(1).saturating_add(hot.unsynced.into()),
                self.progress.nodes(),
            )
            && self.is_capped(shard, counter, slot, location, ask, view);
        (outcome, is_capped)
    }

    /// Makes the state anew of all that is known, if there is more than what stands in it.
    #[cold]
    fn read_book<C: HasTable>(
        &self,
        shard: &mut Shard,
        counter: C,
        slot: usize,
        location: HitLocation,
        ask: Ask<'_>,
    ) {
        let hot = &mut C::table(&mut shard.states).slot_mut(slot).state;
        let Some(book) = shard.books.get(location.fingerprint) else {
            hot.asks_book = false;
            return;
        };
        if !book.is_news() && !book.has_future_come(ask.now) {
            return;
        }
        book.enter(counter, &hot.state);
        let last = counter.last_charged_at(&hot.state).max(ask.now);
        let gathered = book.gather(counter, last);
        let asks_book = book.has_future();
        let table = C::table(&mut shard.states);
        let (_, grown) = table.update(slot, |slot| {
            slot.state.state = gathered;
            slot.state.asks_book = asks_book;
        });
        self.count_states(grown);
        let hot = &table.slot(slot).state;
        let max = ask.hit.limit.capacity();
        let units = counter.used(&hot.state, ask.now).saturating_sub(max);
        let over = Over { bucket: counter.current_bucket(&hot.state), units, max };
        if let Some(ended) = book.note_over(over) {
            self.overshoot.note(&ended);
        }
    }

    /// Looks closer how much the others do not know.
    #[cold]
    fn is_capped<C: HasTable>(
        &self,
        shard: &mut Shard,
        counter: C,
        slot: usize,
        location: HitLocation,
        ask: Ask<'_>,
        view: View,
    ) -> bool {
        let terms = Terms::of(ask.hit);
        let hot = &mut C::table(&mut shard.states).slot_mut(slot).state;
        let book = shard.books.of(location.fingerprint, || Book::new(counter.layout()));
        book.enter(counter, &hot.state);
        let progress = self.progress.load();
        let span_us = counter.layout().lifetime_us();
        book.note_acknowledged(progress.acknowledged(view.now, span_us, terms.on_partition()));
        let unsynced = book.unsynced(ask.now);
        hot.unsynced = u32::try_from(unsynced).unwrap_or(u32::MAX);
        unsynced > 0 && !terms.allows(ask.required.max(1).saturating_add(unsynced), progress.nodes)
    }

    /// Charges the state in a slot, made if there is none; the outcome then says how its counter stands after it.
    #[inline(always)]
    fn charge<C: HasTable>(
        &self,
        shard: &mut Shard,
        counter: C,
        slot: Option<usize>,
        location: HitLocation,
        (hit, outcome): (&Hit<'_>, &mut Outcome),
        view: View,
    ) -> Result<Charge, StoreError> {
        let now = location.own(view.now);
        let slot = match slot {
            Some(slot) => {
                self.keep_rolled(shard, counter, slot, location, now);
                slot
            }
            None => {
                let kind = self.kinds.of(hit, location.counter)?;
                self.insert::<C>(shard, location.fingerprint, kind, view.now)
            }
        };
        if !view.is_alone {
            note_charge::<C>(shard, slot, location, hit.cost);
        }
        let (charged, grown) = C::table(&mut shard.states).update(slot, |slot| {
            let charged = counter.charge(&mut slot.state.state, now, hit.cost);
            self.date(slot, &charged.outcome, view.now);
            charged
        });
        if grown != 0 {
            self.count_growth::<C>(shard, location.fingerprint, grown, view.now);
        }
        *outcome = charged.outcome.charged_after(outcome);
        let counter = CounterId::Fingerprint(location.fingerprint);
        Ok(Charge { counter, limit: *hit.limit, charged_at: charged.charged_at, cost: hit.cost })
    }

    /// Enters what was charged to a state that is about to be charged in a later bucket, and so forgets an earlier one:
    /// that may still count where a clock is behind.
    #[inline(always)]
    fn keep_rolled<C: HasTable>(
        &self,
        shard: &mut Shard,
        counter: C,
        slot: usize,
        location: HitLocation,
        now: Timestamp,
    ) {
        let state = &C::table(&mut shard.states).slot(slot).state.state;
        let (running, bucket_us) = (counter.current_bucket(state), counter.layout().bucket_us);
        let (ends_us, now_us) = ((running + 1).saturating_mul(bucket_us), now.as_micros());
        if now_us >= ends_us {
            let leaves_us = counter.layout().bucket_expires_us(running);
            if leaves_us.saturating_add(self.max_clock_skew_us) > now_us {
                Self::enter(shard, counter, location.fingerprint);
            }
        }
    }

    /// Notes when a key expires, and until when it is denied.
    #[inline]
    fn date<S>(&self, slot: &mut Slot<Hot<S>>, after: &Outcome, now: Timestamp) {
        let coarse = |us: u64| self.coarse(now.as_micros().saturating_add(us)).saturating_add(1);
        let expires = coarse(after.reset_after_us().saturating_add(self.max_clock_skew_us));
        slot.expires = expires.max(slot.expires);
        slot.denied_until = match after.fits() {
            true => 0,
            false => coarse(after.retry_after_us().min(after.reset_after_us())),
        };
    }

    /// What a hit is told that may not be charged because the others have not acknowledged enough.
    #[cold]
    fn at_cap(
        &self,
        shard: &mut Shard,
        location: HitLocation,
        ask: Ask<'_>,
        outcome: &Outcome,
        view: View,
    ) -> Outcome {
        let progress = self.progress.load();
        let most = Terms::of(ask.hit).max_unsynced(progress.nodes);
        let cost = ask.required.max(1);
        let (mut room, mut wait) = (0, self.sync_interval);
        if let Some(book) = shard.books.get(location.fingerprint) {
            room = most.saturating_sub(book.unsynced(ask.now)).min(cost - 1);
            let left =
                Duration::from_micros(book.syncs_by_time_us(most.saturating_sub(cost), ask.now));
            wait = if progress.has_silent() { left } else { left.min(wait) };
        }
        debug_assert!(!view.is_alone);
        let remaining = u32::try_from(room.min(outcome.remaining())).unwrap_or(u32::MAX);
        Outcome::new(remaining, outcome.reset_after(), Some(wait.max(Duration::from_micros(1))))
    }
}

/// Notes that a key is about to be charged: something is to be told of it, and not all know of it.
#[inline(always)]
fn note_charge<C: HasTable>(shard: &mut Shard, slot: usize, location: HitLocation, cost: u64) {
    let hot = &mut C::table(&mut shard.states).slot_mut(slot).state;
    hot.unsynced = hot.unsynced.saturating_add(u32::try_from(cost).unwrap_or(u32::MAX));
    if !hot.is_changed {
        hot.is_changed = true;
        let kind: KindId = hot.kind;
        shard.books.push_changed(location.fingerprint, kind);
    }
}

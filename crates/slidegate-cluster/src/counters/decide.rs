//! Decides requests, one step each.

use std::time::Duration;

use slidegate::algorithm::additive::AnyAdditive;
use slidegate::store::table::Slot;
use slidegate::store::{
    Charge, CounterName, Outcomes, Receipt, Taken, admits, is_charged, pending,
};
use slidegate::{Hit, Outcome, StoreError, Timestamp, Veto};
use smallvec::SmallVec;

use super::{Aim, Counters, Held, Hot, Kept, KindId, Shard, shard_of_held};
use crate::book::Book;
use crate::overshoot::Over;
use crate::terms::Terms;

/// What became of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Attempt {
    /// It is decided.
    Decided(Taken),
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
            let aim = self.aim(hit)?;
            let shard = &mut *self.shards[aim.shard].0.lock();
            self.sweep_now_and_then(shard, now);
            let view = View { now, is_alone: self.progress.is_alone(), at_cap };
            return with_counter!(aim.counter, counter => {
                self.decide_one(shard, counter, hit, aim, view)
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
        let aims = self.aims(hits)?;
        let mut held = self.lock(&aims);
        for (_, shard) in &mut held {
            self.sweep_now_and_then(shard, now);
        }
        let view = View { now, is_alone: self.progress.is_alone(), at_cap };
        self.decide(&mut held, hits, &aims, view)
    }

    /// The commonest request, of one hit: one look-up.
    #[inline(always)]
    fn decide_one<C: Kept>(
        &self,
        shard: &mut Shard,
        counter: C,
        hit: &Hit<'_>,
        aim: Aim,
        view: View,
    ) -> Result<Attempt, StoreError> {
        let ask = Ask { hit, required: hit.required, now: aim.own(view.now) };
        let slot = self.find(shard, counter, hit, aim, view.now)?;
        let (mut outcome, is_capped) = self.look(shard, counter, slot, aim, ask, view);
        if is_capped {
            if view.at_cap == AtCap::Wait {
                return Ok(Attempt::Unsynced);
            }
            outcome = self.at_cap(shard, aim, ask, &outcome, view);
        }
        let allowed = outcome.fits() || hit.veto == Veto::Never;
        let receipt = match is_charged(hit, allowed, &outcome) {
            true => {
                let charge = self.charge(shard, counter, slot, aim, (hit, &mut outcome), view)?;
                Receipt { charges: SmallVec::from_buf([charge]) }
            }
            false => Receipt::default(),
        };
        let outcomes = Outcomes::from_buf_and_len([outcome; 2], 1);
        Ok(Attempt::Decided(Taken { allowed, outcomes, receipt }))
    }

    /// Decides one request whose shards are held.
    fn decide(
        &self,
        held: &mut Held<'_>,
        hits: &[Hit<'_>],
        aims: &[Aim],
        view: View,
    ) -> Result<Attempt, StoreError> {
        let (mut outcomes, capped) = self.look_all(held, hits, aims, view)?;
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
        for ((hit, aim), outcome) in hits.iter().zip(aims).zip(&mut outcomes) {
            if is_charged(hit, allowed, outcome) {
                let shard = shard_of_held(held, aim);
                receipt.charges.push(with_counter!(aim.counter, counter => {
                    let slot = self.find(shard, counter, hit, *aim, view.now)?;
                    self.charge(shard, counter, slot, *aim, (hit, outcome), view)?
                }));
            }
        }
        Ok(Attempt::Decided(Taken { allowed, outcomes, receipt }))
    }

    /// How each hit would fare by the counts, if those before it were charged; and which of them may yet not be
    /// charged, with what they are told.
    #[expect(clippy::type_complexity, reason = "both are lists by place")]
    fn look_all(
        &self,
        held: &mut Held<'_>,
        hits: &[Hit<'_>],
        aims: &[Aim],
        view: View,
    ) -> Result<(Outcomes, SmallVec<[(usize, Outcome); 1]>), StoreError> {
        let mut outcomes = Outcomes::with_capacity(hits.len());
        let mut capped = SmallVec::new();
        for (nth, (hit, aim)) in hits.iter().zip(aims).enumerate() {
            let is_same = |earlier: usize| aims[earlier].fingerprint == aim.fingerprint;
            let pending = pending(&hits[..nth], &outcomes, is_same);
            let required = hit.required.saturating_add(pending);
            let ask = Ask { hit, required, now: aim.own(view.now) };
            let shard = shard_of_held(held, aim);
            let (outcome, is_capped) = with_counter!(aim.counter, counter => {
                let slot = self.find(shard, counter, hit, *aim, view.now)?;
                self.look(shard, counter, slot, *aim, ask, view)
            });
            if is_capped {
                capped.push((nth, self.at_cap(shard, *aim, ask, &outcome, view)));
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
        let aims = self.aims(hits)?;
        let view = View { now, is_alone: true, at_cap: AtCap::Deny };
        Ok(self.look_all(&mut self.lock(&aims), hits, &aims, view)?.0)
    }

    /// Where a key's state is; made if others have told of it.
    #[inline(always)]
    pub(super) fn find<C: Kept>(
        &self,
        shard: &mut Shard,
        _: C,
        hit: &Hit<'_>,
        aim: Aim,
        now: Timestamp,
    ) -> Result<Option<usize>, StoreError> {
        let slot = C::table(&mut shard.states).find(aim.fingerprint);
        if slot.is_none() && !shard.books.is_empty() && shard.books.get(aim.fingerprint).is_some() {
            let kind = self.kinds.of(hit, aim.counter)?;
            return Ok(Some(self.insert::<C>(shard, aim.fingerprint, kind, now)));
        }
        Ok(slot)
    }

    /// How a hit would fare by the counts, and whether it may yet not be charged because the others do not know
    /// enough of what was.
    #[inline(always)]
    fn look<C: Kept>(
        &self,
        shard: &mut Shard,
        counter: C,
        slot: Option<usize>,
        aim: Aim,
        ask: Ask<'_>,
        view: View,
    ) -> (Outcome, bool) {
        let Some(slot) = slot else {
            return (counter.peek(&C::State::default(), ask.now, ask.required), false);
        };
        if C::table(&mut shard.states).slot(slot).state.asks_book {
            self.read_book(shard, counter, slot, aim, ask);
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
            && self.is_capped(shard, counter, slot, aim, ask, view);
        (outcome, is_capped)
    }

    /// Makes the state anew of all that is known, if there is more than what stands in it.
    #[cold]
    fn read_book<C: Kept>(
        &self,
        shard: &mut Shard,
        counter: C,
        slot: usize,
        aim: Aim,
        ask: Ask<'_>,
    ) {
        let hot = &mut C::table(&mut shard.states).slot_mut(slot).state;
        let Some(book) = shard.books.get(aim.fingerprint) else {
            hot.asks_book = false;
            return;
        };
        if !book.is_news() && !book.has_future_come(ask.now) {
            return;
        }
        book.enter(counter, &hot.state);
        let last = counter.last(&hot.state).max(ask.now);
        let gathered = book.gather(counter, last);
        let asks_book = book.has_future();
        let table = C::table(&mut shard.states);
        let (_, grown) = table.change(slot, |slot| {
            slot.state.state = gathered;
            slot.state.asks_book = asks_book;
        });
        self.count_states(grown);
        let hot = &table.slot(slot).state;
        let max = ask.hit.limit.capacity();
        let units = counter.used(&hot.state, ask.now).saturating_sub(max);
        let over = Over { bucket: counter.running(&hot.state), units, max };
        if let Some(ended) = book.note_over(over) {
            self.overshoot.note(&ended);
        }
    }

    /// Looks closer how much the others do not know.
    #[cold]
    fn is_capped<C: Kept>(
        &self,
        shard: &mut Shard,
        counter: C,
        slot: usize,
        aim: Aim,
        ask: Ask<'_>,
        view: View,
    ) -> bool {
        let terms = Terms::of(ask.hit);
        let hot = &mut C::table(&mut shard.states).slot_mut(slot).state;
        let book = shard.books.of(aim.fingerprint, || Book::new(counter.shape()));
        book.enter(counter, &hot.state);
        let progress = self.progress.load();
        let span_us = counter.shape().span_us();
        book.note_acknowledged(progress.acknowledged(view.now, span_us, terms.on_partition()));
        let unsynced = book.unsynced(ask.now);
        hot.unsynced = u32::try_from(unsynced).unwrap_or(u32::MAX);
        unsynced > 0 && !terms.allows(ask.required.max(1).saturating_add(unsynced), progress.nodes)
    }

    /// Charges the state in a slot, made if there is none; the outcome then says how its counter stands after it.
    #[inline(always)]
    fn charge<C: Kept>(
        &self,
        shard: &mut Shard,
        counter: C,
        slot: Option<usize>,
        aim: Aim,
        (hit, outcome): (&Hit<'_>, &mut Outcome),
        view: View,
    ) -> Result<Charge, StoreError> {
        let now = aim.own(view.now);
        let slot = match slot {
            Some(slot) => {
                self.keep_rolled(shard, counter, slot, aim, now);
                slot
            }
            None => {
                let kind = self.kinds.of(hit, aim.counter)?;
                self.insert::<C>(shard, aim.fingerprint, kind, view.now)
            }
        };
        if !view.is_alone {
            note_charge::<C>(shard, slot, aim, hit.cost);
        }
        let (charged, grown) = C::table(&mut shard.states).change(slot, |slot| {
            let charged = counter.charge(&mut slot.state.state, now, hit.cost);
            self.date(slot, &charged.after, view.now);
            charged
        });
        if grown != 0 {
            self.count_growth::<C>(shard, aim.fingerprint, grown, view.now);
        }
        *outcome = charged.after.charged_after(outcome);
        let counter = CounterName::Fingerprint(aim.fingerprint);
        Ok(Charge { counter, limit: *hit.limit, charged_at: charged.at, cost: hit.cost })
    }

    /// Enters what was charged to a state that is about to be charged in a later bucket, and so forgets an earlier one:
    /// that may still count where a clock is behind.
    #[inline(always)]
    fn keep_rolled<C: Kept>(
        &self,
        shard: &mut Shard,
        counter: C,
        slot: usize,
        aim: Aim,
        now: Timestamp,
    ) {
        let state = &C::table(&mut shard.states).slot(slot).state.state;
        let (running, bucket_us) = (counter.running(state), counter.shape().bucket_us);
        let (ends_us, now_us) = ((running + 1).saturating_mul(bucket_us), now.as_micros());
        if now_us >= ends_us {
            let leaves_us = counter.shape().leaves_us(running);
            if leaves_us.saturating_add(self.clocks_differ_us) > now_us {
                Self::enter(shard, counter, aim.fingerprint);
            }
        }
    }

    /// Notes when a key expires, and until when it is denied.
    #[inline]
    fn date<S>(&self, slot: &mut Slot<Hot<S>>, after: &Outcome, now: Timestamp) {
        let coarse = |us: u64| self.coarse(now.as_micros().saturating_add(us)).saturating_add(1);
        let expires = coarse(after.reset_after_us().saturating_add(self.clocks_differ_us));
        slot.expires = expires.max(slot.expires);
        slot.denied_until = match after.fits() {
            true => 0,
            false => coarse(after.wait_us().min(after.reset_after_us())),
        };
    }

    /// What a hit is told that may not be charged because the others have not acknowledged enough.
    #[cold]
    fn at_cap(
        &self,
        shard: &mut Shard,
        aim: Aim,
        ask: Ask<'_>,
        outcome: &Outcome,
        view: View,
    ) -> Outcome {
        let progress = self.progress.load();
        let most = Terms::of(ask.hit).max_unsynced(progress.nodes);
        let cost = ask.required.max(1);
        let (mut room, mut wait) = (0, self.sync_interval);
        if let Some(book) = shard.books.get(aim.fingerprint) {
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
fn note_charge<C: Kept>(shard: &mut Shard, slot: usize, aim: Aim, cost: u64) {
    let hot = &mut C::table(&mut shard.states).slot_mut(slot).state;
    hot.unsynced = hot.unsynced.saturating_add(u32::try_from(cost).unwrap_or(u32::MAX));
    if !hot.is_changed {
        hot.is_changed = true;
        let kind: KindId = hot.kind;
        shard.books.push_changed(aim.fingerprint, kind);
    }
}

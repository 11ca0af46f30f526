//! What is told of the counts, and what is taken in; and what is given back.

use slidegate::algorithm::Counter;
use slidegate::algorithm::additive::AnyAdditive;
use slidegate::store::{CounterId, Outcomes, Receipt};
use slidegate::{Hit, StoreError, Timestamp};

use super::{Counters, HasTable, HitLocation, KindId, Shard};
use crate::book::Book;
use crate::counts::{BucketLayout, Incarnation, Tally, Told};
use crate::ledger::{Flush, Ledger};

/// A key of which something is to be told.
struct Changed {
    shard: usize,
    key: u64,
    kind: KindId,
    nearness: u64,
}

impl Counters {
    /// Enters in the book of a key what was charged to its state, if it has one.
    #[cold]
    pub(super) fn enter<C: HasTable>(shard: &mut Shard, counter: C, key: u64) {
        let table = C::table(&mut shard.states);
        if let Some(at) = table.find(key) {
            let book = shard.books.of(key, || Book::new(counter.layout()));
            book.enter(counter, &table.slot(at).state.state);
        }
    }

    /// Takes something off a key that is there, on its counter's own clock.
    fn take_off<C: HasTable>(
        &self,
        shard: &mut Shard,
        counter: C,
        key: u64,
        now: Timestamp,
        take: impl FnOnce(&mut C::State),
    ) {
        let table = C::table(&mut shard.states);
        let Some(at) = table.find(key) else { return };
        let books = &mut shard.books;
        let (_, grown) = table.update(at, |slot| {
            // It may fit again.
            slot.denied_until = 0;
            let hot = &mut slot.state;
            if self.progress.is_alone() && books.get(key).is_none() {
                take(&mut hot.state);
                return;
            }
            let book = books.of(key, || Book::new(counter.layout()));
            book.enter(counter, &hot.state);
            if book.is_news() {
                let last = counter.last_charged_at(&hot.state).max(now);
                hot.state = book.gather(counter, last);
            }
            take(&mut hot.state);
            book.enter_taken_off(counter, &hot.state);
            if !hot.is_changed {
                hot.is_changed = true;
                books.push_changed(key, hot.kind);
            }
        });
        self.count_states(grown);
    }

    /// Gives back exactly what a receipt says was charged here, and nothing of what has left its window.
    pub fn revert(&self, receipt: &Receipt, now: Timestamp) {
        for charge in &receipt.charges {
            let (CounterId::Fingerprint(key), Some(counter)) =
                (&charge.counter, charge.limit.additive())
            else {
                continue;
            };
            let shard = &mut *self.shards[self.shard_of(*key)].0.lock();
            // The counter's own clock may be ahead, as far as the charge tells.
            let now = now.max(charge.charged_at);
            with_counter!(counter, counter => {
                self.take_off(shard, counter, *key, now, |state| {
                    counter.revert(state, charge.charged_at, charge.cost);
                });
            });
        }
    }

    /// Takes each hit's cost off its counter. Says how each then stands.
    ///
    /// # Errors
    /// If one of the limits cannot be counted by several nodes.
    pub fn refund(&self, hits: &[Hit<'_>], now: Timestamp) -> Result<Outcomes, StoreError> {
        let locations = self.locations(hits)?;
        let refund = |(hit, location): (&Hit<'_>, &HitLocation)| {
            let own = location.own(now);
            with_counter!(location.counter, counter => {
                let shard = &mut *self.shards[location.shard].0.lock();
                self.find(shard, counter, hit, *location, now)?;
                self.take_off(shard, counter, location.fingerprint, own, |state| {
                    counter.refund(state, own, hit.cost);
                });
            });
            Ok(self.peek(&[Hit { cost: 0, required: 1, ..*hit }], now)?[0])
        };
        hits.iter().zip(&locations).map(refund).collect()
    }

    /// Takes all off that is known of these hits' keys, on every node.
    ///
    /// # Errors
    /// If one of the limits cannot be counted by several nodes.
    pub fn reset(&self, hits: &[Hit<'_>], now: Timestamp) -> Result<(), StoreError> {
        for (hit, location) in hits.iter().zip(&self.locations(hits)?) {
            let shard = &mut *self.shards[location.shard].0.lock();
            with_counter!(location.counter, counter => {
                self.find(shard, counter, hit, *location, now)?;
                self.take_off(shard, counter, location.fingerprint, location.own(now), forget);
            });
        }
        Ok(())
    }

    /// All keys of which something is to be told, taken off their shards.
    fn drain_changed(&self) -> Vec<Changed> {
        let mut all = Vec::new();
        for (nth, place) in self.shards.iter().enumerate() {
            let shard = &mut *place.0.lock();
            for (key, kind) in shard.books.take_changed() {
                let nearness = with_counter!(self.kinds.counter(kind), counter => {
                    nearness(shard, counter, key)
                });
                all.push(Changed { shard: nth, key, kind, nearness });
            }
        }
        all
    }

    fn put_back(&self, changed: &[Changed]) {
        for Changed { shard, key, kind, .. } in changed {
            self.shards[*shard].0.lock().books.push_changed(*key, *kind);
        }
    }

    /// Tells what has changed of one key.
    fn tell_changed<C: HasTable>(
        shard: &mut Shard,
        counter: C,
        key: u64,
        (me, flush, acknowledged): (Incarnation, Flush, Flush),
        mut tell: impl FnMut(BucketLayout, Incarnation, u64, Tally),
    ) {
        let table = C::table(&mut shard.states);
        if let Some(at) = table.find(key) {
            table.slot_mut(at).state.is_changed = false;
        }
        Self::enter(shard, counter, key);
        if let Some(book) = shard.books.get(key) {
            let shape = book.shape();
            book.note_acknowledged(acknowledged);
            book.tell_changed(me, flush, |incarnation, bucket, tally| {
                tell(shape, incarnation, bucket, tally);
            });
        }
    }

    /// Merges the number of units that another node has returned of this node's own charges, and sends it to all nodes with
    /// the next flush: the other node may stop before it has reached all of them.
    fn merge_given_back(&self, shard: &mut Shard, told: &Told, leaves_us: u64) {
        if told.tally.given_back == 0 || shard.books.get(told.key).is_none() {
            return;
        }
        let noted = shard.states.note_changed(told.key);
        if let Some((kind, is_new)) = noted {
            with_counter!(self.kinds.counter(kind), counter => {
                Self::enter(shard, counter, told.key);
            });
            if is_new {
                shard.books.push_changed(told.key, kind);
            }
        }
        let Some(book) = shard.books.get(told.key) else { return };
        if book.merge_given_back(told.bucket, told.tally.given_back) {
            let expires_us = leaves_us.saturating_add(self.max_clock_skew_us);
            shard.states.mark(told.key, self.coarse(expires_us).saturating_add(1));
        }
    }

    /// Enters whatever was charged to any state.
    fn enter_all(&self, shard: &mut Shard) {
        let mut keys = Vec::new();
        shard.states.each(|key, kind| keys.push((key, kind)));
        for (key, kind) in keys {
            with_counter!(self.kinds.counter(kind), counter => {
                Self::enter(shard, counter, key);
            });
        }
    }
}

fn forget<S: Default>(state: &mut S) {
    *state = S::default();
}

/// How near a key is to its limit: the smaller, the nearer.
fn nearness<C: HasTable>(shard: &mut Shard, counter: C, key: u64) -> u64 {
    let table = C::table(&mut shard.states);
    let Some(at) = table.find(key) else { return u64::MAX };
    let state = &table.slot(at).state.state;
    let last = counter.last_charged_at(state);
    counter.peek(state, last, 1).remaining()
}

impl Ledger for Counters {
    fn take_changed(&self, flush: Flush, most_keys: usize, told: &mut Vec<Told>) -> bool {
        let mut changed = self.drain_changed();
        let are_left = changed.len() > most_keys;
        if are_left {
            changed.select_nth_unstable_by_key(most_keys, |changed| changed.nearness);
            self.put_back(&changed[most_keys..]);
            changed.truncate(most_keys);
        }
        let acknowledged = self.progress.load().acknowledged_by_all();
        for Changed { shard, key, kind, .. } in changed {
            let shard = &mut *self.shards[shard].0.lock();
            with_counter!(self.kinds.counter(kind), counter => {
                let at = (self.me, flush, acknowledged);
                Self::tell_changed(shard, counter, key, at, |shape, incarnation, bucket, tally| {
                    told.push(Told { key, shape, incarnation, bucket, tally });
                });
            });
        }
        are_left
    }

    fn changed_since(
        &self,
        flush: Flush,
        others: bool,
        now: Timestamp,
        tell: &mut dyn FnMut(Told),
    ) {
        // What has left here may count for a node whose clock is behind.
        let now = self.kept_since(now);
        for place in &self.shards {
            let shard = &mut *place.0.lock();
            self.enter_all(shard);
            for (key, book) in shard.books.iter_mut() {
                let shape = book.shape();
                let mut tell = |incarnation, bucket, tally| {
                    tell(Told { key, shape, incarnation, bucket, tally });
                };
                book.tell_since(self.me, flush, now, &mut tell);
                book.tell_others(now, |_, is_raised| others || is_raised, tell);
            }
        }
    }

    fn of(&self, of: Incarnation, now: Timestamp, tell: &mut dyn FnMut(Told)) {
        let now = self.kept_since(now);
        for place in &self.shards {
            let shard = &mut *place.0.lock();
            for (key, book) in shard.books.iter_mut() {
                let shape = book.shape();
                let is_asked_for = |incarnation, is_raised| incarnation == of || is_raised;
                book.tell_others(now, is_asked_for, |incarnation, bucket, tally| {
                    tell(Told { key, shape, incarnation, bucket, tally });
                });
            }
        }
    }

    fn merge(&self, told: &[Told], now: Timestamp) {
        let kept_since = self.kept_since(now);
        let most = (2 * self.max_keys / self.shards.len()).max(64);
        for told in told {
            let leaves_us = told.shape.bucket_expires_us(told.bucket);
            let is_own = told.incarnation == self.me;
            if told.key == 0 || leaves_us <= kept_since.as_micros() {
                continue;
            }
            let shard = &mut *self.shards[self.shard_of(told.key)].0.lock();
            if is_own {
                self.merge_given_back(shard, told, leaves_us);
                continue;
            }
            if shard.books.len() >= most {
                shard.books.forget(kept_since);
            }
            let is_full = shard.books.len() >= most || self.are_books_full();
            if is_full && shard.books.get(told.key).is_none() {
                continue;
            }
            let book = shard.books.of(told.key, || Book::new(told.shape));
            if book.merge(told.incarnation, told.bucket, &told.tally) {
                book.forget(kept_since);
                let expires_us = leaves_us.saturating_add(self.max_clock_skew_us);
                shard.states.mark(told.key, self.coarse(expires_us).saturating_add(1));
            }
            self.count_books(shard);
        }
    }
}

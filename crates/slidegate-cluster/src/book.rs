//! What is kept of one key beside the state by which it is decided: the tallies that the state is made of.
//!
//! Decisions charge the state and nothing else. What was charged here is found later, as what stands in the state
//! beyond what was last known to be there, and is entered in the book: each time that something is told, taken in or
//! given back, and before a bucket with changes leaves the state. When others have told something, the state is made
//! anew of the book. Units that are dated in the future count as charged now, until their bucket is running.

use slidegate::Timestamp;
use slidegate::algorithm::additive::{Additive, BucketLayout};
use slidegate::heap::allocated_bytes;
use smallvec::SmallVec;

use crate::counts::{Incarnation, Tally};
use crate::ledger::Flush;
use crate::overshoot::Over;

/// Buckets that are kept beyond those that count, at most, for nodes whose clocks are behind.
const MAX_SPARE: usize = 64;

/// What this node has charged in one bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Own {
    bucket: u64,
    tally: Tally,
    /// As it was last told.
    told: Tally,
    /// Units charged as of the snapshot that is on its way.
    on_its_way: u64,
    /// Units charged that every member has acknowledged.
    acknowledged: u64,
}

/// What another incarnation has charged in one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Other {
    bucket: u64,
    incarnation: Incarnation,
    tally: Tally,
    /// The number of returned units that was sent or received last.
    told_given_back: u64,
    /// Whether another node than the owner may have returned units. That node may stop before all others know of it, so
    /// this tally is sent again when a node leaves.
    is_raised: bool,
}

/// What is kept of one key.
#[derive(Debug)]
pub(crate) struct Book {
    shape: BucketLayout,
    own: SmallVec<[Own; 2]>,
    others: Vec<Other>,
    /// Units by bucket that are known to stand in the state.
    known: SmallVec<[(u64, u64); 2]>,
    /// The bucket as of which units dated later stand in the state as if charged in it, if there are any.
    future_since: Option<u64>,
    /// Others have told what does not stand in the state yet.
    is_news: bool,
    /// The flush that took the snapshot which is on its way; 0: there is none.
    snapshot: Flush,
    /// The flush that last told something of it.
    told_in: Flush,
    over: Over,
}

impl Book {
    pub(crate) fn new(shape: BucketLayout) -> Self {
        Self {
            shape,
            own: SmallVec::new(),
            others: Vec::new(),
            known: SmallVec::new(),
            future_since: None,
            is_news: false,
            snapshot: 0,
            told_in: 0,
            over: Over::default(),
        }
    }

    /// Enters what was charged to the state since it was last looked at.
    pub(crate) fn enter<C: Additive>(&mut self, counter: C, state: &C::State) {
        for bucket in counted(counter, state) {
            let (units, known) = (counter.units(state, bucket), self.known(bucket));
            if units > known {
                let own = self.own(bucket);
                own.tally.charged = own.tally.charged.saturating_add(units - known);
            }
        }
        self.know(counter, state);
    }

    fn known(&self, bucket: u64) -> u64 {
        self.known.iter().find(|(of, _)| *of == bucket).map_or(0, |(_, units)| *units)
    }

    /// Notes what stands in the state now.
    fn know<C: Additive>(&mut self, counter: C, state: &C::State) {
        let units = |bucket| (bucket, counter.units(state, bucket));
        self.known = counted(counter, state).map(units).filter(|(_, units)| *units > 0).collect();
    }

    /// The state that all tallies make, in which all that was charged to the state before has been entered.
    pub(crate) fn gather<C: Additive>(&mut self, counter: C, last: Timestamp) -> C::State {
        let running = counter.layout().bucket(last);
        let sums = self.sums();
        let units = |counts: &dyn Fn(u64) -> bool| {
            let counted = sums.iter().filter(|(bucket, _)| counts(*bucket));
            counted.map(|(_, units)| *units).fold(0, u64::saturating_add)
        };
        let state = counter.gather(last, |bucket| match bucket == running {
            true => units(&|of| of >= running),
            false => units(&|of| of == bucket),
        });
        self.future_since = sums.iter().any(|(bucket, _)| *bucket > running).then_some(running);
        self.is_news = false;
        self.know(counter, &state);
        state
    }

    /// There is another state, in which nothing stands yet. Says when the last of the book leaves, in microseconds
    /// since the Unix epoch.
    pub(crate) fn begin_state(&mut self) -> u64 {
        self.known.clear();
        self.future_since = None;
        self.is_news = true;
        let own = self.own.last().map(|own| own.bucket);
        let latest = self.others.iter().map(|other| other.bucket).chain(own).max();
        latest.map_or(0, |bucket| self.shape.bucket_expires_us(bucket))
    }

    /// Whether others have told what does not stand in the state yet.
    pub(crate) fn is_news(&self) -> bool {
        self.is_news
    }

    /// Whether units that were dated in the future have come into their bucket.
    pub(crate) fn has_future_come(&self, now: Timestamp) -> bool {
        self.future_since.is_some_and(|running| self.shape.bucket(now) > running)
    }

    /// Whether units dated in the future stand in the state.
    pub(crate) fn has_future(&self) -> bool {
        self.future_since.is_some()
    }

    /// Returns the units of all incarnations that were charged and not returned, by bucket.
    fn sums(&self) -> SmallVec<[(u64, u64); 4]> {
        let mut sums: SmallVec<[(u64, u64); 4]> = SmallVec::new();
        let own = self.own.iter().map(|own| (own.bucket, own.tally.left()));
        let others = self.others.iter().map(|other| (other.bucket, other.tally.left()));
        for (bucket, units) in own.chain(others) {
            let at = sums.partition_point(|(of, _)| *of < bucket);
            match sums.get_mut(at) {
                Some((of, sum)) if *of == bucket => *sum = sum.saturating_add(units),
                _ => sums.insert(at, (bucket, units)),
            }
        }
        sums
    }

    /// What this node has counted in a bucket, from now on.
    fn own(&mut self, bucket: u64) -> &mut Own {
        let at = self.own.partition_point(|own| own.bucket < bucket);
        if self.own.get(at).is_none_or(|own| own.bucket != bucket) {
            self.own.insert(at, Own { bucket, ..Own::default() });
        }
        &mut self.own[at]
    }

    /// Forgets the tallies of buckets that left before `since`. Says whether any are left.
    pub(crate) fn forget(&mut self, since: Timestamp) -> bool {
        let shape = self.shape;
        let most = shape.buckets as usize + MAX_SPARE;
        let has_left = |bucket: u64| shape.bucket_expires_us(bucket) <= since.as_micros();
        let old = self.own.iter().take_while(|own| has_left(own.bucket)).count();
        self.own.drain(..old.max(self.own.len().saturating_sub(most)));
        self.others.retain(|other| !has_left(other.bucket));
        !self.own.is_empty() || !self.others.is_empty()
    }

    /// Returns the bytes that the book holds on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        let own = if self.own.spilled() { self.own.capacity() * size_of::<Own>() } else { 0 };
        let known = match self.known.spilled() {
            true => self.known.capacity() * size_of::<(u64, u64)>(),
            false => 0,
        };
        let others = self.others.capacity() * size_of::<Other>();
        [own, known, others].map(allocated_bytes).iter().sum()
    }

    /// Enters what was taken off the state, in which everything charged before has been entered.
    pub(crate) fn enter_taken_off<C: Additive>(&mut self, counter: C, state: &C::State) {
        for (bucket, known) in self.known.clone() {
            let units = counter.units(state, bucket);
            if units < known {
                self.take_off(bucket, known - units);
            }
        }
        self.know(counter, state);
    }

    /// Returns units of this node's own charges first, then of charges of other nodes. Two nodes that return units at the
    /// same time thus seldom return the same ones. If they do, the units are subtracted once, since a merge takes the
    /// larger number of each tally.
    fn take_off(&mut self, bucket: u64, units: u64) {
        let mut rest = units;
        if let Some(own) = self.own.iter_mut().find(|own| own.bucket == bucket) {
            let part = rest.min(own.tally.left());
            own.tally.given_back += part;
            rest -= part;
        }
        for other in self.others.iter_mut().filter(|other| other.bucket == bucket) {
            let part = rest.min(other.tally.left());
            if part > 0 {
                other.tally.given_back += part;
                other.is_raised = true;
                rest -= part;
            }
        }
    }

    /// Notes what every member has acknowledged up to a flush, so that another snapshot may be taken.
    pub(crate) fn note_acknowledged(&mut self, acknowledged: Flush) {
        let is_settled = self.snapshot != 0 && self.snapshot <= acknowledged;
        for own in &mut self.own {
            if acknowledged == Flush::MAX {
                own.acknowledged = own.tally.charged;
            } else if is_settled {
                own.acknowledged = own.acknowledged.max(own.on_its_way);
            }
        }
        if is_settled || acknowledged == Flush::MAX {
            self.snapshot = 0;
        }
    }

    /// Units charged here, still counting, that not every member has acknowledged.
    pub(crate) fn unsynced(&self, now: Timestamp) -> u64 {
        self.waiting(now).map(|(_, units)| units).fold(0, u64::saturating_add)
    }

    /// Units not acknowledged that still count, by bucket, the oldest first.
    fn waiting(&self, now: Timestamp) -> impl Iterator<Item = (u64, u64)> {
        let counts = move |own: &&Own| self.shape.bucket_expires_us(own.bucket) > now.as_micros();
        self.own.iter().filter(counts).map(|own| (own.bucket, own.tally.charged - own.acknowledged))
    }

    /// How long until all but so many of these units have left, if nobody acknowledges any, in microseconds.
    pub(crate) fn syncs_by_time_us(&self, most: u64, now: Timestamp) -> u64 {
        let mut left = self.unsynced(now);
        for (bucket, units) in self.waiting(now) {
            left -= units;
            if left <= most {
                return self.shape.bucket_expires_us(bucket) - now.as_micros();
            }
        }
        0
    }

    /// Passes all tallies that this node (`me`) has changed to `tell`, and marks them as sent in this flush.
    pub(crate) fn tell_changed(
        &mut self,
        me: Incarnation,
        flush: Flush,
        mut tell: impl FnMut(Incarnation, u64, Tally),
    ) {
        for own in &mut self.own {
            if self.snapshot == 0 {
                own.on_its_way = own.tally.charged;
            }
            if own.tally != own.told {
                own.told = own.tally;
                tell(me, own.bucket, own.tally);
            }
        }
        for other in self.others.iter_mut().filter(|other| other.is_untold()) {
            other.told_given_back = other.tally.given_back;
            tell(other.incarnation, other.bucket, other.tally);
        }
        if self.snapshot == 0 {
            self.snapshot = flush;
        }
        self.told_in = flush;
    }

    /// Tells its own tallies that still count, if one of them was told after a flush, or not yet.
    pub(crate) fn tell_since(
        &self,
        me: Incarnation,
        flush: Flush,
        now: Timestamp,
        mut tell: impl FnMut(Incarnation, u64, Tally),
    ) {
        if self.told_in > flush || self.own.iter().any(|own| own.tally != own.told) {
            let counts = |own: &&Own| self.shape.bucket_expires_us(own.bucket) > now.as_micros();
            self.own.iter().filter(counts).for_each(|own| tell(me, own.bucket, own.tally));
        }
    }

    /// Passes tallies of other incarnations that still count to `tell`. `is_asked_for` selects them by incarnation and by
    /// whether another node than the owner may have returned units.
    pub(crate) fn tell_others(
        &self,
        now: Timestamp,
        is_asked_for: impl Fn(Incarnation, bool) -> bool,
        mut tell: impl FnMut(Incarnation, u64, Tally),
    ) {
        let counts = |other: &&Other| self.shape.bucket_expires_us(other.bucket) > now.as_micros();
        let asked_for = |other: &&Other| is_asked_for(other.incarnation, other.is_raised);
        for other in self.others.iter().filter(counts).filter(asked_for) {
            tell(other.incarnation, other.bucket, other.tally);
        }
    }

    /// How the counter divides time.
    pub(crate) fn shape(&self) -> BucketLayout {
        self.shape
    }

    /// Takes in what another incarnation has counted. Says whether that is news.
    pub(crate) fn merge(&mut self, incarnation: Incarnation, bucket: u64, tally: &Tally) -> bool {
        let known = (self.others.iter_mut())
            .find(|other| other.bucket == bucket && other.incarnation == incarnation);
        let is_news = match known {
            Some(other) => {
                other.told_given_back = other.told_given_back.max(tally.given_back);
                other.is_raised |= tally.given_back > other.tally.given_back;
                other.tally.merge(tally)
            }
            None => {
                let (tally, told_given_back) = (*tally, tally.given_back);
                let is_raised = tally.given_back > 0;
                self.others.push(Other { bucket, incarnation, tally, told_given_back, is_raised });
                true
            }
        };
        self.is_news |= is_news;
        is_news
    }

    /// Merges the number of units of this node's own charges that another node has returned. Returns whether it is larger
    /// than the known number.
    pub(crate) fn merge_given_back(&mut self, bucket: u64, given_back: u64) -> bool {
        let Some(own) = self.own.iter_mut().find(|own| own.bucket == bucket) else { return false };
        // More units than were charged cannot be returned.
        let given_back = given_back.min(own.tally.charged);
        let is_news = given_back > own.tally.given_back;
        own.tally.given_back = own.tally.given_back.max(given_back);
        self.is_news |= is_news;
        is_news
    }

    /// Notes how far the running bucket is over max. Says what an earlier one came to, once another is running.
    pub(crate) fn note_over(&mut self, over: Over) -> Option<Over> {
        if over.bucket != self.over.bucket {
            let ended = std::mem::replace(&mut self.over, over);
            return (ended.units > 0).then_some(ended);
        }
        if over.units > self.over.units {
            self.over = over;
        }
        None
    }
}

impl Other {
    /// Returns whether units were returned that the other nodes do not know of yet.
    fn is_untold(&self) -> bool {
        self.tally.given_back > self.told_given_back
    }
}

/// The buckets that a state counts.
fn counted<C: Additive>(counter: C, state: &C::State) -> std::ops::RangeInclusive<u64> {
    let running = counter.current_bucket(state);
    running.saturating_sub(u64::from(counter.layout().buckets) - 1)..=running
}

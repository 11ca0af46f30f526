//! A store that is awkward on purpose, as one across a network is: counters live in slots that cannot be
//! charged in one step, calls fail before or after they have charged, batches go slot by slot, and no
//! call answers at once.
//!
//! A request over several slots peeks all of them, then takes slot by slot, and gives back what it took
//! if one denies after all.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use fastrand::Rng;
use parking_lot::Mutex;

use crate::clock::ManualClock;
use crate::hit::{ChargeWhen, Hit, Veto};
use crate::store::{
    Charge, ChargeResult, Outcomes, Receipt, Store, StoreError, SyncStore, admits, is_charged,
};

use super::model::{ModelStore, counter_name};

/// How often, in percent, a call fails.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Not reached: nothing is charged.
    pub unavailable: u32,
    /// No answer in time, and nothing charged.
    pub lost_before: u32,
    /// No answer in time, but charged.
    pub lost_after: u32,
}

/// The awkward store. Clones are one store, seen from several instances.
#[derive(Clone)]
pub struct FaultyStore {
    slots: Arc<[ModelStore]>,
    faults: Arc<Mutex<Faults>>,
    rng: Arc<Mutex<Rng>>,
}

/// Hits of a request that live in one slot, and their places in the request.
struct Part<'h> {
    slot: usize,
    places: Vec<usize>,
    hits: Vec<Hit<'h>>,
}

/// What each part is answered, slot by slot, in the order of so many hits.
async fn in_order(
    hits: usize,
    parts: &[Part<'_>],
    answer: impl Fn(&Part<'_>) -> Outcomes,
) -> Outcomes {
    let mut outcomes = vec![None; hits];
    for part in parts {
        Yield::default().await;
        for (&place, outcome) in part.places.iter().zip(answer(part)) {
            outcomes[place] = Some(outcome);
        }
    }
    outcomes.into_iter().flatten().collect()
}

impl FaultyStore {
    /// A store of so many slots on the given clock.
    pub fn new(clock: &ManualClock, slots: usize, faults: Faults, seed: u64) -> Self {
        Self {
            slots: (0..slots).map(|_| ModelStore::new(clock.clone())).collect(),
            faults: Arc::new(Mutex::new(faults)),
            rng: Arc::new(Mutex::new(Rng::with_seed(seed))),
        }
    }

    /// From now on calls fail so often.
    pub fn set_faults(&self, faults: Faults) {
        *self.faults.lock() = faults;
    }

    fn faults(&self) -> Faults {
        *self.faults.lock()
    }

    fn slot_of(&self, hit: &Hit<'_>) -> usize {
        counter_name(hit).bytes().map(usize::from).sum::<usize>() % self.slots.len()
    }

    fn parts<'h>(&self, hits: &[Hit<'h>]) -> Vec<Part<'h>> {
        let mut parts: Vec<Part<'h>> = Vec::new();
        for (place, hit) in hits.iter().enumerate() {
            let slot = self.slot_of(hit);
            let nth = parts.iter().position(|part| part.slot == slot).unwrap_or_else(|| {
                parts.push(Part { slot, places: Vec::new(), hits: Vec::new() });
                parts.len() - 1
            });
            parts[nth].places.push(place);
            parts[nth].hits.push(*hit);
        }
        parts
    }

    fn chance(&self, percent: u32) -> bool {
        self.rng.lock().u32(..100) < percent
    }

    fn may_be_unavailable(&self) -> Result<(), StoreError> {
        match self.chance(self.faults().unavailable) {
            true => Err(StoreError::Unavailable("as arranged".into())),
            false => Ok(()),
        }
    }

    /// One call to one slot; it alone can leave the caller without knowing what was charged.
    async fn call(&self, part: &Part<'_>) -> Result<ChargeResult, StoreError> {
        Yield::default().await;
        let lost = || Err(StoreError::TimedOut("as arranged".into()));
        if self.chance(self.faults().lost_before) {
            return lost();
        }
        let taken = self.slots[part.slot].take_now(&part.hits);
        if self.chance(self.faults().lost_after) { lost() } else { Ok(taken) }
    }

    /// A request over several slots.
    async fn take_parts(&self, hits: &[Hit<'_>], parts: &[Part<'_>]) -> ChargeResult {
        let mut outcomes = self.peek_parts(hits.len(), parts).await;
        let mut allowed = admits(hits, &outcomes);
        let mut charges = Vec::new();
        for part in parts {
            Yield::default().await;
            let slot = &self.slots[part.slot];
            if !allowed {
                charges.extend(charge_denied(slot, part, &mut outcomes));
                continue;
            }
            // Joint hits are decided together with those of other slots, below.
            let mut hits = part.hits.clone();
            for hit in hits.iter_mut().filter(|hit| hit.veto == Veto::Jointly) {
                hit.veto = Veto::Never;
            }
            let taken = slot.take_now(&hits);
            for (&place, outcome) in part.places.iter().zip(&taken.outcomes) {
                outcomes[place] = *outcome;
            }
            let charged = (part.places.iter().copied().zip(&hits).zip(&taken.outcomes))
                .filter(|((_, hit), outcome)| is_charged(hit, taken.allowed, outcome))
                .map(|((place, _), _)| place);
            charges.extend(charged.zip(taken.receipt.charges));
            allowed &= taken.allowed;
        }
        allowed = allowed && admits(hits, &outcomes);
        // In the order of the hits, as a store without slots would have charged them.
        charges.sort_by_key(|(place, _)| *place);
        let (kept, undone): (Vec<_>, Vec<_>) = charges.into_iter().partition(|(place, _)| {
            // Somebody was faster: what the slots before have charged is undone.
            allowed || hits[*place].charge == ChargeWhen::Always
        });
        let receipt_of = |charges: Vec<(usize, Charge)>| Receipt {
            charges: charges.into_iter().map(|(_, charge)| charge).collect(),
        };
        self.give_back_all(&receipt_of(undone)).await;
        ChargeResult { allowed, outcomes, receipt: receipt_of(kept) }
    }

    async fn peek_parts(&self, hits: usize, parts: &[Part<'_>]) -> Outcomes {
        in_order(hits, parts, |part| self.slots[part.slot].peek_now(&part.hits)).await
    }

    /// A slot that has not charged any of it has nothing to give back.
    async fn give_back_all(&self, receipt: &Receipt) {
        for slot in &*self.slots {
            Yield::default().await;
            slot.revert_now(receipt);
        }
    }

    /// Takes the waiting requests of a batch, slot by slot.
    fn flush(
        &self,
        waiting: &mut Vec<(usize, usize)>,
        asks: &[&[Hit<'_>]],
        into: &mut [Option<ChargeResult>],
    ) {
        waiting.sort_unstable();
        for (slot, nth) in waiting.drain(..) {
            into[nth] = Some(self.slots[slot].take_now(asks[nth]));
        }
    }
}

impl Store for FaultyStore {
    type Kind = crate::store::Asynchronous;

    async fn take(&self, hits: &[Hit<'_>]) -> Result<ChargeResult, StoreError> {
        self.may_be_unavailable()?;
        let parts = self.parts(hits);
        match &parts[..] {
            [part] => self.call(part).await,
            _ => Ok(self.take_parts(hits, &parts).await),
        }
    }

    /// Requests of one slot go together; one over several slots waits for those before it, and those
    /// after it wait for it.
    async fn take_many(&self, asks: &[&[Hit<'_>]]) -> Result<Vec<ChargeResult>, StoreError> {
        self.may_be_unavailable()?;
        let mut taken: Vec<Option<ChargeResult>> = vec![None; asks.len()];
        let mut waiting = Vec::new();
        for (nth, hits) in asks.iter().enumerate() {
            let parts = self.parts(hits);
            if let [part] = &parts[..] {
                waiting.push((part.slot, nth));
                continue;
            }
            self.flush(&mut waiting, asks, &mut taken);
            taken[nth] = Some(self.take_parts(hits, &parts).await);
        }
        self.flush(&mut waiting, asks, &mut taken);
        Ok(taken.into_iter().flatten().collect())
    }

    async fn peek(&self, hits: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        self.may_be_unavailable()?;
        Ok(self.peek_parts(hits.len(), &self.parts(hits)).await)
    }

    async fn revert(&self, receipt: &Receipt) -> Result<(), StoreError> {
        self.may_be_unavailable()?;
        self.give_back_all(receipt).await;
        Ok(())
    }

    async fn refund(&self, hits: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        self.may_be_unavailable()?;
        let each = |part: &Part<'_>| self.slots[part.slot].refund_now(&part.hits);
        Ok(in_order(hits.len(), &self.parts(hits), each).await)
    }

    async fn reset(&self, hits: &[Hit<'_>]) -> Result<(), StoreError> {
        self.may_be_unavailable()?;
        for part in self.parts(hits) {
            Yield::default().await;
            self.slots[part.slot].reset_now(&part.hits);
        }
        Ok(())
    }
}

/// Lets others go first, once.
#[derive(Default)]
struct Yield {
    has_yielded: bool,
}

impl Future for Yield {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Charges those hits of a denied request that are always charged. Whether they fitted has been seen together with the
/// other hits.
fn charge_denied(
    slot: &ModelStore,
    part: &Part<'_>,
    outcomes: &mut Outcomes,
) -> Vec<(usize, Charge)> {
    let mut charges = Vec::new();
    for (&place, hit) in part.places.iter().zip(&part.hits) {
        if is_charged(hit, false, &outcomes[place]) {
            let taken = slot.take_now(&[*hit]);
            let after = slot.peek_now(&[hit.with_required(1)])[0];
            outcomes[place] = after.charged_after(&outcomes[place]);
            charges.extend(taken.receipt.charges.into_iter().map(|charge| (place, charge)));
        }
    }
    charges
}

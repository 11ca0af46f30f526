//! A store with the difficulties of a remote one: its counters are in slots that cannot be charged in one step, calls
//! fail before or after they have charged, batches are split by slot, and no call completes immediately.
//!
//! A request over several slots peeks at all of them, then charges slot by slot, and reverts its charges if a slot
//! denies after all.

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

/// Percentages of calls that fail.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Calls that do not reach the store: nothing is charged.
    pub unavailable: u32,
    /// Calls that time out before anything is charged.
    pub lost_before: u32,
    /// Calls that time out after they were charged.
    pub lost_after: u32,
}

/// The faulty store. Clones share its counters and faults, like several instances with one store.
#[derive(Clone)]
pub struct FaultyStore {
    slots: Arc<[ModelStore]>,
    faults: Arc<Mutex<Faults>>,
    rng: Arc<Mutex<Rng>>,
}

/// The hits of a request in one slot, and their indices in the request.
struct SlotPart<'h> {
    slot: usize,
    indices: Vec<usize>,
    hits: Vec<Hit<'h>>,
}

/// Runs `call` for each part and returns the outcomes in the order of the hits.
async fn call_in_order(
    hits: usize,
    parts: &[SlotPart<'_>],
    call: impl Fn(&SlotPart<'_>) -> Outcomes,
) -> Outcomes {
    let mut outcomes = vec![None; hits];
    for part in parts {
        YieldOnce::default().await;
        for (&index, outcome) in part.indices.iter().zip(call(part)) {
            outcomes[index] = Some(outcome);
        }
    }
    outcomes.into_iter().flatten().collect()
}

impl FaultyStore {
    /// Creates an empty store with this number of slots. `seed` determines the calls that fail.
    pub fn new(clock: &ManualClock, slots: usize, faults: Faults, seed: u64) -> Self {
        Self {
            slots: (0..slots).map(|_| ModelStore::new(clock.clone())).collect(),
            faults: Arc::new(Mutex::new(faults)),
            rng: Arc::new(Mutex::new(Rng::with_seed(seed))),
        }
    }

    /// Sets the percentages of calls that fail from now on.
    pub fn set_faults(&self, faults: Faults) {
        *self.faults.lock() = faults;
    }

    fn faults(&self) -> Faults {
        *self.faults.lock()
    }

    fn slot_index(&self, hit: &Hit<'_>) -> usize {
        counter_name(hit).bytes().map(usize::from).sum::<usize>() % self.slots.len()
    }

    fn parts<'h>(&self, hits: &[Hit<'h>]) -> Vec<SlotPart<'h>> {
        let mut parts: Vec<SlotPart<'h>> = Vec::new();
        for (index, hit) in hits.iter().enumerate() {
            let slot = self.slot_index(hit);
            let part = parts.iter().position(|part| part.slot == slot).unwrap_or_else(|| {
                parts.push(SlotPart { slot, indices: Vec::new(), hits: Vec::new() });
                parts.len() - 1
            });
            parts[part].indices.push(index);
            parts[part].hits.push(*hit);
        }
        parts
    }

    /// Returns `true` with the given probability.
    fn draw(&self, percent: u32) -> bool {
        self.rng.lock().u32(..100) < percent
    }

    fn fail_randomly(&self) -> Result<(), StoreError> {
        match self.draw(self.faults().unavailable) {
            true => Err(StoreError::Unavailable("injected fault".into())),
            false => Ok(()),
        }
    }

    /// Charges the hits of one slot. Only this call can time out, which leaves the caller without the result.
    async fn call(&self, part: &SlotPart<'_>) -> Result<ChargeResult, StoreError> {
        YieldOnce::default().await;
        let time_out = || Err(StoreError::TimedOut("injected fault".into()));
        if self.draw(self.faults().lost_before) {
            return time_out();
        }
        let result = self.slots[part.slot].take_now(&part.hits);
        if self.draw(self.faults().lost_after) { time_out() } else { Ok(result) }
    }

    /// Charges a request over several slots.
    async fn take_parts(&self, hits: &[Hit<'_>], parts: &[SlotPart<'_>]) -> ChargeResult {
        let mut outcomes = self.peek_parts(hits.len(), parts).await;
        let mut allowed = admits(hits, &outcomes);
        let mut charges = Vec::new();
        for part in parts {
            YieldOnce::default().await;
            let slot = &self.slots[part.slot];
            if !allowed {
                charges.extend(charge_denied(slot, part, &mut outcomes));
                continue;
            }
            // Joint hits may be in several slots; they are decided below, after all slots.
            let mut hits = part.hits.clone();
            for hit in hits.iter_mut().filter(|hit| hit.veto == Veto::Jointly) {
                hit.veto = Veto::Never;
            }
            let result = slot.take_now(&hits);
            for (&index, outcome) in part.indices.iter().zip(&result.outcomes) {
                outcomes[index] = *outcome;
            }
            let charged = (part.indices.iter().copied().zip(&hits).zip(&result.outcomes))
                .filter(|((_, hit), outcome)| is_charged(hit, result.allowed, outcome))
                .map(|((index, _), _)| index);
            charges.extend(charged.zip(result.receipt.charges));
            allowed &= result.allowed;
        }
        allowed = allowed && admits(hits, &outcomes);
        // Receipts are in the order of the hits, as in a store without slots.
        charges.sort_by_key(|(index, _)| *index);
        let (kept, excess): (Vec<_>, Vec<_>) = charges.into_iter().partition(|(index, _)| {
            // If another request took the capacity after the peek, the charges of earlier slots are reverted.
            allowed || hits[*index].charge == ChargeWhen::Always
        });
        let receipt_of = |charges: Vec<(usize, Charge)>| Receipt {
            charges: charges.into_iter().map(|(_, charge)| charge).collect(),
        };
        self.revert_all(&receipt_of(excess)).await;
        ChargeResult { allowed, outcomes, receipt: receipt_of(kept) }
    }

    async fn peek_parts(&self, hits: usize, parts: &[SlotPart<'_>]) -> Outcomes {
        call_in_order(hits, parts, |part| self.slots[part.slot].peek_now(&part.hits)).await
    }

    /// Reverts a receipt in all slots. Slots ignore charges of counters that they do not have.
    async fn revert_all(&self, receipt: &Receipt) {
        for slot in &*self.slots {
            YieldOnce::default().await;
            slot.revert_now(receipt);
        }
    }

    /// Charges the waiting requests of a batch, slot by slot.
    fn flush(
        &self,
        waiting: &mut Vec<(usize, usize)>,
        requests: &[&[Hit<'_>]],
        results: &mut [Option<ChargeResult>],
    ) {
        waiting.sort_unstable();
        for (slot, index) in waiting.drain(..) {
            results[index] = Some(self.slots[slot].take_now(requests[index]));
        }
    }
}

impl Store for FaultyStore {
    type Kind = crate::store::Asynchronous;

    async fn take(&self, hits: &[Hit<'_>]) -> Result<ChargeResult, StoreError> {
        self.fail_randomly()?;
        let parts = self.parts(hits);
        match &parts[..] {
            [part] => self.call(part).await,
            _ => Ok(self.take_parts(hits, &parts).await),
        }
    }

    /// Charges requests of one slot together. A request over several slots is charged after all earlier requests and
    /// before all later ones.
    async fn take_many(&self, requests: &[&[Hit<'_>]]) -> Result<Vec<ChargeResult>, StoreError> {
        self.fail_randomly()?;
        let mut results: Vec<Option<ChargeResult>> = vec![None; requests.len()];
        let mut waiting = Vec::new();
        for (index, hits) in requests.iter().enumerate() {
            let parts = self.parts(hits);
            if let [part] = &parts[..] {
                waiting.push((part.slot, index));
                continue;
            }
            self.flush(&mut waiting, requests, &mut results);
            results[index] = Some(self.take_parts(hits, &parts).await);
        }
        self.flush(&mut waiting, requests, &mut results);
        Ok(results.into_iter().flatten().collect())
    }

    async fn peek(&self, hits: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        self.fail_randomly()?;
        Ok(self.peek_parts(hits.len(), &self.parts(hits)).await)
    }

    async fn revert(&self, receipt: &Receipt) -> Result<(), StoreError> {
        self.fail_randomly()?;
        self.revert_all(receipt).await;
        Ok(())
    }

    async fn refund(&self, hits: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        self.fail_randomly()?;
        let refund = |part: &SlotPart<'_>| self.slots[part.slot].refund_now(&part.hits);
        Ok(call_in_order(hits.len(), &self.parts(hits), refund).await)
    }

    async fn reset(&self, hits: &[Hit<'_>]) -> Result<(), StoreError> {
        self.fail_randomly()?;
        for part in self.parts(hits) {
            YieldOnce::default().await;
            self.slots[part.slot].reset_now(&part.hits);
        }
        Ok(())
    }
}

/// A future that yields once to other tasks.
#[derive(Default)]
struct YieldOnce {
    has_yielded: bool,
}

impl Future for YieldOnce {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Charges the hits of a denied request that are always charged. `outcomes` of a peek at all hits determine whether
/// each hit fits, and are updated.
fn charge_denied(
    slot: &ModelStore,
    part: &SlotPart<'_>,
    outcomes: &mut Outcomes,
) -> Vec<(usize, Charge)> {
    let mut charges = Vec::new();
    for (&index, hit) in part.indices.iter().zip(&part.hits) {
        if is_charged(hit, false, &outcomes[index]) {
            let result = slot.take_now(&[*hit]);
            let after = slot.peek_now(&[hit.with_required(1)])[0];
            outcomes[index] = after.charged_after(&outcomes[index]);
            charges.extend(result.receipt.charges.into_iter().map(|charge| (index, charge)));
        }
    }
    charges
}

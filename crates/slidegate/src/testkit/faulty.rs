//! A store for tests, with the difficulties of a remote store.
//!
//! Its counters are distributed over slots, like the keys in Redis Cluster, and counters in different slots cannot be
//! charged in one step. Calls fail before or after they have charged, batches are split by slot, and no call completes
//! immediately.
//!
//! A request with counters in several slots first peeks at all of them, and then charges slot by slot. If a slot denies
//! the request in spite of the peek, the store reverts the charges in the other slots, except charges of hits that are
//! always charged.

use std::future::Future;
use std::hash::BuildHasher;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use fastrand::Rng;
use fnv::FnvBuildHasher;
use parking_lot::Mutex;

use crate::call::CallIdentity;
use crate::clock::{Clock, ManualClock};
use crate::hit::{ChargeWhen, Hit, Veto};
use crate::key::{CounterId, Key};
use crate::outcome::Outcome;
use crate::store::{
    Adjustment, CallRecordTable, CallSettlement, Charge, ChargeOnceResult, ChargeResult, Edit,
    Outcomes, PermitChange, Receipt, SettleResult, Store, StoreError, SyncStore, admits,
    change_permit, has_charge, outcome_of_charge,
};

use super::model::ModelStore;

/// Maximum number of records of calls with an id, and of their bytes.
const MAX_CALL_RECORDS: usize = 100_000;
const MAX_CALL_RECORD_BYTES: usize = 64 << 20;

/// Percentages of store calls that fail, by kind of failure.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Percentage of calls that do not reach the store, and so charge nothing.
    pub unavailable: u32,
    /// Percentage of calls that time out before they have charged anything.
    pub lost_before: u32,
    /// Percentage of calls that time out after they have charged the request.
    pub lost_after: u32,
}

/// A store whose calls fail at random. Clones share the counters and the faults, like several instances of a service
/// that use the same store.
#[derive(Clone, Debug)]
pub struct FaultyStore {
    slots: Arc<[ModelStore]>,
    clock: ManualClock,
    calls: Arc<CallRecordTable>,
    faults: Arc<Mutex<Faults>>,
    rng: Arc<Mutex<Rng>>,
}

/// The hits of a request whose counters are in one slot, and the index of each hit in the request.
struct HitsInSlot<'h> {
    slot: usize,
    indices: Vec<usize>,
    hits: Vec<Hit<'h>>,
}

impl HitsInSlot<'_> {
    /// Returns the charges of a receipt for the hits of this slot. Each charge has the index of its hit in the request.
    fn charges_with_request_indexes(&self, receipt: Receipt) -> impl Iterator<Item = Charge> {
        receipt.into_iter().map(|charge| Charge {
            hit_index: self.indices[charge.hit_index as usize] as u32,
            ..charge
        })
    }
}

/// Runs `call` for the hits of each slot, and returns the outcomes in the order of the request's hits. `hits` is the
/// number of hits in the request.
async fn call_for_each_slot(
    hits: usize,
    parts: &[HitsInSlot<'_>],
    call: impl Fn(&HitsInSlot<'_>) -> Outcomes,
) -> Outcomes {
    let mut outcomes = vec![None; hits];
    for part in parts {
        YieldOnce::default().await;
        for (&index, outcome) in part.indices.iter().zip(&call(part)) {
            outcomes[index] = Some(*outcome);
        }
    }
    outcomes.into_iter().flatten().collect()
}

impl FaultyStore {
    /// Creates an empty store with `slots` slots. `seed` determines which calls fail.
    pub fn new(clock: &ManualClock, slots: usize, faults: Faults, seed: u64) -> Self {
        Self {
            slots: (0..slots).map(|_| ModelStore::new(clock.clone())).collect(),
            clock: clock.clone(),
            calls: Arc::new(CallRecordTable::new(MAX_CALL_RECORDS, MAX_CALL_RECORD_BYTES)),
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

    /// Returns the slot of the counter of a hit. As in a Redis Cluster, the attributes in the key determine it.
    fn slot_index(&self, hit: &Hit<'_>) -> usize {
        let id = hit.counter_id();
        let attributes = match &id {
            CounterId::Text(text) => text.rsplit_once('}').map_or(&**text, |(key, _)| key),
            CounterId::Fingerprint(_) => "",
        };
        let attributes =
            attributes.split_once('{').map_or(attributes, |(_, attributes)| attributes);
        FnvBuildHasher::default().hash_one(attributes) as usize % self.slots.len()
    }

    fn split_by_slot<'h>(&self, hits: &[Hit<'h>]) -> Vec<HitsInSlot<'h>> {
        let mut parts: Vec<HitsInSlot<'h>> = Vec::new();
        for (index, hit) in hits.iter().enumerate() {
            let slot = self.slot_index(hit);
            let part = parts.iter().position(|part| part.slot == slot).unwrap_or_else(|| {
                parts.push(HitsInSlot { slot, indices: Vec::new(), hits: Vec::new() });
                parts.len() - 1
            });
            parts[part].indices.push(index);
            parts[part].hits.push(*hit);
        }
        parts
    }

    /// Returns `true` with a probability of `percent` percent.
    fn draw_true_with_probability(&self, percent: u32) -> bool {
        self.rng.lock().u32(..100) < percent
    }

    fn fail_randomly(&self) -> Result<(), StoreError> {
        if self.draw_true_with_probability(self.faults().unavailable) {
            Err(StoreError::Unavailable("injected fault".into()))
        } else {
            Ok(())
        }
    }

    /// Charges the hits of one slot. After an injected timeout, the caller does not know whether the hits were charged.
    async fn charge_hits_in_slot(&self, part: &HitsInSlot<'_>) -> Result<ChargeResult, StoreError> {
        YieldOnce::default().await;
        if self.draw_true_with_probability(self.faults().lost_before) {
            return fail_with_timeout();
        }
        let result = self.slots[part.slot].charge(&part.hits);
        if self.draw_true_with_probability(self.faults().lost_after) {
            fail_with_timeout()
        } else {
            Ok(result)
        }
    }

    /// Charges a request whose hits are in several slots, slot by slot.
    async fn charge_hits_slot_by_slot(
        &self,
        hits: &[Hit<'_>],
        parts: &[HitsInSlot<'_>],
    ) -> ChargeResult {
        let mut outcomes = self.peek_hits_in_slots(hits.len(), parts).await;
        let mut allowed = admits(hits, &outcomes);
        let mut charges = Vec::new();
        for part in parts {
            YieldOnce::default().await;
            let slot = &self.slots[part.slot];
            if !allowed {
                charges.extend(charge_hits_of_denied_request(slot, part, &mut outcomes));
                continue;
            }
            // Joint hits may be in several slots, so no slot may decide them. They are decided after all slots have
            // been charged.
            let mut hits = part.hits.clone();
            for hit in hits.iter_mut().filter(|hit| hit.veto == Veto::Jointly) {
                hit.veto = Veto::Never;
            }
            let result = slot.charge(&hits);
            for (&index, outcome) in part.indices.iter().zip(&result.outcomes) {
                outcomes[index] = *outcome;
            }
            charges.extend(part.charges_with_request_indexes(result.receipt));
            allowed &= result.allowed;
        }
        allowed = allowed && admits(hits, &outcomes);
        // Receipts are in the order of the hits, as in a store without slots.
        charges.sort_by_key(|charge| charge.hit_index);
        let (kept, excess): (Vec<_>, Vec<_>) = charges.into_iter().partition(|charge| {
            // If another request took the capacity after the peek, the charges of earlier slots are reverted.
            allowed || hits[charge.hit_index as usize].charge == ChargeWhen::Always
        });
        self.adjust_in_all_slots(&excess.into_iter().collect(), Adjustment::Revert).await;
        ChargeResult { allowed, outcomes, receipt: kept.into_iter().collect() }
    }

    async fn peek_hits_in_slots(&self, hits: usize, parts: &[HitsInSlot<'_>]) -> Outcomes {
        call_for_each_slot(hits, parts, |part| self.slots[part.slot].peek(&part.hits)).await
    }

    /// Changes the charges of a receipt, each in the slot of its counter.
    async fn adjust_in_all_slots(&self, receipt: &Receipt, adjustment: Adjustment) {
        for charge in receipt.charges_to_revert(adjustment) {
            YieldOnce::default().await;
            let hit = Hit::new(Key::from_counter_id(&charge.counter, 0), &charge.limit, 0);
            let slot = self.slot_index(&hit);
            self.slots[slot].adjust(&std::iter::once(charge).collect(), Adjustment::Revert);
        }
        for charge in receipt.additional_charges(adjustment) {
            let hit = charge.reported_hit();
            YieldOnce::default().await;
            self.slots[self.slot_index(&hit)].charge(&[hit]);
        }
    }

    /// Charges the waiting requests of a batch, each of which needs only one slot. `waiting` contains pairs of a slot
    /// and the index of a request; the result is stored in `results` at the same index.
    fn charge_waiting_requests(
        &self,
        waiting: &mut Vec<(usize, usize)>,
        requests: &[&[Hit<'_>]],
        results: &mut [Option<ChargeResult>],
    ) {
        waiting.sort_unstable();
        for (slot, index) in waiting.drain(..) {
            results[index] = Some(self.slots[slot].charge(requests[index]));
        }
    }
}

impl Store for FaultyStore {
    type Kind = crate::store::Asynchronous;

    async fn charge_async(&self, hits: &[Hit<'_>]) -> Result<ChargeResult, StoreError> {
        self.fail_randomly()?;
        let parts = self.split_by_slot(hits);
        match &parts[..] {
            [part] => self.charge_hits_in_slot(part).await,
            _ => Ok(self.charge_hits_slot_by_slot(hits, &parts).await),
        }
    }

    /// Charges requests that need only one slot together. A request that needs several slots is charged after all
    /// earlier requests of the batch, and before all later ones.
    async fn charge_many_async(
        &self,
        requests: &[&[Hit<'_>]],
    ) -> Result<Vec<ChargeResult>, StoreError> {
        self.fail_randomly()?;
        let mut results: Vec<Option<ChargeResult>> = vec![None; requests.len()];
        let mut waiting = Vec::new();
        for (index, hits) in requests.iter().enumerate() {
            let parts = self.split_by_slot(hits);
            if let [part] = &parts[..] {
                waiting.push((part.slot, index));
                continue;
            }
            self.charge_waiting_requests(&mut waiting, requests, &mut results);
            results[index] = Some(self.charge_hits_slot_by_slot(hits, &parts).await);
        }
        self.charge_waiting_requests(&mut waiting, requests, &mut results);
        Ok(results.into_iter().flatten().collect())
    }

    async fn charge_once_async(
        &self,
        hits: &[Hit<'_>],
        identity: &CallIdentity,
    ) -> Result<ChargeOnceResult, StoreError> {
        self.fail_randomly()?;
        YieldOnce::default().await;
        if self.draw_true_with_probability(self.faults().lost_before) {
            return fail_with_timeout();
        }
        if let Some(found) = self.calls.begin_call(identity, hits, self.clock.now()) {
            return Ok(found);
        }
        let result = self.charge_hits_slot_by_slot(hits, &self.split_by_slot(hits)).await;
        self.calls.finish_call(identity, hits, Some(&result), self.clock.now());
        if self.draw_true_with_probability(self.faults().lost_after) {
            fail_with_timeout()
        } else {
            Ok(ChargeOnceResult::Decided(result))
        }
    }

    async fn settle_async(&self, settlement: &CallSettlement) -> Result<SettleResult, StoreError> {
        self.fail_randomly()?;
        YieldOnce::default().await;
        if self.draw_true_with_probability(self.faults().lost_before) {
            return fail_with_timeout();
        }
        let result = self.calls.settle(settlement, self.clock.now(), || {
            for charge in &settlement.reverted {
                let slot = &self.slots[self.slot_index(&charge.reported_hit())];
                slot.adjust(&std::iter::once(charge.clone()).collect(), Adjustment::Revert);
            }
            for charge in &settlement.added {
                let hit = charge.reported_hit();
                self.slots[self.slot_index(&hit)].charge(&[hit]);
            }
        });
        if self.draw_true_with_probability(self.faults().lost_after) {
            fail_with_timeout()
        } else {
            Ok(result)
        }
    }

    async fn peek_async(&self, hits: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        self.fail_randomly()?;
        Ok(self.peek_hits_in_slots(hits.len(), &self.split_by_slot(hits)).await)
    }

    fn revert_later(&self, receipt: Receipt) {
        for charge in receipt.charges() {
            let slot = &self.slots[self.slot_index(&charge.reported_hit())];
            slot.adjust(&std::iter::once(charge.clone()).collect(), Adjustment::Revert);
        }
    }

    async fn adjust_async(
        &self,
        receipt: &Receipt,
        adjustment: Adjustment,
    ) -> Result<(), StoreError> {
        self.fail_randomly()?;
        self.adjust_in_all_slots(receipt, adjustment).await;
        Ok(())
    }

    async fn change_permit_async(
        &self,
        permit: &Receipt,
        change: PermitChange,
    ) -> Result<bool, StoreError> {
        self.fail_randomly()?;
        Ok(change_permit(permit, change, |charge, change| {
            let slot = &self.slots[self.slot_index(&charge.reported_hit())];
            slot.change_permit(&std::iter::once(charge.clone()).collect(), change)
        }))
    }

    async fn edit_async(&self, hits: &[Hit<'_>], edit: Edit) -> Result<Outcomes, StoreError> {
        self.fail_randomly()?;
        let edit_slot = |part: &HitsInSlot<'_>| self.slots[part.slot].edit(&part.hits, edit);
        Ok(call_for_each_slot(hits.len(), &self.split_by_slot(hits), edit_slot).await)
    }
}

/// Returns the error of a call that did not respond in time.
fn fail_with_timeout<T>() -> Result<T, StoreError> {
    Err(StoreError::TimedOut("injected fault".into()))
}

/// A future that is pending on the first poll, so that other tasks run, and complete on the second poll.
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

/// Charges the hits of a denied request that are always charged, and returns the charges. Before the call, `outcomes`
/// must contain the results of a peek at all hits. The function replaces the outcomes of the charged hits.
fn charge_hits_of_denied_request(
    slot: &ModelStore,
    part: &HitsInSlot<'_>,
    outcomes: &mut Outcomes,
) -> Vec<Charge> {
    let mut charges = Vec::new();
    let before: Vec<Outcome> = part.indices.iter().map(|&index| outcomes[index]).collect();
    for (nth, (&index, hit)) in part.indices.iter().zip(&part.hits).enumerate() {
        if !has_charge(&part.hits, &before, nth, false) {
            continue;
        }
        let result = slot.charge(&[hit.charged_always()]);
        let is_block = hit.charge.block().is_some();
        if hit.cost > 0 {
            let after = slot.peek(&[hit.with_required(1)])[0];
            outcomes[index] = outcome_of_charge(hit, &before[nth], after);
        }
        let charge = |charge| Charge { hit_index: index as u32, ..charge };
        charges.extend(result.receipt.into_iter().filter(|_| !is_block).map(charge));
    }
    charges
}

//! The reference model: a store that keeps every counter in a map and decides one request at a time.
//!
//! The model implements the specification directly, and shares only the algorithms with real stores.

use std::any::Any;
use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;

use crate::algorithm::{AnyCounter, Counter, MAX_AHEAD_OF_CLOCK_US, with_counter};
use crate::call::{CallId, CallIdentity};
use crate::clock::{Clock, ManualClock, Timestamp};
use crate::hit::{ChargeWhen, Hit, Veto};
use crate::outcome::Outcome;
use crate::store::{
    Adjustment, CallSettlement, Charge, ChargeOnceResult, ChargeResult, CounterId, Edit, Outcomes,
    PermitChange, Receipt, SettleResult, SyncStore, change_permit,
};

/// The state of each counter.
type CounterStates = HashMap<CounterId, Box<dyn Any + Send>>;

/// The reference store, with which the conformance suite compares other stores.
#[derive(Debug)]
pub struct ModelStore {
    clock: ManualClock,
    states: Mutex<CounterStates>,
    calls: Mutex<HashMap<CallId, ModelCallRecord>>,
}

/// The record of an admitted call, of a settled reservation, or of both.
#[derive(Debug)]
struct ModelCallRecord {
    request_digest: u64,
    created_at: Timestamp,
    /// The time until which a repetition returns the result of the call. A settlement is remembered forever.
    expires_at: Timestamp,
    result: Option<ChargeResult>,
    settled_value: Option<u64>,
}

impl ModelStore {
    /// Creates an empty store that reads `clock`.
    pub fn new(clock: ManualClock) -> Self {
        Self { clock, states: Mutex::default(), calls: Mutex::default() }
    }
}

/// Returns the current time plus the phase of the hit's key. The phase is an offset that is added to all times of a
/// counter, so that the windows of different keys begin at different times.
fn counter_time(clock: &ManualClock, hit: &Hit<'_>) -> Timestamp {
    let now = clock.now();
    Timestamp::from_micros(now.as_micros() + hit.limit.phase_us(&hit.key, now))
}

/// Returns the state of a counter. If `now` is given, the state is first set back if it is ahead of `now`.
fn counter_state<'s, C: Counter>(
    counter: &C,
    states: &'s mut CounterStates,
    id: &CounterId,
    now: Option<Timestamp>,
) -> &'s mut C::State {
    let state = states.entry(id.clone()).or_insert_with(|| Box::new(C::State::default()));
    let Some(state) = state.downcast_mut() else {
        unreachable!("the identifier of a counter contains its algorithm")
    };
    match now {
        Some(now) => counter.state_at(state, now),
        None => state,
    }
}

fn peek_counter(
    states: &mut CounterStates,
    counter: AnyCounter,
    id: &CounterId,
    now: Timestamp,
    required: u64,
) -> Outcome {
    with_counter!(counter, counter => {
        counter.peek(counter_state(&counter, states, id, Some(now)), now, required)
    })
}

fn charge_counter(
    states: &mut CounterStates,
    counter: AnyCounter,
    id: &CounterId,
    now: Timestamp,
    cost: u64,
) -> (Timestamp, u64) {
    with_counter!(counter, counter => {
        let state = counter_state(&counter, states, id, Some(now));
        let units = counter.chargeable_units(state, now, cost);
        (counter.charge(state, now, units).charged_at, units)
    })
}

impl ModelStore {
    /// Returns the outcome of each hit. Units that earlier hits of the same request would charge to the same counter
    /// are treated as used.
    fn peek_hits(&self, states: &mut CounterStates, hits: &[Hit<'_>]) -> Outcomes {
        let mut pending: HashMap<CounterId, u64> = HashMap::new();
        let mut outcomes = Outcomes::new();
        for hit in hits {
            let id = hit.counter_id();
            let pending_units = pending.entry(id.clone()).or_default();
            let required = pending_units.saturating_add(hit.required);
            let outcome = peek_counter(
                states,
                hit.limit.counter(),
                &id,
                counter_time(&self.clock, hit),
                required,
            );
            let is_pending = match hit.charge {
                ChargeWhen::IfAdmitted | ChargeWhen::Always => true,
                ChargeWhen::IfAdmittedAndFits => outcome.fits(),
                ChargeWhen::Block(_) => false,
            };
            if is_pending {
                *pending_units = pending_units.saturating_add(hit.cost);
            }
            outcomes.push(outcome);
        }
        outcomes
    }
}

impl ModelStore {
    fn revert_charge(&self, charge: &Charge) {
        let states = &mut *self.states.lock();
        with_counter!(charge.limit.counter(), counter => {
            let state = counter_state(&counter, states, &charge.counter, None);
            counter.revert(state, charge.charged_at, charge.cost);
        });
    }
}

impl SyncStore for ModelStore {
    fn charge(&self, hits: &[Hit<'_>]) -> ChargeResult {
        let states = &mut *self.states.lock();
        let mut outcomes = self.peek_hits(states, hits);
        let fitting = |veto: Veto| {
            let pairs = hits.iter().zip(&outcomes).filter(move |(hit, _)| hit.veto == veto);
            pairs.map(|(_, outcome)| outcome.fits())
        };
        let has_joint = fitting(Veto::Jointly).next().is_some();
        let allowed = fitting(Veto::Alone).all(|fits| fits)
            && (!has_joint || fitting(Veto::Jointly).any(|fits| fits));
        let fits: Vec<bool> = outcomes.iter().map(Outcome::fits).collect();
        let mut receipt = Receipt::default();
        for (hit_index, (hit, outcome)) in (0..).zip(hits.iter().zip(&mut outcomes)) {
            let is_charged = match hit.charge {
                ChargeWhen::IfAdmitted => allowed,
                ChargeWhen::IfAdmittedAndFits => allowed && outcome.fits(),
                ChargeWhen::Always => true,
                ChargeWhen::Block(block) => {
                    let limits = &fits[..hit_index as usize];
                    let limits = limits.iter().rev().take(block.limits.into());
                    if outcome.fits() {
                        limits.into_iter().any(|fits| !fits)
                    } else {
                        block.extends
                    }
                }
            };
            if !is_charged {
                continue;
            }
            let (counter, id) = (hit.limit.counter(), hit.counter_id());
            let now = counter_time(&self.clock, hit);
            let phase_us = hit.limit.phase_us(&hit.key, self.clock.now());
            let charge = Charge::without_units(hit, hit_index, id.clone(), phase_us);
            let is_block = hit.charge.block().is_some();
            if hit.cost == 0 {
                if !is_block {
                    receipt.push(charge);
                }
                continue;
            }
            let (charged_at, cost) = charge_counter(states, counter, &id, now, hit.cost);
            let after = peek_counter(states, counter, &id, now, 1);
            *outcome = match (outcome.fits() && !is_block, after.retry_after()) {
                (true, _) => after.charged(),
                // The hit was denied, but one unit fits: the wait is the minimum, 1 us.
                (false, Some(Duration::ZERO)) => {
                    Outcome::new(after.free(), after.reset_after(), Some(Duration::from_micros(1)))
                }
                (false, _) => after,
            };
            if !is_block {
                receipt.push(Charge { charged_at, cost, ..charge });
            }
        }
        ChargeResult { allowed, outcomes, receipt }
    }

    fn charge_once(&self, hits: &[Hit<'_>], identity: &CallIdentity) -> ChargeOnceResult {
        let now = self.clock.now();
        let records = &mut *self.calls.lock();
        let known = records.get_mut(&identity.id).filter(|record| record.expires_at > now);
        if let Some(record) = known {
            let lead_us = record.created_at.as_micros().saturating_sub(now.as_micros());
            if lead_us > MAX_AHEAD_OF_CLOCK_US {
                record.created_at = now;
                record.expires_at = Timestamp::from_micros(record.expires_at.as_micros() - lead_us);
            }
            return match &record.result {
                Some(result) if record.request_digest == identity.request_digest => {
                    let age = now.as_micros().saturating_sub(record.created_at.as_micros());
                    let age = Duration::from_micros(age);
                    ChargeOnceResult::Repeated { result: Some(result.clone()), age }
                }
                _ => ChargeOnceResult::OtherRequest,
            };
        }
        let result = self.charge(hits);
        if result.allowed {
            let record = ModelCallRecord {
                request_digest: identity.request_digest,
                created_at: now,
                expires_at: now.after(identity.ttl),
                result: Some(result.clone()),
                settled_value: None,
            };
            records.insert(identity.id, record);
        }
        ChargeOnceResult::Decided(result)
    }

    fn settle(&self, settlement: &CallSettlement) -> SettleResult {
        let now = self.clock.now();
        let records = &mut *self.calls.lock();
        let record = records.entry(settlement.id).or_insert_with(|| ModelCallRecord {
            request_digest: 0,
            created_at: now,
            expires_at: now,
            result: None,
            settled_value: None,
        });
        match record.settled_value {
            Some(value) if value == settlement.value_digest => return SettleResult::Repeated,
            Some(_) => return SettleResult::OtherValue,
            None => record.settled_value = Some(settlement.value_digest),
        }
        for charge in &settlement.reverted {
            self.revert_charge(charge);
        }
        for charge in &settlement.added {
            self.charge(&[charge.reported_hit()]);
        }
        SettleResult::Settled
    }

    fn peek(&self, hits: &[Hit<'_>]) -> Outcomes {
        self.peek_hits(&mut self.states.lock(), hits)
    }

    fn adjust(&self, receipt: &Receipt, adjustment: Adjustment) {
        for charge in receipt.charges_to_revert(adjustment) {
            self.revert_charge(&charge);
        }
        for charge in receipt.additional_charges(adjustment) {
            self.charge(&[charge.reported_hit()]);
        }
    }

    fn change_permit(&self, permit: &Receipt, change: PermitChange) -> bool {
        let now = self.clock.now();
        let states = &mut *self.states.lock();
        change_permit(permit, change, |charge, change| {
            let AnyCounter::Concurrent(counter) = charge.limit.counter() else { return true };
            let state = counter_state(&counter, states, &charge.counter, Some(now));
            match change {
                PermitChange::Release => counter.release(state, now, charge.charged_at),
                PermitChange::Renew => counter.renew(state, now, charge.charged_at),
            }
        })
    }

    fn edit(&self, hits: &[Hit<'_>], edit: Edit) -> Outcomes {
        let states = &mut *self.states.lock();
        let edit_hit = |hit: &Hit<'_>| {
            let (id, now) = (hit.counter_id(), counter_time(&self.clock, hit));
            with_counter!(hit.limit.counter(), counter => {
                let state = counter_state(&counter, states, &id, Some(now));
                match edit {
                    Edit::Refund => counter.refund(state, now, hit.cost),
                    Edit::Reset => *state = Default::default(),
                }
                counter.peek(state, now, 1)
            })
        };
        hits.iter().map(edit_hit).collect()
    }
}

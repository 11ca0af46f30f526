//! A store of counters in a map, the pattern of a store over a database. It supports only `sliding_buckets`.
//!
//! ```sh
//! cargo run -p slidegate --features testkit --example store
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slidegate::algorithm::{AnyAdditive, Counter, SlidingBuckets};
use slidegate::store::{Adjustment, Asynchronous, Charge, ChargeResult, CounterId, Edit, Hit};
use slidegate::store::{Outcomes, Receipt, Store, StoreError};
use slidegate::store::{admits, has_charge, outcome_of_charge, pending_units};
use slidegate::testkit::{block_on, conformance::run_trace, properties};
use slidegate::{Algorithm, Limit, Limiter, ManualClock, Timestamp, clock::Clock};

/// The counters, each with its algorithm and state. In a database, a counter has a row per bucket, with the units that
/// `AdditiveCounter::visit_units` returns. `AdditiveCounter::state_from_buckets` creates the state from these rows.
type Table = HashMap<CounterId, (SlidingBuckets, <SlidingBuckets as Counter>::State)>;

/// The store. Clones share the counters, whose lock takes the place of a transaction.
#[derive(Clone)]
pub(crate) struct MapStore<C> {
    clock: C,
    table: Arc<Mutex<Table>>,
}

/// Returns the algorithm of a limit, with its quota.
fn sliding_buckets(limit: &Limit) -> Result<SlidingBuckets, String> {
    match (limit.algorithm(), limit.additive()) {
        (Algorithm::SlidingBuckets { .. }, Some(AnyAdditive::SlidingBuckets(found))) => Ok(found),
        _ => Err("use sliding_buckets, the only algorithm of this store".to_owned()),
    }
}

/// Returns the outcome of each hit. Units that earlier hits of the call charge to the same counter are not free.
fn peek(table: &mut Table, call: &[Hit<'_>], now: Timestamp) -> Result<Outcomes, StoreError> {
    let ids: Vec<CounterId> = call.iter().map(Hit::counter_id).collect();
    let mut outcomes = Outcomes::new();
    for (nth, hit) in call.iter().enumerate() {
        let pending = pending_units(&call[..nth], &outcomes, |other| ids[other] == ids[nth]);
        let buckets = sliding_buckets(hit.limit).map_err(StoreError::Unsupported)?;
        let state = table.get_mut(&ids[nth]).map(|(_, state)| buckets.state_at(state, now).clone());
        let required = hit.required.saturating_add(pending);
        outcomes.push(buckets.peek(&state.unwrap_or_default(), now, required));
    }
    Ok(outcomes)
}

/// Decides a call, and charges its hits.
fn charge(table: &mut Table, call: &[Hit<'_>], now: Timestamp) -> Result<ChargeResult, StoreError> {
    let mut outcomes = peek(table, call, now)?;
    let (allowed, mut receipt) = (admits(call, &outcomes), Receipt::default());
    for (nth, hit) in call.iter().enumerate() {
        if !has_charge(call, &outcomes, nth, allowed) {
            continue;
        }
        let mut charge = Charge::without_units(hit, nth as u32, hit.counter_id(), 0);
        if hit.cost > 0 {
            let buckets = sliding_buckets(hit.limit).map_err(StoreError::Unsupported)?;
            let (_, state) = table.entry(hit.counter_id()).or_insert((buckets, Default::default()));
            let effect = buckets.charge(state, now, hit.cost);
            outcomes[nth] = outcome_of_charge(hit, &outcomes[nth], effect.outcome);
            (charge.charged_at, charge.cost) = (effect.charged_at, hit.cost);
        }
        if hit.charge.block().is_none() {
            receipt.push(charge);
        }
    }
    Ok(ChargeResult { allowed, outcomes, receipt })
}

impl<C: Clock> MapStore<C> {
    pub(crate) fn new(clock: C) -> Self {
        Self { clock, table: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes unused counters, a second late because the clock may be set back. Returns the number of the others.
    pub(crate) fn remove_expired(&self) -> usize {
        let (mut table, now) = (self.lock(), self.clock.now().as_micros());
        table.retain(|_, (buckets, state)| buckets.expires_at(state).as_micros() + 1_000_000 > now);
        table.len()
    }
}

impl<C: Clock> Store for MapStore<C> {
    type Kind = Asynchronous;
    fn supports(&self, limit: &Limit) -> Result<(), String> {
        sliding_buckets(limit).map(drop)
    }

    async fn charge_async(&self, call: &[Hit<'_>]) -> Result<ChargeResult, StoreError> {
        charge(&mut self.lock(), call, self.clock.now())
    }

    async fn peek_async(&self, call: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        peek(&mut self.lock(), call, self.clock.now())
    }

    async fn adjust_async(&self, receipt: &Receipt, change: Adjustment) -> Result<(), StoreError> {
        let table = &mut self.lock();
        for charge in receipt.charges_to_revert(change) {
            if let Some((buckets, state)) = table.get_mut(&charge.counter) {
                buckets.revert(state, charge.charged_at, charge.cost);
            }
        }
        for added in receipt.additional_charges(change) {
            charge(table, &[added.reported_hit()], self.clock.now())?;
        }
        Ok(())
    }

    async fn edit_async(&self, hits: &[Hit<'_>], edit: Edit) -> Result<Outcomes, StoreError> {
        let (table, now, mut outcomes) = (&mut self.lock(), self.clock.now(), Outcomes::new());
        for hit in hits {
            if edit == Edit::Reset {
                table.remove(&hit.counter_id());
            } else if let Some((buckets, state)) = table.get_mut(&hit.counter_id()) {
                buckets.refund(buckets.state_at(state, now), now, hit.cost);
            }
            outcomes.push(peek(table, &[hit.with_required(1)], now)?[0]);
        }
        Ok(outcomes)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (clock, algorithm) =
        (ManualClock::default(), Algorithm::SlidingBuckets { precision: None });
    let new_store = || MapStore::new(clock.clone());
    for seed in 0..20 {
        block_on(run_trace(&new_store(), &clock, &[algorithm], seed, 1_000))?;
        block_on(properties::all_properties_hold(new_store, &clock, seed));
    }
    let (store, limit) = (new_store(), Limit::new("3/min".parse()?, algorithm)?);
    let limiter = Limiter::with_store("customers", [limit], store.clone())?;
    println!("allowed: {:?}", [(); 4].map(|()| block_on(limiter.check_async("ann")).is_allowed()));
    clock.advance(limit.window() * 2);
    println!("{} counters remain after two minutes", store.remove_expired());
    Ok(())
}

// It prints:
//
// allowed: [true, true, true, false]
// 0 counters remain after two minutes

//! The conformance suite for stores.
//!
//! The suite runs a trace, a random sequence of calls, on a store and on the reference model. All outcomes must be
//! equal.

mod calls;
mod edits;

use std::error::Error;
use std::fmt;

use crate::algorithm::Algorithm;
use crate::clock::ManualClock;
use crate::hit::Hit;
use crate::key::{Key, Scope, Value};
use crate::store::{
    Adjustment, ChargeResult, Edit, Outcomes, PermitChange, Receipt, Store, StoreError, SyncStore,
};

use super::model::ModelStore;
use super::trace::{ConformanceStep, ConformanceStepGenerator, PlannedHit};

pub use super::trace::MAX_BACKWARD_STEP;

/// The first difference between the results of a store and the results of the reference model.
#[derive(Debug)]
pub struct Mismatch {
    /// Seed of the trace. The same seed generates the same trace.
    pub seed: u64,
    /// Index of the trace step at which the results differ.
    pub step: usize,
    /// Text that shows the result of the store and the result of the model.
    pub description: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}, step {}: {}", self.seed, self.step, self.description)
    }
}

impl Error for Mismatch {}

/// Counts of the operations in a trace. Tests use the counts to check that the trace is representative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceStats {
    /// Requests that the store decided.
    pub decisions: usize,
    /// Requests that the store allowed.
    pub allowed: usize,
    /// Hits that did not fit into their limit, but would fit after a wait.
    pub waits: usize,
    /// Refund calls that succeeded.
    pub refunds: usize,
    /// Permits that were live and were released or renewed.
    pub permit_changes: usize,
    /// Repetitions of a call with an id for which the store returned the result of the first call.
    pub repeated_calls: usize,
    /// Calls to the store that failed, without failed calls that the suite retried.
    pub failures: usize,
}

/// All algorithms with default parameters, including the algorithm that bounds requests in flight.
pub const ALL_ALGORITHMS: [Algorithm; Algorithm::ALL.len() + 1] = {
    let mut algorithms = [Algorithm::Concurrent; Algorithm::ALL.len() + 1];
    let mut index = 0;
    while index < Algorithm::ALL.len() {
        algorithms[index] = Algorithm::ALL[index];
        index += 1;
    }
    algorithms
};

/// One charge in this number has an id, and is repeated.
const IDENTIFIED_CALL_INTERVAL: usize = 4;

/// Runs a random trace of `steps` steps on a store and on the reference model, and compares all results.
///
/// The limits of the trace use `algorithms`. The store must be empty and must read `clock`.
///
/// Calls to the store may fail. A call that fails as unavailable must not have charged anything. A call that times out
/// must have charged the whole request or nothing.
///
/// A store that remembers no calls returns [`StoreError::Unsupported`] for every call with an id and every settlement.
/// The trace then charges and adjusts without ids.
///
/// # Errors
/// Returns the first difference between the store and the model.
pub async fn run_trace<S: Store>(
    store: &S,
    clock: &ManualClock,
    algorithms: &[Algorithm],
    seed: u64,
    steps: usize,
) -> Result<TraceStats, Mismatch> {
    let generator = ConformanceStepGenerator::new(seed, algorithms, false);
    run_steps(store, clock, generator, seed, steps).await
}

/// Runs a random trace as [`run_trace`] does, whose clock also steps ahead and back by up to several windows.
///
/// Before a step, the counters whose units have all expired are reset, because a store may have removed them. After a
/// step, a peek sets back all counters of keys with several limits: a store that keeps these limits in one value may
/// remove a counter that is ahead, after its time to live. The fixed windows of these keys are then reset: a window
/// that has begun is not set back, so a store may remove it before its end, by as much as the clock has stepped.
///
/// # Errors
/// Returns the first difference between the store and the model.
pub async fn run_trace_with_clock_steps<S: Store>(
    store: &S,
    clock: &ManualClock,
    algorithms: &[Algorithm],
    seed: u64,
    steps: usize,
) -> Result<TraceStats, Mismatch> {
    let generator = ConformanceStepGenerator::new(seed, algorithms, true);
    run_steps(store, clock, generator, seed, steps).await
}

async fn run_steps<S: Store>(
    store: &S,
    clock: &ManualClock,
    mut generator: ConformanceStepGenerator,
    seed: u64,
    steps: usize,
) -> Result<TraceStats, Mismatch> {
    clock.set(generator.now());
    let supports_idempotency = calls::supports_idempotency(store)
        .await
        .map_err(|description| Mismatch { seed, step: 0, description })?;
    let mut run = ConformanceRun {
        store,
        model: ModelStore::new(clock.clone()),
        values: (0..generator.key_count()).map(|key| format!("key {key}")).collect(),
        scope: Scope::new("domain", "rule", "limit", &["key"]),
        receipts: Vec::new(),
        calls: Vec::new(),
        supports_idempotency,
        stats: TraceStats::default(),
    };
    for step in 0..steps {
        let result = match generator.next_step() {
            ConformanceStep::SetClock(now) => {
                clock.set(now);
                Ok(Outcomes::new())
            }
            ConformanceStep::StepClock(now, plans) => {
                run.compare_clock_step_with_model(clock, now, &plans).await
            }
            ConformanceStep::Charge(plans)
                if step % IDENTIFIED_CALL_INTERVAL == 0 && !plans.is_empty() =>
            {
                run.compare_call_with_model(&plans, step as u64).await
            }
            ConformanceStep::Charge(plans) => run.compare_charge_with_model(&plans).await,
            ConformanceStep::ChargeMany(requests) => {
                run.compare_charge_many_with_model(&requests).await
            }
            ConformanceStep::Peek(plans) => run.compare_peek_with_model(&plans).await,
            ConformanceStep::Adjust(age, adjustment) if step % 2 == 0 => {
                run.compare_settlement_with_model(age, adjustment, step as u64).await
            }
            ConformanceStep::Adjust(age, adjustment) => {
                run.compare_adjust_with_model(age, adjustment).await
            }
            ConformanceStep::ChangePermit(age, change) => {
                run.compare_permit_change_with_model(age, change).await
            }
            ConformanceStep::Refund(plans) => run.compare_refund_with_model(&plans).await,
            ConformanceStep::Reset(plans) => run.compare_reset_with_model(&plans).await,
        };
        match result {
            Ok(outcomes) => generator.record_retry_and_reset_times(&outcomes),
            Err(description) => return Err(Mismatch { seed, step, description }),
        }
    }
    Ok(run.stats)
}

/// A run of a trace: the store, the model, the receipts of the requests so far, and the statistics.
struct ConformanceRun<'s, S> {
    store: &'s S,
    model: ModelStore,
    values: Vec<String>,
    scope: Scope,
    /// For each charged request, the receipt of the store and the receipt of the model.
    receipts: Vec<(Receipt, Receipt)>,
    /// The calls with an id so far.
    calls: Vec<calls::IdentifiedCall>,
    /// Whether the store remembers calls.
    supports_idempotency: bool,
    stats: TraceStats,
}

/// The planned hits of one request, with the key values that the hits borrow.
struct PlannedHitsWithKeyValues<'p> {
    scope: &'p Scope,
    values: Vec<[Value<'p>; 1]>,
    plans: &'p [PlannedHit],
}

impl PlannedHitsWithKeyValues<'_> {
    fn hits(&self) -> Vec<Hit<'_>> {
        let hits = self.plans.iter().zip(&self.values).map(|(plan, value)| Hit {
            key: Key::new(self.scope, value),
            limit: &plan.limit,
            cost: plan.cost,
            required: plan.required,
            veto: plan.veto,
            charge: plan.charge,
        });
        hits.collect()
    }
}

fn check_results_are_equal<T: PartialEq + fmt::Debug>(
    description: &str,
    store: &T,
    model: &T,
) -> Result<(), String> {
    if store == model {
        Ok(())
    } else {
        Err(format!("{description}: the store has {store:?}, the model {model:?}"))
    }
}

/// Returns an error if a call that failed with `error` cannot succeed on a retry. A conforming store has no such
/// failures.
fn check_error_is_retryable(error: StoreError) -> Result<(), String> {
    match error {
        StoreError::Unavailable(_)
        | StoreError::ConnectionLost(_)
        | StoreError::TimedOut(_)
        | StoreError::BreakerOpen => Ok(()),
        StoreError::Rejected { class, .. } if !class.is_caused_by_key() => Ok(()),
        StoreError::Rejected { .. } | StoreError::Unsupported(_) => Err(error.to_string()),
    }
}

/// Checks that the store names the counter of each charged hit as the receipt does, if it names counters.
fn check_counter_ids(
    store: &impl Store,
    hits: &[Hit<'_>],
    receipt: &Receipt,
) -> Result<(), String> {
    for charge in receipt.charges() {
        let hit = hits.get(charge.hit_index as usize).ok_or("a charge without a hit")?;
        if let Some(id) = store.counter_id(hit) {
            check_results_are_equal(&format!("counter of {hit:?}"), &charge.counter, &id)?;
        }
    }
    Ok(())
}

impl<S: Store> ConformanceRun<'_, S> {
    /// Adds to each planned hit the value of its key.
    fn add_key_values<'p>(&'p self, plans: &'p [PlannedHit]) -> PlannedHitsWithKeyValues<'p> {
        let values = plans.iter().map(|plan| [self.values[plan.key].as_str().into()]).collect();
        PlannedHitsWithKeyValues { scope: &self.scope, values, plans }
    }

    async fn compare_charge_with_model(
        &mut self,
        plans: &[PlannedHit],
    ) -> Result<Outcomes, String> {
        let bound = self.add_key_values(plans);
        let hits = bound.hits();
        match self.store.charge_async(&hits).await {
            Ok(result) => {
                check_counter_ids(self.store, &hits, &result.receipt)?;
                let model = self.model.charge(&hits);
                self.compare_results_with_model(plans, result, model)
            }
            Err(error) if error.may_have_charged() => {
                let outcomes = self.check_charge_and_reset_after_timeout(&hits).await?;
                self.stats.failures += 1;
                Ok(outcomes)
            }
            Err(error) => self.count_failure(error),
        }
    }

    /// Counts a call that failed and charged nothing. Returns an error if the store does not support a limit, because
    /// the suite uses only algorithms that the store must support.
    fn count_failure(&mut self, error: StoreError) -> Result<Outcomes, String> {
        self.stats.failures += 1;
        check_error_is_retryable(error).map(|()| Outcomes::new())
    }

    /// Checks that a request that timed out was charged completely or not at all. Then resets the request's keys in
    /// both stores, because two different states can have equal outcomes.
    async fn check_charge_and_reset_after_timeout(
        &self,
        hits: &[Hit<'_>],
    ) -> Result<Outcomes, String> {
        let found = self.peek_with_retries(hits).await?;
        if found != self.model.peek(hits) {
            self.model.charge(hits);
            check_results_are_equal(
                &format!("{hits:?} after a timeout"),
                &found,
                &self.model.peek(hits),
            )?;
        }
        while let Err(error) = self.store.edit_async(hits, Edit::Reset).await {
            check_error_is_retryable(error)?;
        }
        self.model.edit(hits, Edit::Reset);
        Ok(found)
    }

    async fn peek_with_retries(&self, hits: &[Hit<'_>]) -> Result<Outcomes, String> {
        loop {
            match self.store.peek_async(hits).await {
                Ok(outcomes) => return Ok(outcomes),
                Err(error) => check_error_is_retryable(error)?,
            }
        }
    }

    async fn compare_charge_many_with_model(
        &mut self,
        requests: &[Vec<PlannedHit>],
    ) -> Result<Outcomes, String> {
        let bound: Vec<PlannedHitsWithKeyValues<'_>> =
            requests.iter().map(|plans| self.add_key_values(plans)).collect();
        let hits: Vec<Vec<Hit<'_>>> = bound.iter().map(PlannedHitsWithKeyValues::hits).collect();
        let slices: Vec<&[Hit<'_>]> = hits.iter().map(Vec::as_slice).collect();
        // The suite requires that a failed batch has no effect, because it cannot determine a partial effect.
        let results = match self.store.charge_many_async(&slices).await {
            Ok(results) => results,
            Err(error) => return self.count_failure(error),
        };
        let model = self.model.charge_many(&slices);
        check_results_are_equal("results of a batch", &results.len(), &model.len())?;
        let mut outcomes = Outcomes::new();
        for ((plans, result), model) in requests.iter().zip(results).zip(model) {
            outcomes.extend(self.compare_results_with_model(plans, result, model)?.iter().copied());
        }
        Ok(outcomes)
    }

    fn compare_results_with_model(
        &mut self,
        plans: &[PlannedHit],
        store: ChargeResult,
        model: ChargeResult,
    ) -> Result<Outcomes, String> {
        check_results_are_equal(&format!("allowed, {plans:?}"), &store.allowed, &model.allowed)?;
        check_results_are_equal(&format!("outcomes, {plans:?}"), &store.outcomes, &model.outcomes)?;
        let charged = |receipt: &Receipt| -> Vec<_> {
            receipt.charges().iter().map(|charge| (charge.charged_at, charge.cost)).collect()
        };
        check_results_are_equal(
            &format!("receipts, {plans:?}"),
            &charged(&store.receipt),
            &charged(&model.receipt),
        )?;
        self.stats.decisions += 1;
        self.stats.allowed += usize::from(store.allowed);
        self.stats.waits += (store.outcomes.iter())
            .filter(|outcome| !outcome.fits() && outcome.retry_after().is_some())
            .count();
        if !store.receipt.is_empty() {
            self.receipts.push((store.receipt, model.receipt));
        }
        Ok(store.outcomes)
    }

    async fn compare_peek_with_model(&self, plans: &[PlannedHit]) -> Result<Outcomes, String> {
        let bound = self.add_key_values(plans);
        let hits = bound.hits();
        let found = self.peek_with_retries(&hits).await?;
        check_results_are_equal(&format!("a peek, {plans:?}"), &found, &self.model.peek(&hits))?;
        Ok(found)
    }

    async fn compare_adjust_with_model(
        &mut self,
        age: usize,
        adjustment: Adjustment,
    ) -> Result<Outcomes, String> {
        let Some(index) = self.receipts.len().checked_sub(age + 1) else {
            return Ok(Outcomes::new());
        };
        let (store, model) = self.receipts.swap_remove(index);
        match self.store.adjust_async(&store, adjustment).await {
            Ok(()) => self.model.adjust(&model, adjustment),
            Err(error) => return self.count_failure(error),
        }
        Ok(Outcomes::new())
    }

    /// Releases or renews the permit of a receipt. The receipt stays, so that the permit is changed again later.
    async fn compare_permit_change_with_model(
        &mut self,
        age: usize,
        change: PermitChange,
    ) -> Result<Outcomes, String> {
        let Some(index) = self.receipts.len().checked_sub(age + 1) else {
            return Ok(Outcomes::new());
        };
        let (store, model) = &self.receipts[index];
        let mut has_timed_out = false;
        let was_live = loop {
            match self.store.change_permit_async(store, change).await {
                Ok(was_live) => break was_live,
                Err(error) => {
                    has_timed_out |= error.may_have_charged();
                    self.stats.failures += 1;
                    check_error_is_retryable(error)?;
                }
            }
        };
        let expected = self.model.change_permit(model, change);
        // A release that timed out may have freed the permit already, so the results may differ.
        if !has_timed_out {
            let description = format!("{change:?} of {store:?}");
            check_results_are_equal(&description, &was_live, &expected)?;
        }
        self.stats.permit_changes += usize::from(was_live && store.permit_charges().count() > 0);
        Ok(Outcomes::new())
    }
}

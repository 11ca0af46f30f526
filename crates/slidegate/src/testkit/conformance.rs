//! The conformance suite for stores: random traces, run on the store and on the model, must have equal outcomes.

use std::fmt;

use crate::algorithm::Algorithm;
use crate::clock::ManualClock;
use crate::hit::Hit;
use crate::key::{Key, Scope, Value};
use crate::store::{ChargeResult, Outcomes, Receipt, Store, StoreError, SyncStore};

use super::model::ModelStore;
use super::trace::{HitPlan, Step, TraceGenerator};

pub use super::trace::MAX_BACKWARD_STEP;

/// The first difference between a store and the model.
#[derive(Debug)]
pub struct Mismatch {
    /// Seed of the trace. The same seed generates the same trace.
    pub seed: u64,
    /// Index of the step with the difference.
    pub step: usize,
    /// Results of the store and of the model.
    pub description: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}, step {}: {}", self.seed, self.step, self.description)
    }
}

/// Counts of the operations in a trace, to check that it is representative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceStats {
    /// Requests that were decided.
    pub decisions: usize,
    /// Requests that were allowed.
    pub allowed: usize,
    /// Hits that did not fit, and would fit later.
    pub waits: usize,
    /// Requests that refunded units.
    pub refunds: usize,
    /// Calls that failed.
    pub failures: usize,
}

/// Runs a random trace of `steps` steps, with limits of `algorithms`, on a store and on the model. The store must be
/// empty and read `clock`.
///
/// Calls to the store may fail. An unavailable store must not have charged anything; after a timeout, it must have
/// charged the whole request or nothing.
///
/// # Errors
/// The first difference between the store and the model.
pub async fn run_trace<S: Store>(
    store: &S,
    clock: &ManualClock,
    algorithms: &[Algorithm],
    seed: u64,
    steps: usize,
) -> Result<TraceStats, Mismatch> {
    let mut generator = TraceGenerator::new(seed, algorithms);
    clock.set(generator.now());
    let mut run = TraceRun {
        store,
        model: ModelStore::new(clock.clone()),
        values: (0..generator.keys()).map(|key| format!("key {key}")).collect(),
        scope: Scope::new("domain", "rule", "limit", &["key"]),
        receipts: Vec::new(),
        stats: TraceStats::default(),
    };
    for step in 0..steps {
        let result = match generator.step() {
            Step::SetClock(now) => {
                clock.set(now);
                Ok(Outcomes::new())
            }
            Step::Take(plans) => run.take(&plans).await,
            Step::TakeMany(requests) => run.take_many(&requests).await,
            Step::Peek(plans) => run.peek(&plans).await,
            Step::Revert(age, tenths) => run.revert(age, tenths).await,
            Step::Refund(plans) => run.refund(&plans).await,
            Step::Reset(plans) => run.reset(&plans).await,
        };
        match result {
            Ok(outcomes) => generator.add_promises(&outcomes),
            Err(description) => return Err(Mismatch { seed, step, description }),
        }
    }
    Ok(run.stats)
}

/// The state of a running trace.
struct TraceRun<'s, S> {
    store: &'s S,
    model: ModelStore,
    values: Vec<String>,
    scope: Scope,
    /// Receipts of the store and of the model, for each charged request.
    receipts: Vec<(Receipt, Receipt)>,
    stats: TraceStats,
}

/// Owner of the values that the hits of a request borrow.
struct BoundHits<'p> {
    scope: &'p Scope,
    values: Vec<[Value<'p>; 1]>,
    plans: &'p [HitPlan],
}

impl BoundHits<'_> {
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

fn expect_equal<T: PartialEq + fmt::Debug>(
    description: &str,
    store: &T,
    model: &T,
) -> Result<(), String> {
    match store == model {
        true => Ok(()),
        false => Err(format!("{description}: the store has {store:?}, the model {model:?}")),
    }
}

/// Returns an error unless the call may be retried: a store must not fail with other errors.
fn check_retryable(error: StoreError) -> Result<(), String> {
    match error {
        StoreError::Unavailable(_) | StoreError::TimedOut(_) | StoreError::BreakerOpen => Ok(()),
        StoreError::Unsupported(_) => Err(error.to_string()),
    }
}

impl<S: Store> TraceRun<'_, S> {
    /// Resolves the keys of planned hits.
    fn bind<'p>(&'p self, plans: &'p [HitPlan]) -> BoundHits<'p> {
        let values = plans.iter().map(|plan| [self.values[plan.key].as_str().into()]).collect();
        BoundHits { scope: &self.scope, values, plans }
    }

    async fn take(&mut self, plans: &[HitPlan]) -> Result<Outcomes, String> {
        let bound = self.bind(plans);
        let hits = bound.hits();
        match self.store.take(&hits).await {
            Ok(result) => {
                let model = self.model.take_now(&hits);
                self.compare(plans, result, model)
            }
            Err(StoreError::TimedOut(_)) => {
                let outcomes = self.resolve_timeout(&hits).await?;
                self.stats.failures += 1;
                Ok(outcomes)
            }
            Err(error) => self.count_failure(error),
        }
    }

    /// Counts a call that failed without an effect. Fails if the store does not support the limit, since the suite uses
    /// only algorithms that the store supports.
    fn count_failure(&mut self, error: StoreError) -> Result<Outcomes, String> {
        self.stats.failures += 1;
        check_retryable(error).map(|()| Outcomes::new())
    }

    /// Checks that a request that timed out was charged completely or not at all. Resets its keys in both stores,
    /// because two different states can have equal outcomes.
    async fn resolve_timeout(&self, hits: &[Hit<'_>]) -> Result<Outcomes, String> {
        let found = self.peek_with_retries(hits).await?;
        if found != self.model.peek_now(hits) {
            self.model.take_now(hits);
            expect_equal(&format!("{hits:?} after a timeout"), &found, &self.model.peek_now(hits))?;
        }
        while let Err(error) = self.store.reset(hits).await {
            check_retryable(error)?;
        }
        self.model.reset_now(hits);
        Ok(found)
    }

    async fn peek_with_retries(&self, hits: &[Hit<'_>]) -> Result<Outcomes, String> {
        loop {
            match self.store.peek(hits).await {
                Ok(outcomes) => return Ok(outcomes),
                Err(error) => check_retryable(error)?,
            }
        }
    }

    async fn take_many(&mut self, requests: &[Vec<HitPlan>]) -> Result<Outcomes, String> {
        let bound: Vec<BoundHits<'_>> = requests.iter().map(|plans| self.bind(plans)).collect();
        let hits: Vec<Vec<Hit<'_>>> = bound.iter().map(BoundHits::hits).collect();
        let slices: Vec<&[Hit<'_>]> = hits.iter().map(Vec::as_slice).collect();
        // The suite requires that a failed batch has no effect, because it cannot determine a partial one.
        let results = match self.store.take_many(&slices).await {
            Ok(results) => results,
            Err(error) => return self.count_failure(error),
        };
        let mut model = Vec::new();
        self.model.take_many_now(&slices, |result| model.push(result));
        expect_equal("results of a batch", &results.len(), &model.len())?;
        let mut outcomes = Outcomes::new();
        for ((plans, result), model) in requests.iter().zip(results).zip(model) {
            outcomes.extend(self.compare(plans, result, model)?);
        }
        Ok(outcomes)
    }

    fn compare(
        &mut self,
        plans: &[HitPlan],
        store: ChargeResult,
        model: ChargeResult,
    ) -> Result<Outcomes, String> {
        expect_equal(&format!("allowed, {plans:?}"), &store.allowed, &model.allowed)?;
        expect_equal(&format!("outcomes, {plans:?}"), &store.outcomes, &model.outcomes)?;
        let charged = |receipt: &Receipt| -> Vec<_> {
            receipt.charges.iter().map(|charge| (charge.charged_at, charge.cost)).collect()
        };
        expect_equal(
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

    async fn peek(&self, plans: &[HitPlan]) -> Result<Outcomes, String> {
        let bound = self.bind(plans);
        let hits = bound.hits();
        let found = self.peek_with_retries(&hits).await?;
        expect_equal(&format!("a peek, {plans:?}"), &found, &self.model.peek_now(&hits))?;
        Ok(found)
    }

    async fn revert(&mut self, age: usize, tenths: Option<u64>) -> Result<Outcomes, String> {
        let Some(index) = self.receipts.len().checked_sub(age + 1) else {
            return Ok(Outcomes::new());
        };
        let (store, model) = self.receipts.swap_remove(index);
        let part = |receipt: Receipt| match tenths {
            Some(tenths) => receipt.fraction(tenths, 10),
            None => receipt,
        };
        let (store, model) = (part(store), part(model));
        match self.store.revert(&store).await {
            Ok(()) => self.model.revert_now(&model),
            Err(error) => return self.count_failure(error),
        }
        Ok(Outcomes::new())
    }

    async fn refund(&mut self, plans: &[HitPlan]) -> Result<Outcomes, String> {
        let bound = self.bind(plans);
        let hits = bound.hits();
        match self.store.refund(&hits).await {
            Ok(outcomes) => {
                let model = self.model.refund_now(&hits);
                expect_equal(&format!("a refund, {plans:?}"), &outcomes, &model)?;
                self.stats.refunds += 1;
                Ok(outcomes)
            }
            // The suite requires that a failed refund has no effect.
            Err(error) => self.count_failure(error),
        }
    }

    async fn reset(&mut self, plans: &[HitPlan]) -> Result<Outcomes, String> {
        let bound = self.bind(plans);
        let hits = bound.hits();
        match self.store.reset(&hits).await {
            Ok(()) => self.model.reset_now(&hits),
            Err(error) => return self.count_failure(error),
        }
        Ok(Outcomes::new())
    }
}

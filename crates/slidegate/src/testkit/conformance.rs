//! One suite for every store: the same random traces as the model, equal outcomes field by field.

use std::fmt;

use crate::algorithm::Algorithm;
use crate::clock::ManualClock;
use crate::hit::Hit;
use crate::key::{Key, Scope, Value};
use crate::store::{ChargeResult, Outcomes, Receipt, Store, StoreError, SyncStore};

use super::model::ModelStore;
use super::trace::{Plan, Step, Tracer};

pub use super::trace::MAX_BACK;

/// How a store differs from the model.
#[derive(Debug)]
pub struct Difference {
    /// The seed of the trace; the same seed gives the same trace.
    pub seed: u64,
    /// The step at which it showed.
    pub step: usize,
    /// What the store did, and what the model.
    pub what: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}, step {}: {}", self.seed, self.step, self.what)
    }
}

/// What a suite has tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tried {
    /// Requests decided.
    pub decisions: usize,
    /// Of these, allowed.
    pub allowed: usize,
    /// Hits that did not fit, and would later.
    pub waits: usize,
    /// Requests whose units were taken off again without a receipt.
    pub refunds: usize,
    /// Calls that the store did not answer.
    pub failures: usize,
}

/// Runs one trace of `steps` steps over limits of `algorithms` through a store, which must be empty and
/// read `clock`, and through the model.
///
/// A store may fail. If it was not reached, nothing may have been charged; if it did not answer in time,
/// all of the request or nothing.
///
/// # Errors
/// The first difference.
pub async fn hold<S: Store>(
    store: &S,
    clock: &ManualClock,
    algorithms: &[Algorithm],
    seed: u64,
    steps: usize,
) -> Result<Tried, Difference> {
    let mut tracer = Tracer::new(seed, algorithms);
    clock.set(tracer.now());
    let mut run = Run {
        store,
        model: ModelStore::new(clock.clone()),
        values: (0..tracer.keys()).map(|key| format!("key {key}")).collect(),
        scope: Scope::new("domain", "rule", "limit", &["who"]),
        receipts: Vec::new(),
        tried: Tried::default(),
    };
    for step in 0..steps {
        let heard = match tracer.step() {
            Step::SetClock(now) => {
                clock.set(now);
                Ok(Outcomes::new())
            }
            Step::Take(plans) => run.take(&plans).await,
            Step::TakeMany(asks) => run.take_many(&asks).await,
            Step::Peek(plans) => run.peek(&plans).await,
            Step::Revert(ago, tenths) => run.revert(ago, tenths).await,
            Step::Refund(plans) => run.refund(&plans).await,
            Step::Reset(plans) => run.reset(&plans).await,
        };
        match heard {
            Ok(outcomes) => tracer.listen(&outcomes),
            Err(what) => return Err(Difference { seed, step, what }),
        }
    }
    Ok(run.tried)
}

struct Run<'s, S> {
    store: &'s S,
    model: ModelStore,
    values: Vec<String>,
    scope: Scope,
    /// Those of the store, and those of the model.
    receipts: Vec<(Receipt, Receipt)>,
    tried: Tried,
}

/// Hits that borrow from their plans.
struct Hits<'p> {
    scope: &'p Scope,
    values: Vec<[Value<'p>; 1]>,
    plans: &'p [Plan],
}

impl Hits<'_> {
    fn all(&self) -> Vec<Hit<'_>> {
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

fn same<T: PartialEq + fmt::Debug>(what: &str, store: &T, model: &T) -> Result<(), String> {
    match store == model {
        true => Ok(()),
        false => Err(format!("{what}: the store has {store:?}, the model {model:?}")),
    }
}

/// Whether a store may fail so, and be asked once more.
fn may_fail(error: StoreError) -> Result<(), String> {
    match error {
        StoreError::Unavailable(_) | StoreError::TimedOut(_) | StoreError::BreakerOpen => Ok(()),
        StoreError::Unsupported(_) => Err(error.to_string()),
    }
}

impl<S: Store> Run<'_, S> {
    fn aim<'p>(&'p self, plans: &'p [Plan]) -> Hits<'p> {
        let values = plans.iter().map(|plan| [self.values[plan.key].as_str().into()]).collect();
        Hits { scope: &self.scope, values, plans }
    }

    async fn take(&mut self, plans: &[Plan]) -> Result<Outcomes, String> {
        let hits = self.aim(plans);
        let hits = hits.all();
        match self.store.take(&hits).await {
            Ok(taken) => {
                let model = self.model.take_now(&hits);
                self.compare(plans, taken, model)
            }
            Err(StoreError::TimedOut(_)) => {
                let outcomes = self.find_out(&hits).await?;
                self.tried.failures += 1;
                Ok(outcomes)
            }
            Err(error) => self.failed(error),
        }
    }

    /// A call that did nothing. A store may fail, but it is asked by no algorithms but those that it bears.
    fn failed(&mut self, error: StoreError) -> Result<Outcomes, String> {
        self.tried.failures += 1;
        may_fail(error).map(|()| Outcomes::new())
    }

    /// After a time-out all was charged, or nothing. Two states can look alike in what they answer, so
    /// both stores forget these keys before they go on.
    async fn find_out(&self, hits: &[Hit<'_>]) -> Result<Outcomes, String> {
        let found = self.peek_until_answered(hits).await?;
        if found != self.model.peek_now(hits) {
            self.model.take_now(hits);
            same(&format!("{hits:?} after a time-out"), &found, &self.model.peek_now(hits))?;
        }
        while let Err(error) = self.store.reset(hits).await {
            may_fail(error)?;
        }
        self.model.reset_now(hits);
        Ok(found)
    }

    async fn peek_until_answered(&self, hits: &[Hit<'_>]) -> Result<Outcomes, String> {
        loop {
            match self.store.peek(hits).await {
                Ok(outcomes) => return Ok(outcomes),
                Err(error) => may_fail(error)?,
            }
        }
    }

    async fn take_many(&mut self, asks: &[Vec<Plan>]) -> Result<Outcomes, String> {
        let aimed: Vec<Hits<'_>> = asks.iter().map(|plans| self.aim(plans)).collect();
        let hits: Vec<Vec<Hit<'_>>> = aimed.iter().map(Hits::all).collect();
        let slices: Vec<&[Hit<'_>]> = hits.iter().map(Vec::as_slice).collect();
        // A batch that fails is known to have done nothing, or the suite could not go on.
        let taken = match self.store.take_many(&slices).await {
            Ok(taken) => taken,
            Err(error) => return self.failed(error),
        };
        let mut model = Vec::new();
        self.model.take_many_now(&slices, |taken| model.push(taken));
        same("answers to a batch", &taken.len(), &model.len())?;
        let mut outcomes = Outcomes::new();
        for ((plans, taken), model) in asks.iter().zip(taken).zip(model) {
            outcomes.extend(self.compare(plans, taken, model)?);
        }
        Ok(outcomes)
    }

    fn compare(
        &mut self,
        plans: &[Plan],
        store: ChargeResult,
        model: ChargeResult,
    ) -> Result<Outcomes, String> {
        same(&format!("allowed, {plans:?}"), &store.allowed, &model.allowed)?;
        same(&format!("outcomes, {plans:?}"), &store.outcomes, &model.outcomes)?;
        let charged = |receipt: &Receipt| -> Vec<_> {
            receipt.charges.iter().map(|charge| (charge.charged_at, charge.cost)).collect()
        };
        same(&format!("receipts, {plans:?}"), &charged(&store.receipt), &charged(&model.receipt))?;
        self.tried.decisions += 1;
        self.tried.allowed += usize::from(store.allowed);
        self.tried.waits += (store.outcomes.iter())
            .filter(|outcome| !outcome.fits() && outcome.retry_after().is_some())
            .count();
        if !store.receipt.is_empty() {
            self.receipts.push((store.receipt, model.receipt));
        }
        Ok(store.outcomes)
    }

    async fn peek(&self, plans: &[Plan]) -> Result<Outcomes, String> {
        let hits = self.aim(plans);
        let hits = hits.all();
        let found = self.peek_until_answered(&hits).await?;
        same(&format!("a peek, {plans:?}"), &found, &self.model.peek_now(&hits))?;
        Ok(found)
    }

    async fn revert(&mut self, ago: usize, tenths: Option<u64>) -> Result<Outcomes, String> {
        let Some(nth) = self.receipts.len().checked_sub(ago + 1) else {
            return Ok(Outcomes::new());
        };
        let (store, model) = self.receipts.swap_remove(nth);
        let part = |receipt: Receipt| match tenths {
            Some(tenths) => receipt.fraction(tenths, 10),
            None => receipt,
        };
        let (store, model) = (part(store), part(model));
        match self.store.revert(&store).await {
            Ok(()) => self.model.revert_now(&model),
            Err(error) => return self.failed(error),
        }
        Ok(Outcomes::new())
    }

    async fn refund(&mut self, plans: &[Plan]) -> Result<Outcomes, String> {
        let hits = self.aim(plans);
        let hits = hits.all();
        match self.store.refund(&hits).await {
            Ok(outcomes) => {
                let model = self.model.refund_now(&hits);
                same(&format!("a refund, {plans:?}"), &outcomes, &model)?;
                self.tried.refunds += 1;
                Ok(outcomes)
            }
            // Known to have done nothing, or the suite could not go on.
            Err(error) => self.failed(error),
        }
    }

    async fn reset(&mut self, plans: &[Plan]) -> Result<Outcomes, String> {
        let hits = self.aim(plans);
        let hits = hits.all();
        match self.store.reset(&hits).await {
            Ok(()) => self.model.reset_now(&hits),
            Err(error) => return self.failed(error),
        }
        Ok(Outcomes::new())
    }
}

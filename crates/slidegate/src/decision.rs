//! The decision about a request, derived from the outcomes of its hits.
//!
//! The store decides whether a request is allowed; this module chooses the binding limit, which is the limit that
//! clients see.

mod decided_hits;
mod decided_limits;
mod limit_status;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::hit::{Hit, Veto};
use crate::outcome::Outcome;
#[cfg(feature = "policy")]
use crate::permit::Permit;
#[cfg(feature = "policy")]
use crate::policy::RuleCost;
use crate::reason::Reason;
use crate::rule_limit::LimiterLimits;
#[cfg(feature = "policy")]
use crate::store::Charge;
use crate::store::local_results::LocalResult;
use crate::store::{ChargeResult, LocalResults, Outcomes, Receipt, SingleChargeResult, admits};

use decided_hits::{DecidedHits, HitResults};
pub use decided_limits::DecidedLimits;
pub(crate) use limit_status::DecisionLimits;
pub use limit_status::LimitStatus;
#[cfg(feature = "policy")]
pub(crate) use limit_status::{LimitOfRule, PolicyLimits};

/// The result for a request: whether it is allowed, the status of every limit, and the record of the charges.
///
/// A decision of a [`Limiter`](crate::Limiter) borrows the limits from the limiter; [`into_owned`](Self::into_owned)
/// ends the borrow. A decision of a [`Gate`](crate::Gate) is a `Decision<'static>`.
///
/// ```
/// let limiter = slidegate::Limiter::new(["2/s", "600/min"])?.named("api");
/// let decision = limiter.check("tenant:acme");
/// assert!(decision.is_allowed());
/// assert_eq!(decision.remaining(), 1);                  // of the binding limit, the one that clients see
/// let statuses = decision.limits().map(|status| (status.policy_name(), status.remaining()));
/// assert_eq!(statuses.collect::<Vec<_>>(), [("api.1s", 1), ("api.1m", 599)]);
/// # Ok::<(), slidegate::LimiterError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a denial is a value: check whether the request is allowed"]
pub struct Decision<'l> {
    is_allowed: bool,
    is_degraded: bool,
    /// Whether the request is denied because too many calls wait for its limits.
    is_wait_queue_full: bool,
    binding: Option<u16>,
    hits: DecidedHits<'l>,
}

/// A denial as an error. Returned by [`Decision::into_result`].
///
/// ```
/// fn serve(limiter: &slidegate::Limiter) -> Result<&'static str, Box<dyn std::error::Error>> {
///     limiter.check("acme").into_result()?;
///     Ok("served")
/// }
///
/// let limiter = slidegate::Limiter::new(["1/h"])?.named("api");
/// assert_eq!(serve(&limiter)?, "served");
/// let denied = serve(&limiter).map_err(|error| error.to_string());
/// assert!(denied.is_err_and(|text| text.starts_with("denied by the limit `api` (limit_exceeded)")));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Denied(Box<Decision<'static>>);

impl<'l> Decision<'l> {
    /// Creates a decision from the result of a charge. `limits` has one limit for each hit.
    #[inline(always)]
    pub(crate) fn from_charge(
        hits: &[Hit<'_>],
        result: ChargeResult,
        limits: DecisionLimits<'l>,
    ) -> Self {
        let binding = find_binding_hit(hits, &result.outcomes, result.allowed);
        let ChargeResult { allowed, outcomes, receipt } = result;
        let results = HitResults::Any { outcomes, receipt };
        Self::new(allowed, binding, DecidedHits::new(results, limits))
    }

    #[inline(always)]
    fn new(is_allowed: bool, binding: Option<u16>, hits: DecidedHits<'l>) -> Self {
        Self { is_allowed, is_degraded: false, is_wait_queue_full: false, binding, hits }
    }

    /// Creates a decision from the result of charging the only hit of a policy. `limit` is the limit of the hit.
    #[cfg(feature = "policy")]
    #[inline(always)]
    pub(crate) fn from_single_charge(
        hit: &Hit<'_>,
        result: SingleChargeResult,
        limit: LimitOfRule,
    ) -> Self {
        let is_allowed = result.outcome.fits() || hit.veto == Veto::Never;
        let binding = is_single_hit_binding(hit, is_allowed).then_some(0);
        Self::new(is_allowed, binding, DecidedHits::of_rule(result, hit.limit, limit))
    }

    /// Creates a decision of a limiter from the result of charging its only hit.
    #[inline(always)]
    pub(crate) fn from_limiter_charge(
        hit: &Hit<'_>,
        result: SingleChargeResult,
        limits: &'l Arc<LimiterLimits>,
    ) -> Self {
        let is_allowed = result.outcome.fits() || hit.veto == Veto::Never;
        let binding = is_single_hit_binding(hit, is_allowed).then_some(0);
        Self::new(is_allowed, binding, DecidedHits::of_limiter(result, hit.limit, limits))
    }

    /// Creates a decision of a limiter from the results of charging its hits.
    #[inline]
    pub(crate) fn from_few(
        hits: &[Hit<'_>],
        results: Box<LocalResults>,
        limits: &'l Arc<LimiterLimits>,
    ) -> Self {
        let is_allowed = results.is_allowed();
        let binding = find_binding_of_several_hits(hits, &results.outcomes, is_allowed);
        Self::new(is_allowed, binding, DecidedHits::Few { results, limits })
    }

    /// Creates a decision from the outcomes of a peek. The decision has no charges.
    pub(crate) fn from_peek(
        hits: &[Hit<'_>],
        outcomes: Outcomes,
        limits: DecisionLimits<'l>,
    ) -> Self {
        let allowed = admits(hits, &outcomes);
        let result = ChargeResult { allowed, outcomes, receipt: Receipt::default() };
        Self::from_charge(hits, result, limits)
    }

    /// Creates the decision of a limit without capacity: a denial, unless `veto` is [`Veto::Never`].
    pub(crate) fn with_zero_capacity(veto: Veto, limits: DecisionLimits<'l>) -> Self {
        let outcome = Outcome::from_used_units((0, 0), 1, 0, || 0);
        let allowed = veto == Veto::Never;
        let results = HitResults::One(LocalResult::uncharged(outcome));
        Self::new(allowed, (!allowed).then_some(0), DecidedHits::new(results, limits))
    }

    /// Creates a degraded denial, made because the store is unavailable.
    pub(crate) fn store_unavailable(limits: DecisionLimits<'l>) -> Self {
        Self::new(false, None, DecidedHits::new(HitResults::none(), limits)).into_degraded()
    }

    /// Marks the decision as made without the store.
    pub(crate) fn into_degraded(self) -> Self {
        Self { is_degraded: true, ..self }
    }

    /// Returns a denial with the same limits. The request may fit, but it must wait for other requests: the binding
    /// limit gets this `retry_after`. `None` leaves the `retry_after` of a denial unchanged. The decision must not have
    /// charges.
    pub(crate) fn into_denial(mut self, retry_after: Option<Duration>) -> Self {
        let outcome = self.binding.and_then(|binding| self.hits.outcome_mut(binding.into()));
        if let (Some(outcome), Some(retry_after)) = (outcome, retry_after) {
            *outcome = outcome.denied(retry_after);
        }
        Self { is_allowed: false, ..self }
    }

    /// Returns a denial with the reason [`Reason::WaitQueueFull`]. The decision must not have charges.
    pub(crate) fn into_wait_queue_full(self) -> Self {
        Self { is_wait_queue_full: true, ..self }
    }

    /// Returns whether the request is allowed.
    #[inline]
    pub fn is_allowed(&self) -> bool {
        self.is_allowed
    }

    /// Returns whether the decision was made without the store, because it was unavailable.
    pub fn is_degraded(&self) -> bool {
        self.is_degraded
    }

    /// Returns the decision as a result, for use with `?`.
    ///
    /// # Errors
    /// If the request is denied.
    pub fn into_result(self) -> Result<Self, Denied> {
        if self.is_allowed { Ok(self) } else { Err(Denied(Box::new(self.into_owned()))) }
    }

    /// Returns the same decision without borrowing from the limiter.
    pub fn into_owned(self) -> Decision<'static> {
        let Self { is_allowed, is_degraded, is_wait_queue_full, binding, hits } = self;
        let hits = hits.into_owned();
        Decision { is_allowed, is_degraded, is_wait_queue_full, binding, hits }
    }

    /// Returns the units that the binding limit still admits. Without a binding limit, returns `u64::MAX` if the
    /// request is allowed, and 0 if it is denied.
    pub fn remaining(&self) -> u64 {
        let default = if self.is_allowed { u64::MAX } else { 0 };
        self.binding_outcome().map_or(default, |outcome| outcome.remaining())
    }

    /// Returns the duration after which no unit of the binding limit is in use, unless further units are charged; zero
    /// if no limit is binding.
    pub fn reset_after(&self) -> Duration {
        self.binding_outcome().map_or(Duration::ZERO, |outcome| outcome.reset_after())
    }

    /// Returns the duration until this request would fit: zero if the request is allowed, `None` if it never fits or
    /// the duration is not known.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.binding_outcome() {
            Some(_) if !self.is_allowed => self.binding()?.retry_after(),
            Some(outcome) => outcome.retry_after(),
            None => self.is_allowed.then_some(Duration::ZERO),
        }
    }

    /// Returns the reason for a denial; `None` if the request is allowed.
    pub fn reason(&self) -> Option<Reason> {
        if self.is_allowed {
            return None;
        }
        if self.is_store_unavailable() {
            return Some(Reason::StoreUnavailable);
        }
        let Some(binding) = self.binding() else { return Some(Reason::LimitExceeded) };
        let is_concurrent = binding.limit().is_concurrent();
        Some(match binding.retry_after() {
            _ if binding.is_key_missing() => Reason::MissingAttribute,
            _ if binding.limit().capacity() == 0 => Reason::Banned,
            None if !is_concurrent => Reason::CostExceedsMax,
            _ if self.is_wait_queue_full => Reason::WaitQueueFull,
            _ if is_concurrent => Reason::ConcurrencyExceeded,
            _ => Reason::LimitExceeded,
        })
    }

    /// Returns the HTTP status: 200 if the request is allowed. For a denial, the `deny_status` of the binding limit's
    /// rule, 429 by default, or 503 if the store is unavailable.
    ///
    /// ```
    /// use slidegate::{Descriptor, Gate, MemoryStore, Policy, Reason, Request};
    ///
    /// let policy = Policy::from_yaml("
    /// rules:
    ///   - { name: abuse, when: { ip: 192.0.2.0/24 }, limits: denied, deny_status: 403 }
    /// ")?;
    /// let gate = Gate::new(policy, MemoryStore::new());
    /// let request = Request::new("default", Descriptor::new([("ip", "192.0.2.7")]));
    /// let decision = gate.check(&request);
    /// assert_eq!((decision.reason(), decision.status()), (Some(Reason::Banned), 403));
    /// # Ok::<(), slidegate::PolicyErrors>(())
    /// ```
    pub fn status(&self) -> u16 {
        if self.is_allowed {
            return 200;
        }
        if self.is_store_unavailable() {
            return 503;
        }
        self.binding().and_then(|binding| binding.deny_status()).unwrap_or(429)
    }

    /// Returns the status of every limit that applies, in the order of the policy or the limiter. Limits that the store
    /// did not have to evaluate are left out.
    pub fn limits(&self) -> impl Iterator<Item = LimitStatus<'_>> {
        let known =
            self.hits.outcomes().iter().enumerate().filter(|(_, outcome)| outcome.is_known());
        known.filter_map(|(index, outcome)| self.hits.limits().status(index, *outcome))
    }

    /// Returns the status of every limit that the request exceeds, including limits that only observe, in the order of
    /// [`limits`](Self::limits).
    pub fn exceeded_limits(&self) -> impl Iterator<Item = LimitStatus<'_>> {
        let outcomes = self.hits.outcomes().iter().enumerate();
        let exceeded = outcomes.filter(|(_, outcome)| outcome.is_known() && !outcome.fits());
        exceeded.filter_map(|(index, outcome)| self.hits.limits().status(index, *outcome))
    }

    /// Returns the status of the binding limit, which is the limit that clients see; `None` if no limit is binding.
    ///
    /// If the request is denied, the binding limit is the denying limit with the longest wait; the wait of a cost that
    /// never fits counts as infinite. A limit on [requests in flight](crate::Limit::concurrent), whose wait is not known, is
    /// binding only if no other limit denies. If the request is allowed, the binding limit is the one with the smallest
    /// fraction remaining. Only one of all [joint](Veto::Jointly) limits is considered. If the request is denied
    /// because none of them fits, this is the limit with the shortest wait. If the request is allowed, this is the
    /// limit with the largest fraction remaining. Limits that only observe are never binding.
    #[inline]
    pub fn binding(&self) -> Option<LimitStatus<'_>> {
        let index = usize::from(self.binding?);
        self.hits.limits().status(index, *self.hits.outcomes().get(index)?)
    }

    /// Returns the record of the charges, with which the charges can be reverted or settled.
    pub fn receipt(&self) -> Receipt {
        self.hits.receipt()
    }

    /// Returns whether a rule with `limits: unlimited` applies to the descriptor with this index.
    #[cfg(feature = "policy")]
    pub fn is_unlimited(&self, descriptor: usize) -> bool {
        self.hits.limits().is_unlimited(descriptor)
    }

    /// Returns the outcome of each hit. An outcome is [unknown](Outcome::is_known) if the store did not have to
    /// evaluate the limit.
    pub(crate) fn outcomes(&self) -> &[Outcome] {
        self.hits.outcomes()
    }

    /// Returns the charges, each with the cost that its rule charges; `None` if its rule is not known.
    #[cfg(feature = "policy")]
    pub(crate) fn charges_with_costs(&self) -> Vec<(Charge, Option<&RuleCost>)> {
        let limits = self.hits.limits();
        let charges = self.receipt().into_iter();
        charges
            .map(|charge| {
                let status = limits.status(charge.hit_index as usize, Outcome::unknown());
                let cost = status.and_then(|status| status.rule()).map(|rule| rule.cost());
                (charge, cost)
            })
            .collect()
    }

    /// Returns the permit of the request; `None` if no limit bounds the requests in flight, or the request is denied.
    #[cfg(feature = "policy")]
    #[inline]
    pub fn permit(&self) -> Option<Permit> {
        if self.hits.has_concurrent_limit() { Permit::from_decision(self) } else { None }
    }

    /// Returns the charges that are the cost of the request, and not a cost that a rule states.
    #[cfg(feature = "policy")]
    pub(crate) fn request_cost_receipt(&self) -> Receipt {
        let limits = self.hits.limits();
        let is_request_cost = |charge: &Charge| limits.has_request_cost(charge.hit_index as usize);
        self.receipt().into_iter().filter(is_request_cost).collect()
    }

    /// Returns the charges of rules that charge the cost with this name.
    #[cfg(feature = "policy")]
    pub(crate) fn named_cost_receipt(&self, name: &str) -> Receipt {
        let charges = self.charges_with_costs().into_iter();
        let has_name =
            |cost: Option<&RuleCost>| matches!(cost, Some(RuleCost::Named(own)) if **own == *name);
        charges.filter_map(|(charge, cost)| has_name(cost).then_some(charge)).collect()
    }

    /// Returns whether the request was denied because the store is unavailable, and not because of a limit.
    fn is_store_unavailable(&self) -> bool {
        !self.is_allowed && self.hits.outcomes().is_empty()
    }

    #[inline]
    fn binding_outcome(&self) -> Option<&Outcome> {
        self.hits.outcomes().get(usize::from(self.binding?))
    }
}

impl Denied {
    /// Returns the decision, which is a denial.
    pub fn decision(&self) -> &Decision<'static> {
        &self.0
    }

    /// Returns the duration until the request would fit; `None` if it never fits or the duration is not known.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after()
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("denied")?;
        if let Some(binding) = self.0.binding() {
            write!(f, " by the limit `{}`", binding.policy_name())?;
        }
        if let Some(reason) = self.0.reason() {
            write!(f, " ({reason})")?;
        }
        match self.0.retry_after() {
            Some(wait) => write!(f, ": retry after {} s", wait.as_millis().div_ceil(1_000)),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Denied {}

/// Returns the index of the binding hit; `None` if no hit is binding. See [`Decision::binding`].
#[inline]
fn find_binding_hit(hits: &[Hit<'_>], outcomes: &[Outcome], allowed: bool) -> Option<u16> {
    match (hits, outcomes) {
        ([hit], [outcome]) => {
            (outcome.is_known() && is_single_hit_binding(hit, allowed)).then_some(0)
        }
        _ => find_binding_of_several_hits(hits, outcomes, allowed),
    }
}

/// Returns whether the only hit of a request is its binding hit. `allowed` is the decision on the request.
#[inline]
fn is_single_hit_binding(hit: &Hit<'_>, allowed: bool) -> bool {
    !allowed || hit.veto != Veto::Never
}

/// Returns the index of the binding hit of a request with any number of hits; see [`Decision::binding`].
fn find_binding_of_several_hits(
    hits: &[Hit<'_>],
    outcomes: &[Outcome],
    allowed: bool,
) -> Option<u16> {
    let is_known = |(_, (_, outcome)): &IndexedHit<'_>| outcome.is_known();
    let all = || hits.iter().zip(outcomes).enumerate().filter(is_known);
    let with_veto = |veto| all().filter(move |(_, (hit, _))| hit.veto == veto);
    let denies = |(_, (_, outcome)): &IndexedHit<'_>| !outcome.fits();
    let wait = |(_, (hit, outcome)): &IndexedHit<'_>| match outcome.retry_after() {
        Some(_) if hit.limit.is_concurrent() => 0,
        _ => outcome.retry_after_us(),
    };
    let binding = if allowed && hits.iter().all(|hit| hit.veto != Veto::Jointly) {
        return find_hit_with_smallest_fraction_left(hits, outcomes);
    } else if allowed {
        // A joint limit that does not fit denies nothing while another one fits.
        let joint = with_veto(Veto::Jointly).filter(|hit| !denies(hit));
        let most =
            joint.reduce(
                |most, next| if has_smaller_fraction_left(most.1, next.1) { next } else { most },
            );
        let candidates = with_veto(Veto::Alone).chain(most);
        candidates.reduce(
            |least, next| if has_smaller_fraction_left(next.1, least.1) { next } else { least },
        )
    } else {
        let has_fitting = with_veto(Veto::Jointly).any(|hit| !denies(&hit));
        let joint = with_veto(Veto::Jointly).filter(|_| !has_fitting);
        let soonest =
            joint.reduce(|soonest, next| if wait(&next) < wait(&soonest) { next } else { soonest });
        let candidates = with_veto(Veto::Alone).filter(denies).chain(soonest);
        candidates.reduce(|longest, next| if wait(&next) > wait(&longest) { next } else { longest })
    };
    binding.and_then(|(index, _)| u16::try_from(index).ok())
}

/// Returns the index of the hit with [`Veto::Alone`] whose limit has the smallest fraction left: the usual case of
/// [`find_binding_of_several_hits`], in fewer instructions.
#[inline]
fn find_hit_with_smallest_fraction_left(hits: &[Hit<'_>], outcomes: &[Outcome]) -> Option<u16> {
    let mut least = None;
    for (index, next) in (0..).zip(hits.iter().zip(outcomes)) {
        if next.0.veto == Veto::Alone
            && next.1.is_known()
            && least.is_none_or(|(_, least)| has_smaller_fraction_left(next, least))
        {
            least = Some((index, next));
        }
    }
    least.map(|(index, _)| index)
}

/// A hit with its outcome, preceded by the index of the hit in the request.
type IndexedHit<'h> = (usize, (&'h Hit<'h>, &'h Outcome));

/// Returns whether the remaining fraction of the limit is smaller for `first` than for `second`. The fractions are
/// compared by cross-multiplication.
fn has_smaller_fraction_left(first: (&Hit<'_>, &Outcome), second: (&Hit<'_>, &Outcome)) -> bool {
    let scaled = |(hit, outcome): (&Hit<'_>, &Outcome), by: &Hit<'_>| {
        (outcome.remaining().min(hit.limit.capacity())) * by.limit.capacity()
    };
    scaled(first, second.0) < scaled(second, first.0)
}

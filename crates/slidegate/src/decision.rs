//! Decisions: the result for a request, with the status of every limit that applies to it.
//!
//! A [`Decision`] names the binding limit, which is the limit that clients see. [`Denied`] is a denial as an error,
//! [`LimitStatus`] is the status of one limit, and [`DecidedLimits`] are the limits without their status.

// The store decides whether a request is allowed; this module chooses the binding limit.

mod limit_status;
mod limits;

use std::fmt;
use std::time::Duration;

use crate::hit::{Hit, Veto};
use crate::outcome::Outcome;
#[cfg(feature = "policy")]
use crate::permit::Permit;
#[cfg(feature = "policy")]
use crate::policy::RuleCost;
use crate::reason::Reason;
#[cfg(feature = "policy")]
use crate::store::Charge;
use crate::store::{ChargeResult, Outcomes, Receipt, StoreError, admits};

pub use limit_status::LimitStatus;
pub use limits::DecidedLimits;
pub(crate) use limits::DecisionLimits;
#[cfg(feature = "policy")]
pub(crate) use limits::PolicyLimits;
use limits::find_binding_hit;

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
    /// The result of the store. Its outcomes are empty if the store is unavailable.
    result: ChargeResult,
    /// One limit for each outcome of the result.
    limits: DecisionLimits<'l>,
    /// Index of the binding limit, the limit that clients see; `None` if no limit is binding.
    binding: Option<u16>,
    is_degraded: bool,
    /// The reason for a denial that no limit caused, such as an unavailable store.
    reason_without_limit: Option<Reason>,
    details: Option<Box<UncommonDetails>>,
}

/// Details that few decisions have, in a type of their own so that other decisions are small.
#[derive(Clone, Debug, Default)]
struct UncommonDetails {
    /// The failure of the store because of which the decision was made without the store.
    store_error: Option<StoreError>,
    /// The time since the first call with the same idempotency key.
    repeated_after: Option<Duration>,
    /// The time for which the call waited.
    waited: Duration,
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
    #[inline]
    pub(crate) fn from_charge(
        hits: &[Hit<'_>],
        result: ChargeResult,
        limits: DecisionLimits<'l>,
    ) -> Self {
        let binding = find_binding_hit(hits, &result.outcomes, result.allowed);
        Self {
            result,
            limits,
            binding,
            is_degraded: false,
            reason_without_limit: None,
            details: None,
        }
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
    pub(crate) fn for_missing_key(veto: Veto, limits: DecisionLimits<'l>) -> Self {
        let outcome = Outcome::from_used_units((0, 0), 1, 0, || 0);
        let allowed = veto == Veto::Never;
        Self { binding: (!allowed).then_some(0), ..Self::new_uncharged(allowed, [outcome], limits) }
    }

    /// Creates a decision to which no limit applies: the request is allowed.
    pub(crate) fn new_allowed(limits: DecisionLimits<'l>) -> Self {
        Self::new_uncharged(true, [], limits)
    }

    /// Creates a degraded denial, made because the store failed with `error`.
    pub(crate) fn denial_from_store_error(limits: DecisionLimits<'l>, error: StoreError) -> Self {
        Self::new_uncharged(false, [], limits)
            .with_reason(Reason::StoreUnavailable)
            .into_degraded(error)
    }

    /// Creates a denial for a reason that is not a limit.
    #[cfg(feature = "policy")]
    pub(crate) fn new_denial(reason: Reason, limits: DecisionLimits<'l>) -> Self {
        Self::new_uncharged(false, [], limits).with_reason(reason)
    }

    fn new_uncharged(
        allowed: bool,
        outcomes: impl IntoIterator<Item = Outcome>,
        limits: DecisionLimits<'l>,
    ) -> Self {
        let outcomes = outcomes.into_iter().collect();
        let result = ChargeResult { allowed, outcomes, receipt: Receipt::default() };
        Self {
            result,
            limits,
            binding: None,
            is_degraded: false,
            reason_without_limit: None,
            details: None,
        }
    }

    /// Marks the decision as made without the store, because of its failure.
    pub(crate) fn into_degraded(mut self, error: StoreError) -> Self {
        self.details.get_or_insert_default().store_error = Some(error);
        Self { is_degraded: true, ..self }
    }

    /// Sets the time since the first call with the same idempotency key.
    #[cfg(feature = "policy")]
    pub(crate) fn with_time_since_first_call(mut self, age: Duration) -> Self {
        self.details.get_or_insert_default().repeated_after = Some(age);
        self
    }

    /// Sets the time for which the call waited.
    pub(crate) fn with_waited(mut self, waited: Duration) -> Self {
        self.details.get_or_insert_default().waited = waited;
        self
    }

    /// Converts the decision on a request that would have to wait for earlier requests to a denial, even if the request
    /// fits. The binding limit gets this `retry_after`; with `None`, it keeps its own. The decision must not have
    /// charges.
    pub(crate) fn into_denial(mut self, retry_after: Option<Duration>) -> Self {
        let binding =
            self.binding.and_then(|index| self.result.outcomes.get_mut(usize::from(index)));
        if let (Some(outcome), Some(retry_after)) = (binding, retry_after) {
            *outcome = outcome.denied(retry_after);
        }
        self.result.allowed = false;
        self
    }

    /// Sets the reason for a denial that no limit caused. The decision must not have charges.
    pub(crate) fn with_reason(self, reason: Reason) -> Self {
        Self { reason_without_limit: Some(reason), ..self }
    }

    /// Returns whether the request is allowed.
    #[inline]
    pub fn is_allowed(&self) -> bool {
        self.result.allowed
    }

    /// Returns whether the decision was made without the store, because it was unavailable.
    pub fn is_degraded(&self) -> bool {
        self.is_degraded
    }

    /// Returns the failure of the store because of which the decision is [degraded](Self::is_degraded).
    pub fn store_error(&self) -> Option<&StoreError> {
        self.details.as_ref()?.store_error.as_ref()
    }

    /// Returns the time since the first call with the same [idempotency key](crate::Request::with_idempotency_key), if
    /// that call was admitted: this call is its repetition, and has charged nothing. `None` if the call was decided
    /// now. A repetition has no limits and no charges if the policy has been replaced in the meantime.
    pub fn repeated_after(&self) -> Option<Duration> {
        self.details.as_ref()?.repeated_after
    }

    /// Returns the time for which the call waited until it was decided; zero if it did not wait.
    pub fn waited(&self) -> Duration {
        self.details.as_ref().map_or(Duration::ZERO, |details| details.waited)
    }

    /// Returns the decision as a result, for use with `?`.
    ///
    /// # Errors
    /// If the request is denied.
    pub fn into_result(self) -> Result<Self, Denied> {
        if self.is_allowed() { Ok(self) } else { Err(Denied(Box::new(self.into_owned()))) }
    }

    /// Returns the same decision without borrowing from the limiter.
    pub fn into_owned(self) -> Decision<'static> {
        let Self { result, limits, binding, is_degraded, reason_without_limit, details } = self;
        let limits = limits.into_owned();
        Decision { result, limits, binding, is_degraded, reason_without_limit, details }
    }

    /// Returns the units that the binding limit still admits. Without a binding limit, returns `u64::MAX` if the
    /// request is allowed, and 0 if it is denied.
    pub fn remaining(&self) -> u64 {
        let default = if self.is_allowed() { u64::MAX } else { 0 };
        self.binding_outcome().map_or(default, |outcome| outcome.remaining())
    }

    /// Returns the [`reset_after`](LimitStatus::reset_after) of the binding limit: the duration after which no unit is
    /// in use, unless further units are charged; zero if no limit is binding.
    pub fn reset_after(&self) -> Duration {
        self.binding().map_or(Duration::ZERO, |binding| binding.reset_after())
    }

    /// Returns the duration until this request would fit: zero if the request is allowed, `None` if it never fits or
    /// the duration is not known.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.binding_outcome() {
            Some(_) if !self.is_allowed() => self.binding()?.retry_after(),
            Some(outcome) => outcome.retry_after(),
            None => self.is_allowed().then_some(Duration::ZERO),
        }
    }

    /// Returns the reason for a denial; `None` if the request is allowed.
    pub fn reason(&self) -> Option<Reason> {
        if self.is_allowed() {
            return None;
        }
        if let Some(reason) =
            self.reason_without_limit.filter(|reason| *reason != Reason::WaitQueueFull)
        {
            return Some(reason);
        }
        let Some(binding) = self.binding() else { return Some(Reason::LimitExceeded) };
        let is_concurrent = binding.limit().is_concurrent();
        Some(match binding.retry_after() {
            _ if binding.is_key_missing() => Reason::MissingAttribute,
            _ if binding.limit().capacity() == 0 => Reason::Banned,
            None if !is_concurrent => Reason::CostExceedsMax,
            _ if self.reason_without_limit.is_some() => Reason::WaitQueueFull,
            _ if is_concurrent => Reason::ConcurrencyExceeded,
            _ if binding.rule_limit().is_block_limit() => Reason::Blocked,
            _ => Reason::LimitExceeded,
        })
    }

    /// Returns the HTTP status: 200 if the request is allowed. For a denial, the `deny_status` of the binding limit's
    /// rule, 429 by default; 503 if the store is unavailable; 409 or 422 if the idempotency key cannot be used.
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
        if self.is_allowed() {
            return 200;
        }
        match self.reason_without_limit {
            Some(Reason::StoreUnavailable) => return 503,
            Some(Reason::CallInProgress) => return 409,
            Some(Reason::IdempotencyKeyReused | Reason::RefundWithIdempotencyKey) => return 422,
            _ => {}
        }
        self.binding().and_then(|binding| binding.deny_status()).unwrap_or(429)
    }

    /// Returns the status of every limit that applies, in the order of the policy or the limiter. Limits that the store
    /// did not have to evaluate are left out. So is the `block` of a rule, unless the key is blocked.
    pub fn limits(&self) -> impl Iterator<Item = LimitStatus<'_>> {
        let known = self.outcomes().iter().enumerate().filter(|(_, outcome)| outcome.is_known());
        let statuses = known.filter_map(|(index, outcome)| self.limits.status(index, *outcome));
        statuses.filter(|status| !status.fits() || !status.rule_limit().is_block_limit())
    }

    /// Returns the status of every limit that the request exceeds, including limits that only observe, in the order of
    /// [`limits`](Self::limits).
    pub fn exceeded_limits(&self) -> impl Iterator<Item = LimitStatus<'_>> {
        self.limits().filter(|status| !status.fits())
    }

    /// Returns the status of the binding limit, which is the limit that clients see; `None` if no limit is binding.
    ///
    /// If the request is denied, the binding limit is the denying limit with the longest wait; the wait of a cost that
    /// never fits counts as infinite. A limit on [requests in flight](crate::Limit::concurrent), whose wait is not
    /// known, is binding only if no other limit denies. If the request is allowed, the binding limit is the limit with
    /// the smallest fraction remaining. A limit on requests in flight is then binding only if there are no other
    /// limits. Only one of all [joint](Veto::Jointly) limits is considered. If the request is denied because no joint
    /// limit fits, it is the joint limit with the shortest wait. If the request is allowed, it is the joint limit with
    /// the largest fraction remaining. Limits that only observe are never binding.
    pub fn binding(&self) -> Option<LimitStatus<'_>> {
        self.limits.status(usize::from(self.binding?), *self.binding_outcome()?)
    }

    /// Returns the record of the charges, with which the charges can be reverted or settled.
    pub fn receipt(&self) -> &Receipt {
        &self.result.receipt
    }

    /// Returns whether a rule with `limits: unlimited` applies to the descriptor with this index.
    #[cfg(feature = "policy")]
    pub fn is_unlimited(&self, descriptor: usize) -> bool {
        self.limits.is_unlimited(descriptor)
    }

    /// Returns the outcome of each hit. An outcome is [unknown](Outcome::is_known) if the store did not have to
    /// evaluate the limit.
    pub(crate) fn outcomes(&self) -> &[Outcome] {
        &self.result.outcomes
    }

    /// Returns the charges, each with the cost that its rule charges; `None` if its rule is not known.
    #[cfg(feature = "policy")]
    pub(crate) fn charges_with_costs(&self) -> impl Iterator<Item = (&Charge, Option<&RuleCost>)> {
        self.receipt().charges().iter().map(|charge| {
            let status = self.limits.status(charge.hit_index as usize, Outcome::unknown());
            let cost = status.and_then(|status| status.rule()).map(|rule| rule.cost());
            (charge, cost)
        })
    }

    /// Returns the permit of the request; `None` if no limit bounds the requests in flight, or the request is denied.
    #[cfg(feature = "policy")]
    pub fn permit(&self) -> Option<Permit> {
        Permit::from_decision(self)
    }

    /// Removes the permit of the request from the decision, and returns it as [`permit`](Self::permit) does. Reverting
    /// the decision then does not release the permit.
    #[cfg(feature = "policy")]
    pub fn take_permit(&mut self) -> Option<Permit> {
        let permit = self.permit()?;
        self.result.receipt.remove_permit_charges();
        Some(permit)
    }

    /// Returns the charges that are the cost of the request, and not a cost that a rule states.
    #[cfg(feature = "policy")]
    pub(crate) fn request_cost_receipt(&self) -> Receipt {
        let is_request_cost =
            |charge: &&Charge| self.limits.has_request_cost(charge.hit_index as usize);
        self.receipt().charges().iter().filter(is_request_cost).cloned().collect()
    }

    /// Returns the charges of rules that charge the cost with this name.
    #[cfg(feature = "policy")]
    pub(crate) fn named_cost_receipt(&self, name: &str) -> Receipt {
        let has_name =
            |cost: Option<&RuleCost>| matches!(cost, Some(RuleCost::Named(own)) if **own == *name);
        let named = self.charges_with_costs().filter(|(_, cost)| has_name(*cost));
        named.map(|(charge, _)| charge.clone()).collect()
    }

    fn binding_outcome(&self) -> Option<&Outcome> {
        self.outcomes().get(usize::from(self.binding?))
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

    /// Returns the reason for the denial.
    pub fn reason(&self) -> Option<Reason> {
        self.0.reason()
    }

    /// Returns the units that the binding limit still admits.
    pub fn remaining(&self) -> u64 {
        self.0.remaining()
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

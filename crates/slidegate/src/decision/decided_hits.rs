//! The hits of a decided request: the results of the store, and the limits.

use std::slice;
use std::sync::Arc;

use super::limit_status::{DecisionLimits, LimitsRef};
#[cfg(feature = "policy")]
use super::limit_status::{LimitOfRule, PolicyLimits};
use crate::limit::Limit;
use crate::outcome::Outcome;
use crate::rule_limit::LimiterLimits;
use crate::store::local_results::{LocalCharge, LocalResult};
use crate::store::{LocalResults, Outcomes, Receipt, SingleChargeResult};

/// The hits of a decided request.
///
/// The usual decision has one hit and needs no allocation. All others are in a box, so that the compiler can inline the
/// destructor of a decision, and so that a decision is small.
#[derive(Clone, Debug)]
pub(super) enum DecidedHits<'l> {
    /// The only hit of a limiter, decided by a store in this process.
    One { result: LocalResult, limits: &'l Arc<LimiterLimits> },
    /// The only hit of a policy, decided by a store in this process.
    #[cfg(feature = "policy")]
    OneOfRule { result: LocalResult, limit: LimitOfRule },
    /// The hits of a limiter with a few limits, decided by a store in this process.
    Few { results: Box<LocalResults>, limits: &'l Arc<LimiterLimits> },
    /// Any hits.
    Boxed(Box<BoxedHits<'l>>),
}

/// Any hits of a decided request, with their limits.
#[derive(Clone, Debug)]
pub(super) struct BoxedHits<'l> {
    results: HitResults,
    limits: DecisionLimits<'l>,
}

/// The results of the store for the hits of a request.
#[derive(Clone, Debug)]
pub(super) enum HitResults {
    /// One hit, decided by a store in this process.
    One(LocalResult),
    /// A few hits, decided by a store in this process.
    Few(Box<LocalResults>),
    /// Any hits, with their receipt.
    Any { outcomes: Outcomes, receipt: Receipt },
}

#[cfg(feature = "policy")]
impl BoxedHits<'_> {
    fn has_concurrent_limit(&self) -> bool {
        let limits = self.limits.as_ref();
        let mut all = (0..self.results.outcomes().len()).filter_map(|index| limits.limit(index));
        all.any(Limit::is_concurrent)
    }
}

impl HitResults {
    /// Converts the result of a store for the only hit of a request. `limit` is the limit of the hit.
    #[inline]
    pub(super) fn from_single(result: SingleChargeResult, limit: &Limit) -> Self {
        match LocalResult::try_from(result) {
            Ok(result) => Self::One(result),
            Err((outcome, charge)) => Self::Any {
                outcomes: Outcomes::of_one(outcome),
                receipt: [charge.into_charge(*limit)].into_iter().collect(),
            },
        }
    }

    /// Returns the outcome of each hit.
    #[inline]
    fn outcomes(&self) -> &[Outcome] {
        match self {
            Self::One(result) => slice::from_ref(&result.outcome),
            Self::Few(results) => &results.outcomes,
            Self::Any { outcomes, .. } => outcomes,
        }
    }

    /// Returns the results of a request without hits.
    pub(super) fn none() -> Self {
        Self::Any { outcomes: Outcomes::new(), receipt: Receipt::default() }
    }
}

impl<'l> DecidedHits<'l> {
    /// Creates the hits of a request. `limits` has one limit for each result.
    #[inline]
    pub(super) fn new(results: HitResults, limits: DecisionLimits<'l>) -> Self {
        Self::Boxed(Box::new(BoxedHits { results, limits }))
    }

    /// Creates the only hit of a limiter's request. `limit` is the limit of the hit.
    #[inline(always)]
    pub(super) fn of_limiter(
        result: SingleChargeResult,
        limit: &Limit,
        limits: &'l Arc<LimiterLimits>,
    ) -> Self {
        match LocalResult::try_from(result) {
            Ok(result) => Self::One { result, limits },
            Err((outcome, charge)) => {
                let result = SingleChargeResult { outcome, charge: Some(charge) };
                Self::new(HitResults::from_single(result, limit), DecisionLimits::Limiter(limits))
            }
        }
    }

    /// Creates the only hit of a policy's request. `hit_limit` is the limit of the hit.
    #[cfg(feature = "policy")]
    #[inline(always)]
    pub(super) fn of_rule(
        result: SingleChargeResult,
        hit_limit: &Limit,
        limit: LimitOfRule,
    ) -> Self {
        match LocalResult::try_from(result) {
            Ok(result) => Self::OneOfRule { result, limit },
            Err((outcome, charge)) => {
                let result = SingleChargeResult { outcome, charge: Some(charge) };
                let limits = PolicyLimits { rules: limit.rules, origins: limit.origin.into() };
                let results = HitResults::from_single(result, hit_limit);
                Self::new(results, DecisionLimits::Policy(limits))
            }
        }
    }

    /// Returns the outcome of each hit.
    #[inline(always)]
    pub(super) fn outcomes(&self) -> &[Outcome] {
        match self {
            Self::One { result, .. } => slice::from_ref(&result.outcome),
            #[cfg(feature = "policy")]
            Self::OneOfRule { result, .. } => slice::from_ref(&result.outcome),
            Self::Few { results, .. } => &results.outcomes,
            Self::Boxed(hits) => hits.results.outcomes(),
        }
    }

    /// Returns the outcome of the hit with this index; `None` if there is no such hit.
    pub(super) fn outcome_mut(&mut self, index: usize) -> Option<&mut Outcome> {
        let outcomes: &mut [Outcome] = match self {
            Self::One { result, .. } => slice::from_mut(&mut result.outcome),
            #[cfg(feature = "policy")]
            Self::OneOfRule { result, .. } => slice::from_mut(&mut result.outcome),
            Self::Few { results, .. } => &mut results.outcomes,
            Self::Boxed(hits) => match &mut hits.results {
                HitResults::One(result) => slice::from_mut(&mut result.outcome),
                HitResults::Few(results) => &mut results.outcomes,
                HitResults::Any { outcomes, .. } => outcomes,
            },
        };
        outcomes.get_mut(index)
    }

    /// Returns the limits of the hits.
    #[inline]
    pub(super) fn limits(&self) -> LimitsRef<'_> {
        match self {
            Self::One { limits, .. } | Self::Few { limits, .. } => {
                LimitsRef::Limiter { limits, is_key_missing: false }
            }
            #[cfg(feature = "policy")]
            Self::OneOfRule { limit, .. } => LimitsRef::Rule(limit),
            Self::Boxed(hits) => hits.limits.as_ref(),
        }
    }

    /// Returns whether a limit bounds the requests in flight. The limits of a limiter do not.
    #[cfg(feature = "policy")]
    #[inline]
    pub(super) fn has_concurrent_limit(&self) -> bool {
        match self {
            Self::One { .. } | Self::Few { .. } => false,
            Self::OneOfRule { limit, .. } => limit.limit().is_some_and(Limit::is_concurrent),
            Self::Boxed(hits) => hits.has_concurrent_limit(),
        }
    }

    /// Returns the record of the charges.
    pub(super) fn receipt(&self) -> Receipt {
        let charges = match self {
            Self::One { result, .. } => result.charge.as_slice(),
            #[cfg(feature = "policy")]
            Self::OneOfRule { result, .. } => result.charge.as_slice(),
            Self::Few { results, .. } => &results.charges,
            Self::Boxed(hits) => match &hits.results {
                HitResults::One(result) => result.charge.as_slice(),
                HitResults::Few(results) => &results.charges,
                HitResults::Any { receipt, .. } => return receipt.clone(),
            },
        };
        let limits = self.limits();
        let charge = |(index, charge): (usize, &LocalCharge)| {
            Some(charge.into_charge(index as u32, *limits.limit(index)?))
        };
        charges.iter().enumerate().filter_map(charge).collect()
    }

    /// Returns the same hits without borrowing from the limiter.
    pub(super) fn into_owned(self) -> DecidedHits<'static> {
        let (results, limits) = match self {
            Self::One { result, limits } => {
                (HitResults::One(result), DecisionLimits::Limiter(limits))
            }
            Self::Few { results, limits } => {
                (HitResults::Few(results), DecisionLimits::Limiter(limits))
            }
            #[cfg(feature = "policy")]
            Self::OneOfRule { result, limit } => return DecidedHits::OneOfRule { result, limit },
            Self::Boxed(hits) => (hits.results, hits.limits),
        };
        DecidedHits::new(results, limits.into_owned())
    }
}

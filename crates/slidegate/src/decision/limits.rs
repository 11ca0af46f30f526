//! The limits from which a decision was made, of a limiter or of the rules of a policy, and the choice of the binding
//! one, which clients see.

use std::borrow::Cow;
use std::sync::Arc;

#[cfg(feature = "policy")]
use smallvec::SmallVec;

use super::Decision;
use super::limit_status::{LimitOwner, LimitStatus};
use crate::hit::{Hit, Veto};
use crate::outcome::Outcome;
#[cfg(feature = "policy")]
use crate::policy::{HitOrigin, MatchedRules, Rule};
use crate::rule_limit::NamedLimits;
#[cfg(feature = "policy")]
use crate::rule_limit::RuleLimit;

/// The limits from which a decision was made, one for each outcome of the decision.
#[derive(Clone, Debug)]
pub(crate) enum DecisionLimits<'l> {
    /// The limits of a limiter.
    Limiter {
        limits: Cow<'l, Arc<NamedLimits>>,
        /// Whether the request has no key, so that its only limit is [`NamedLimits::missing_key_limit`], which has no
        /// capacity.
        is_key_missing: bool,
    },
    /// The limits of the rules of a policy.
    #[cfg(feature = "policy")]
    Policy(PolicyLimits),
}

/// The limits of the rules of a policy, one for each hit of a request.
#[cfg(feature = "policy")]
#[derive(Clone, Debug)]
pub(crate) struct PolicyLimits {
    /// The rules of the policy, with the limits that were enforced.
    rules: Arc<[Rule]>,
    /// The rule and limit from which each hit was created.
    origins: SmallVec<[HitOrigin; 2]>,
    /// Data that few requests need; `None` if the request has none of it.
    uncommon: Option<Box<UncommonLimits>>,
}

/// The data of [`PolicyLimits`] that few requests have.
#[cfg(feature = "policy")]
#[derive(Clone, Debug, Default)]
struct UncommonLimits {
    /// The limits that descriptors of the request state, in place of the limits of their rules.
    requested: Vec<Arc<RuleLimit>>,
    /// Indexes of the descriptors to which a rule without limits (`limits: unlimited`) applies.
    unlimited: Vec<u32>,
}

#[cfg(feature = "policy")]
impl PolicyLimits {
    /// Returns the limits of a decision that is not based on any limit of the rules.
    pub(crate) fn none(matched: &MatchedRules<'_>) -> Self {
        Self { rules: matched.rules().clone(), origins: SmallVec::new(), uncommon: None }
    }

    /// Returns the limits of the hits of matched rules, in the order of [`MatchedRules::hits`].
    pub(crate) fn new(matched: &MatchedRules<'_>) -> Self {
        let mut limits = Self::none(matched);
        for rule_match in matched.matches() {
            let mut origin = rule_match.origin();
            if rule_match.limits().is_empty() {
                limits.uncommon.get_or_insert_default().unlimited.push(origin.descriptor);
            } else if let Some(limit) = rule_match.requested_limit() {
                let requested = &mut limits.uncommon.get_or_insert_default().requested;
                origin.limit = requested.len() as u16;
                requested.push(limit.clone());
            }
            for _ in rule_match.limits() {
                limits.origins.push(origin);
                origin.limit += 1;
            }
        }
        limits
    }

    fn status(&self, index: usize, outcome: Outcome) -> Option<LimitStatus<'_>> {
        let origin = *self.origins.get(index)?;
        let rule = self.rules.get(origin.rule as usize)?;
        let limit = if origin.is_requested {
            &**self.uncommon.as_ref()?.requested.get(usize::from(origin.limit))?
        } else {
            rule.limits(origin.settings_source).get(usize::from(origin.limit))?
        };
        let source = LimitOwner::Rule(rule, origin);
        Some(LimitStatus { source, limit, outcome, veto: origin.veto })
    }

    /// Returns whether both have the same limits. Returns `false` if one has uncommon data, which is not compared.
    fn have_same_limits(&self, other: &Self) -> bool {
        let is_common = self.uncommon.is_none() && other.uncommon.is_none();
        is_common && Arc::ptr_eq(&self.rules, &other.rules) && self.origins == other.origins
    }
}

impl DecisionLimits<'_> {
    /// Returns the status of the limit with this index. `outcome` is the outcome with the same index. Returns `None` if
    /// there is no such limit.
    pub(super) fn status(&self, index: usize, outcome: Outcome) -> Option<LimitStatus<'_>> {
        match self {
            Self::Limiter { limits, is_key_missing } => {
                let limit = if *is_key_missing {
                    limits.missing_key_limit()
                } else {
                    limits.limits().get(index)?
                };
                let (name, is_key_missing) = (limits.name(), *is_key_missing);
                let source = LimitOwner::Limiter { name, is_key_missing };
                Some(LimitStatus { source, limit, outcome, veto: limits.veto() })
            }
            #[cfg(feature = "policy")]
            Self::Policy(limits) => limits.status(index, outcome),
        }
    }

    /// Returns whether a rule with `limits: unlimited` applies to the descriptor with this index.
    #[cfg(feature = "policy")]
    pub(super) fn is_unlimited(&self, descriptor: usize) -> bool {
        match self {
            Self::Limiter { .. } => false,
            Self::Policy(limits) => {
                let mut unlimited = limits.uncommon.iter().flat_map(|uncommon| &uncommon.unlimited);
                unlimited.any(|&index| index as usize == descriptor)
            }
        }
    }

    /// Returns whether the charge of the hit with this index is the cost of the request, and not a cost that its rule
    /// states.
    #[cfg(feature = "policy")]
    pub(super) fn has_request_cost(&self, hit_index: usize) -> bool {
        match self {
            Self::Limiter { .. } => true,
            Self::Policy(limits) => {
                limits.origins.get(hit_index).is_some_and(|origin| origin.has_request_cost)
            }
        }
    }

    /// Returns the same limits without borrowing from the limiter.
    pub(super) fn into_owned(self) -> DecisionLimits<'static> {
        match self {
            Self::Limiter { limits, is_key_missing } => {
                DecisionLimits::Limiter { limits: Cow::Owned(limits.into_owned()), is_key_missing }
            }
            #[cfg(feature = "policy")]
            Self::Policy(limits) => DecisionLimits::Policy(limits),
        }
    }

    fn have_same_limits(&self, other: &DecisionLimits<'_>) -> bool {
        match (self, other) {
            (
                Self::Limiter { limits, is_key_missing: false },
                DecisionLimits::Limiter { limits: other, is_key_missing: false },
            ) => Arc::ptr_eq(limits, other),
            #[cfg(feature = "policy")]
            (Self::Policy(first), DecisionLimits::Policy(second)) => first.have_same_limits(second),
            _ => false,
        }
    }
}

/// The limits of a decision without their status, for a comparison with the limits of later decisions.
///
/// Decisions with the same limits have the same [policy header](crate::headers::policy_header), unless the window of a
/// limit [varies](crate::Limit::has_varying_window).
#[derive(Clone, Debug)]
pub struct DecidedLimits(DecisionLimits<'static>);

impl Decision<'_> {
    /// Returns the limits of the decision; `None` if they cannot be compared cheaply.
    pub fn decided_limits(&self) -> Option<DecidedLimits> {
        let limits = DecidedLimits(self.limits.clone().into_owned());
        self.has_same_limits(&limits).then_some(limits)
    }

    /// Returns `true` if the decision is known to have these limits. Returns `false` if the limits differ or cannot be
    /// compared cheaply.
    pub fn has_same_limits(&self, other: &DecidedLimits) -> bool {
        self.has_evaluated_all_limits() && self.limits.have_same_limits(&other.0)
    }

    /// Returns whether the store has evaluated all limits. It has evaluated none if it is unavailable.
    fn has_evaluated_all_limits(&self) -> bool {
        let outcomes = self.outcomes();
        !outcomes.is_empty() && outcomes.iter().all(Outcome::is_known)
    }
}

/// Returns the index of the binding hit; `None` if no hit is binding. See [`Decision::binding`](super::Decision::binding).
#[inline]
pub(super) fn find_binding_hit(
    hits: &[Hit<'_>],
    outcomes: &[Outcome],
    allowed: bool,
) -> Option<u16> {
    if let ([hit], [outcome]) = (hits, outcomes) {
        let is_binding = outcome.is_known() && (!allowed || hit.veto != Veto::Never);
        return is_binding.then_some(0);
    }
    find_binding_of_several_hits(hits, outcomes, allowed)
}

/// Returns the index of the binding hit of several hits. A function of its own, so that the usual case, one hit, is short
/// enough to be inlined: a decision takes a tenth less time.
fn find_binding_of_several_hits(
    hits: &[Hit<'_>],
    outcomes: &[Outcome],
    allowed: bool,
) -> Option<u16> {
    let is_known = |(_, (_, outcome)): &IndexedHit<'_>| outcome.is_known();
    let all = || hits.iter().zip(outcomes).enumerate().filter(is_known);
    let with_veto = |veto| all().filter(move |(_, (hit, _))| hit.veto == veto);
    let binding = if allowed {
        // A joint limit that does not fit is not binding for an allowed request, because another joint limit fits.
        let fitting = with_veto(Veto::Jointly).filter(|(_, (_, outcome))| outcome.fits());
        let most =
            fitting.reduce(|most, next| if is_tighter(most.1, next.1) { next } else { most });
        // A block says nothing about the limits of a request that it does not deny.
        let alone = with_veto(Veto::Alone).filter(|(_, (hit, _))| hit.charge.block().is_none());
        alone
            .chain(most)
            .reduce(|least, next| if is_tighter(next.1, least.1) { next } else { least })
    } else {
        let has_fitting = with_veto(Veto::Jointly).any(|(_, (_, outcome))| outcome.fits());
        let joint = with_veto(Veto::Jointly).filter(|_| !has_fitting);
        let soonest = joint
            .reduce(|soonest, next| if wait_us(next) < wait_us(soonest) { next } else { soonest });
        let denying = with_veto(Veto::Alone).filter(|(_, (_, outcome))| !outcome.fits());
        let candidates = denying.chain(soonest);
        candidates
            .reduce(|longest, next| if wait_us(next) > wait_us(longest) { next } else { longest })
    };
    binding.and_then(|(index, _)| u16::try_from(index).ok())
}

/// A hit with its outcome, preceded by the index of the hit in the request.
type IndexedHit<'h> = (usize, (&'h Hit<'h>, &'h Outcome));

/// Returns the wait of a hit that does not fit, in microseconds. The wait of a limit on requests in flight is not
/// known. It counts as 0, so that any other denying limit is binding.
fn wait_us((_, (hit, outcome)): IndexedHit<'_>) -> u64 {
    if outcome.retry_after().is_some() && hit.limit.is_concurrent() {
        0
    } else {
        outcome.retry_after_us()
    }
}

/// Returns whether a client should see `first` rather than `second`: the smaller remaining fraction, but a limit on
/// requests in flight only if there is no other limit, because it says nothing about the rate that a client may have.
fn is_tighter(first: (&Hit<'_>, &Outcome), second: (&Hit<'_>, &Outcome)) -> bool {
    match (first.0.limit.is_concurrent(), second.0.limit.is_concurrent()) {
        (false, true) => true,
        (true, false) => false,
        _ => has_less_left(first, second),
    }
}

/// Returns whether the remaining fraction of the limit is smaller for `first` than for `second`.
fn has_less_left(first: (&Hit<'_>, &Outcome), second: (&Hit<'_>, &Outcome)) -> bool {
    remaining_times_capacity(first, second.0) < remaining_times_capacity(second, first.0)
}

/// Returns one side of the comparison of two fractions by cross-multiplication.
fn remaining_times_capacity((hit, outcome): (&Hit<'_>, &Outcome), other: &Hit<'_>) -> u128 {
    u128::from(outcome.remaining().min(hit.limit.capacity())) * u128::from(other.limit.capacity())
}

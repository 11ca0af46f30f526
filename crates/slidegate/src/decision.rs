//! The decision about a request, derived from the outcomes of its hits.
//!
//! The store decides whether a request is allowed; this module chooses the binding limit, which is the limit that
//! clients see.

use std::time::Duration;

use crate::hit::{Hit, Veto};
use crate::outcome::Outcome;
use crate::store::{ChargeResult, Outcomes, Receipt, SingleChargeResult, admits};

/// The result for a request: whether it is allowed, the binding limit, and the outcome of every limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    is_allowed: bool,
    is_degraded: bool,
    binding: Option<u16>,
    outcomes: Outcomes,
    receipt: Receipt,
}

impl Decision {
    /// Creates a decision from the result of a charge.
    #[inline(always)]
    pub(crate) fn from_charge(hits: &[Hit<'_>], result: ChargeResult) -> Self {
        let binding = find_binding_hit(hits, &result.outcomes, result.allowed);
        Self::with_binding_index(binding, result)
    }

    #[inline(always)]
    fn with_binding_index(binding: Option<u16>, result: ChargeResult) -> Self {
        let ChargeResult { allowed: is_allowed, outcomes, receipt } = result;
        Self { is_allowed, is_degraded: false, binding, outcomes, receipt }
    }

    /// Creates a decision from the result of charging a single hit.
    #[inline(always)]
    pub(crate) fn from_single_charge(hit: &Hit<'_>, result: SingleChargeResult) -> Self {
        let result = result.into_charge_result(hit);
        Self::with_binding_index(is_single_hit_binding(hit, result.allowed).then_some(0), result)
    }

    /// Creates a decision from the outcomes of a peek. The decision has no charges.
    pub(crate) fn from_peek(hits: &[Hit<'_>], outcomes: Outcomes) -> Self {
        let allowed = admits(hits, &outcomes);
        Self::from_charge(hits, ChargeResult { allowed, outcomes, receipt: Receipt::default() })
    }

    /// Creates the decision of a limit without capacity: a denial, unless `veto` is [`Veto::Never`].
    pub(crate) fn with_zero_capacity(veto: Veto) -> Self {
        let outcomes = Outcomes::from_slice(&[Outcome::from_used_units((0, 0), 1, 0, || 0)]);
        let allowed = veto == Veto::Never;
        let result = ChargeResult { allowed, outcomes, receipt: Receipt::default() };
        Self::with_binding_index((!allowed).then_some(0), result)
    }

    /// Creates the decision for a request to which no rule applies: allowed.
    pub(crate) fn unlimited() -> Self {
        let result =
            ChargeResult { allowed: true, outcomes: Outcomes::new(), receipt: Receipt::default() };
        Self::from_charge(&[], result)
    }

    /// Creates a degraded denial, made because the store is unavailable.
    pub fn store_unavailable() -> Self {
        let result =
            ChargeResult { allowed: false, outcomes: Outcomes::new(), receipt: Receipt::default() };
        Self::from_charge(&[], result).into_degraded()
    }

    /// Marks the decision as made without the store.
    #[must_use]
    pub fn into_degraded(self) -> Self {
        Self { is_degraded: true, ..self }
    }

    /// Returns whether the request is allowed.
    pub fn is_allowed(&self) -> bool {
        self.is_allowed
    }

    /// Returns whether the decision was made without the store, because it was unavailable.
    pub fn is_degraded(&self) -> bool {
        self.is_degraded
    }

    /// Returns whether the request was denied because the store is unavailable, and not because of a limit.
    pub fn is_store_unavailable(&self) -> bool {
        !self.is_allowed && self.outcomes.is_empty()
    }

    /// Returns the index in [`outcomes`](Self::outcomes) of the binding outcome, which is the outcome that clients see;
    /// `None` if no outcome is binding.
    ///
    /// If the request is denied, the binding outcome is the denial with the longest wait; the wait of a cost that never
    /// fits counts as infinite. If the request is allowed, the binding outcome is the one with the smallest fraction of
    /// its limit remaining. Only one outcome of all [joint](Veto::Jointly) limits is considered. If the request is
    /// denied because none of them fits, this is the outcome with the shortest wait. If the request is allowed, this is
    /// the outcome with the largest fraction remaining. Limits that only observe are never binding.
    pub fn binding(&self) -> Option<usize> {
        self.binding.map(usize::from)
    }

    /// Returns the outcome of each limit. An outcome is [unknown](Outcome::is_known) if the store did not have to
    /// evaluate the limit.
    pub fn outcomes(&self) -> &[Outcome] {
        &self.outcomes
    }

    /// Returns the record of the charges, with which the charges can be reverted or settled.
    pub fn receipt(&self) -> &Receipt {
        &self.receipt
    }

    fn binding_outcome(&self) -> Option<&Outcome> {
        self.outcomes.get(self.binding()?)
    }

    /// Returns the units that the binding limit still admits. Without a binding limit, returns `u64::MAX` if the
    /// request is allowed, and 0 if it is denied.
    pub fn remaining(&self) -> u64 {
        let default = if self.is_allowed { u64::MAX } else { 0 };
        self.binding_outcome().map_or(default, Outcome::remaining)
    }

    /// Returns the duration after which no unit of the binding limit is in use, unless further units are charged; zero
    /// if no limit is binding.
    pub fn reset_after(&self) -> Duration {
        self.binding_outcome().map_or(Duration::ZERO, Outcome::reset_after)
    }

    /// Returns the duration until this request would fit: zero if the request is allowed, `None` if it never fits or
    /// the duration is not known.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.binding_outcome() {
            Some(outcome) => outcome.retry_after(),
            None => self.is_allowed.then_some(Duration::ZERO),
        }
    }
}

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
    let wait = |(_, (_, outcome)): &IndexedHit<'_>| outcome.retry_after_us();
    let binding = if allowed && hits.iter().all(|hit| hit.veto != Veto::Jointly) {
        // The usual case of the next branch, in fewer instructions.
        let candidates = with_veto(Veto::Alone);
        candidates.reduce(
            |least, next| if has_smaller_fraction_left(next.1, least.1) { next } else { least },
        )
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

/// A [`Decision`] as an enum, for use in a `match`.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "a denial is a value: check whether the request is allowed"]
pub enum Verdict {
    /// The request is allowed, and has been charged.
    Allowed(Decision),
    /// The request is denied, and has not been charged.
    Denied(Decision),
}

impl Verdict {
    /// Returns whether the request is allowed.
    pub fn is_allowed(&self) -> bool {
        matches!(self, Self::Allowed(_))
    }

    /// Returns the decision.
    pub fn decision(&self) -> &Decision {
        match self {
            Self::Allowed(decision) | Self::Denied(decision) => decision,
        }
    }
}

impl From<Verdict> for Decision {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Allowed(decision) | Verdict::Denied(decision) => decision,
        }
    }
}

impl From<Decision> for Verdict {
    #[inline(always)]
    fn from(decision: Decision) -> Self {
        if decision.is_allowed { Self::Allowed(decision) } else { Self::Denied(decision) }
    }
}

//! What we say of a request.

use std::time::Duration;

use crate::hit::{Hit, Veto};
use crate::outcome::Outcome;
use crate::store::{ChargeResult, Outcomes, Receipt, SingleChargeResult, admits};

/// What we say of a request: allowed or denied, by which limit, and how every limit stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    allowed: bool,
    degraded: bool,
    binding: Option<u16>,
    outcomes: Outcomes,
    receipt: Receipt,
}

impl Decision {
    /// What a store did, seen as a decision.
    #[inline(always)]
    pub(crate) fn of_taken(hits: &[Hit<'_>], taken: ChargeResult) -> Self {
        let binding = binding(hits, &taken.outcomes, taken.allowed);
        Self::bound_by(binding, taken)
    }

    #[inline(always)]
    fn bound_by(binding: Option<u16>, taken: ChargeResult) -> Self {
        let ChargeResult { allowed, outcomes, receipt } = taken;
        Self { allowed, degraded: false, binding, outcomes, receipt }
    }

    /// What a store did with a single hit, seen as a decision.
    #[inline(always)]
    pub(crate) fn of_one(hit: &Hit<'_>, taken: SingleChargeResult) -> Self {
        let taken = taken.into_charge_result(hit);
        Self::bound_by(binds_alone(hit, taken.allowed).then_some(0), taken)
    }

    /// What a store would do, seen as a decision.
    pub(crate) fn of_peeked(hits: &[Hit<'_>], outcomes: Outcomes) -> Self {
        let allowed = admits(hits, &outcomes);
        Self::of_taken(hits, ChargeResult { allowed, outcomes, receipt: Receipt::default() })
    }

    /// By a limit that nothing fits: a denial, unless it observes.
    pub(crate) fn never(veto: Veto) -> Self {
        let outcomes = Outcomes::from_slice(&[Outcome::evaluate((0, 0), 1, 0, || 0)]);
        let allowed = veto == Veto::Never;
        let taken = ChargeResult { allowed, outcomes, receipt: Receipt::default() };
        Self::bound_by((!allowed).then_some(0), taken)
    }

    /// What no rule applies to.
    pub(crate) fn unlimited() -> Self {
        let taken =
            ChargeResult { allowed: true, outcomes: Outcomes::new(), receipt: Receipt::default() };
        Self::of_taken(&[], taken)
    }

    /// A denial because the store, which should have decided, did not answer.
    pub fn refused() -> Self {
        let taken =
            ChargeResult { allowed: false, outcomes: Outcomes::new(), receipt: Receipt::default() };
        Self::of_taken(&[], taken).degraded()
    }

    /// The same, made without the store that should have made it.
    #[must_use]
    pub fn degraded(self) -> Self {
        Self { degraded: true, ..self }
    }

    /// Whether the request may pass.
    pub fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// Whether it was made without the store that should have made it.
    pub fn is_degraded(&self) -> bool {
        self.degraded
    }

    /// Whether it was denied because the store did not answer, and not by any limit.
    pub fn is_refused(&self) -> bool {
        !self.allowed && self.outcomes.is_empty()
    }

    /// Returns the place of the outcome that binds the request. Of a denial it is the one with the longest wait ("never" is
    /// the longest), where joint limits count as the one of them with the shortest wait. Otherwise it is the one with the
    /// least remaining share, where joint limits count as the one of them with the most. Limits that only observe do not
    /// bind.
    pub fn binding(&self) -> Option<usize> {
        self.binding.map(usize::from)
    }

    /// One outcome for each limit; of a limit that the store did not have to ask it says
    /// [no more than that](Outcome::is_known).
    pub fn outcomes(&self) -> &[Outcome] {
        &self.outcomes
    }

    /// What was charged, to be given back or settled.
    pub fn receipt(&self) -> &Receipt {
        &self.receipt
    }

    fn bound(&self) -> Option<&Outcome> {
        self.outcomes.get(self.binding()?)
    }

    /// Units that the binding limit still lets pass; `u64::MAX` if nothing limits the request.
    pub fn remaining(&self) -> u64 {
        let unbound = if self.allowed { u64::MAX } else { 0 };
        self.bound().map_or(unbound, Outcome::remaining)
    }

    /// How long until the binding limit is as if the key had never been seen.
    pub fn reset_after(&self) -> Duration {
        self.bound().map_or(Duration::ZERO, Outcome::reset_after)
    }

    /// How long until this request would fit: zero if it is allowed, `None` if it never can, or if that
    /// is not known.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.bound() {
            Some(outcome) => outcome.retry_after(),
            None => self.allowed.then_some(Duration::ZERO),
        }
    }
}

/// The hit that a decision hangs on.
#[inline]
fn binding(hits: &[Hit<'_>], outcomes: &[Outcome], allowed: bool) -> Option<u16> {
    match (hits, outcomes) {
        ([hit], [outcome]) => (outcome.is_known() && binds_alone(hit, allowed)).then_some(0),
        _ => binding_of_several(hits, outcomes, allowed),
    }
}

/// Whether a decision hangs on its only hit.
#[inline]
fn binds_alone(hit: &Hit<'_>, allowed: bool) -> bool {
    !allowed || hit.veto != Veto::Never
}

fn binding_of_several(hits: &[Hit<'_>], outcomes: &[Outcome], allowed: bool) -> Option<u16> {
    let known = |(_, (_, outcome)): &Bound<'_>| outcome.is_known();
    let all = || hits.iter().zip(outcomes).enumerate().filter(known);
    let with = |veto| all().filter(move |(_, (hit, _))| hit.veto == veto);
    let denies = |(_, (_, outcome)): &Bound<'_>| !outcome.fits();
    let wait = |(_, (_, outcome)): &Bound<'_>| outcome.retry_after_us();
    let bound = if allowed {
        // A joint limit that does not fit denies nothing while another one fits.
        let joint = with(Veto::Jointly).filter(|bound| !denies(bound));
        let most =
            joint.reduce(|most, next| if has_less_left(most.1, next.1) { next } else { most });
        let alone = with(Veto::Alone).chain(most);
        alone.reduce(|least, next| if has_less_left(next.1, least.1) { next } else { least })
    } else {
        let has_fitting = with(Veto::Jointly).any(|bound| !denies(&bound));
        let joint = with(Veto::Jointly).filter(|_| !has_fitting);
        let soonest =
            joint.reduce(|soonest, next| if wait(&next) < wait(&soonest) { next } else { soonest });
        let alone = with(Veto::Alone).filter(denies).chain(soonest);
        alone.reduce(|longest, next| if wait(&next) > wait(&longest) { next } else { longest })
    };
    bound.and_then(|(nth, _)| u16::try_from(nth).ok())
}

/// A hit with its outcome, and its place.
type Bound<'b> = (usize, (&'b Hit<'b>, &'b Outcome));

/// Whether one counter has a smaller share of its limit left than another.
fn has_less_left(one: (&Hit<'_>, &Outcome), other: (&Hit<'_>, &Outcome)) -> bool {
    let left = |(hit, outcome): (&Hit<'_>, &Outcome), by: &Hit<'_>| {
        (outcome.remaining().min(hit.limit.capacity())) * by.limit.capacity()
    };
    left(one, other.0) < left(other, one.0)
}

/// A [`Decision`], told apart.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "a denial is a value: see which it is"]
pub enum Verdict {
    /// The request may pass, and has been charged.
    Allowed(Decision),
    /// The request may not pass, and has been charged nothing.
    Denied(Decision),
}

impl Verdict {
    /// Whether the request may pass.
    pub fn is_allowed(&self) -> bool {
        matches!(self, Self::Allowed(_))
    }

    /// The decision, whichever it is.
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
        if decision.allowed { Self::Allowed(decision) } else { Self::Denied(decision) }
    }
}

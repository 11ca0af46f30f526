//! Chooses the binding hit of a decision: the one whose limit clients see.

use crate::hit::{Hit, Veto};
use crate::outcome::Outcome;

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
        let candidates = with_veto(Veto::Alone).chain(most);
        candidates.reduce(|least, next| if is_tighter(next.1, least.1) { next } else { least })
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

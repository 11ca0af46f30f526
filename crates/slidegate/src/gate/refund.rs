//! Requests of which some descriptors give units back.

use smallvec::SmallVec;

use crate::decision::Decision;
use crate::hit::Hit;
use crate::outcome::Outcome;
use crate::policy::MatchedRules;
use crate::store::{ChargeResult, Outcomes, Receipt, Store, StoreError, SyncStore};

type Hits<'h> = SmallVec<[Hit<'h>; 3]>;

/// The hits of a request, apart. What gives back is done first and always; the others are decided.
struct Parts<'h> {
    all: Hits<'h>,
    /// Which of them give back.
    is_refund: SmallVec<[bool; 8]>,
    given: Hits<'h>,
    asked: Hits<'h>,
}

impl<'h> Parts<'h> {
    fn of(applied: &'h MatchedRules<'_>) -> Self {
        let all = applied.hits();
        let is_refund: SmallVec<_> = applied.refund_flags().collect();
        let part = |wanted| {
            let both = all.iter().zip(&is_refund);
            both.filter(|(_, gives)| **gives == wanted).map(|(hit, _)| *hit).collect()
        };
        Self { given: part(true), asked: part(false), is_refund, all }
    }

    /// One decision again, each outcome in its place.
    fn decision(&self, given: Outcomes, taken: ChargeResult) -> Decision {
        let (mut given, mut asked) = (given.into_iter(), taken.outcomes.into_iter());
        let outcomes = self.is_refund.iter().filter_map(|gives| match gives {
            // It denies nothing, however its counter stands.
            true => given.next().map(Outcome::charged),
            false => asked.next(),
        });
        Decision::of_taken(&self.all, ChargeResult { outcomes: outcomes.collect(), ..taken })
    }
}

/// Takes what a request costs, after it has given back.
pub(super) async fn take<S: Store>(
    store: &S,
    applied: &MatchedRules<'_>,
) -> Result<Decision, StoreError> {
    let parts = Parts::of(applied);
    let given = store.refund(&parts.given).await?;
    let taken = match parts.asked.is_empty() {
        true => {
            ChargeResult { allowed: true, outcomes: Outcomes::new(), receipt: Receipt::default() }
        }
        false => store.take(&parts.asked).await?,
    };
    Ok(parts.decision(given, taken))
}

/// [`take`] without waiting.
#[cold]
pub(super) fn take_now<S: SyncStore + ?Sized>(store: &S, applied: &MatchedRules<'_>) -> Decision {
    let parts = Parts::of(applied);
    let given = store.refund_now(&parts.given);
    parts.decision(given, store.take_now(&parts.asked))
}

/// The hits of a request as they are looked at: to see where something would be given back, one unit is asked for.
pub(super) fn looks<'h>(applied: &'h MatchedRules<'_>) -> Hits<'h> {
    let mut hits = applied.hits();
    for (hit, _) in hits.iter_mut().zip(applied.refund_flags()).filter(|(_, gives)| *gives) {
        (hit.cost, hit.required) = (0, 1);
    }
    hits
}

/// What was seen of them.
pub(super) fn seen(
    applied: &MatchedRules<'_>,
    hits: &[Hit<'_>],
    mut outcomes: Outcomes,
) -> Decision {
    let given = outcomes.iter_mut().zip(applied.refund_flags()).filter(|(_, gives)| *gives);
    given.for_each(|(outcome, _)| *outcome = outcome.charged());
    Decision::of_peeked(hits, outcomes)
}

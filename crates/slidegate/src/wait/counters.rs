//! The counters for which a call can wait.

use smallvec::SmallVec;

use super::queues::WaitQueues;
use crate::decision::Decision;
use crate::hit::{Hit, Veto};
use crate::store::Store;

/// Identifiers of the counters for which a call waits, without duplicates.
pub(crate) type WaitCounters = SmallVec<[u64; 4]>;

/// Returns whether a call with these hits must be decided only once, and so cannot wait: a hit that is charged even if
/// the call is denied would be charged by each decision.
#[cfg(feature = "policy")]
pub(crate) fn charges_even_if_denied<'h>(hits: impl IntoIterator<Item = Hit<'h>>) -> bool {
    hits.into_iter().any(|hit| hit.charge.charges_denied())
}

/// Returns the counters of the hits that can deny the call.
pub(crate) fn counters_that_can_deny<'h>(
    queues: &WaitQueues,
    store: &impl Store,
    hits: impl IntoIterator<Item = Hit<'h>>,
) -> WaitCounters {
    collect_counters(queues, store, hits.into_iter().filter(|hit| hit.veto != Veto::Never))
}

/// Returns the counters of the hits that deny the call. `hits` are the hits of the decision.
pub(crate) fn denying_counters(
    queues: &WaitQueues,
    store: &impl Store,
    hits: &[Hit<'_>],
    decision: &Decision<'_>,
) -> WaitCounters {
    if decision.is_allowed() {
        return WaitCounters::new();
    }
    if decision.is_degraded() {
        // A decision without the store has outcomes for a part of the hits only, so all hits that can deny count as
        // denying.
        return counters_that_can_deny(queues, store, hits.iter().copied());
    }
    let results = || hits.iter().zip(decision.outcomes());
    // A joint hit that does not fit denies nothing while another joint hit fits.
    let joint_fits = results().any(|(hit, outcome)| hit.veto == Veto::Jointly && outcome.fits());
    let denies = |veto| match veto {
        Veto::Alone => true,
        Veto::Jointly => !joint_fits,
        Veto::Never => false,
    };
    let denying = results().filter(|(hit, outcome)| denies(hit.veto) && !outcome.fits());
    collect_counters(queues, store, denying.map(|(hit, _)| *hit))
}

fn collect_counters<'h>(
    queues: &WaitQueues,
    store: &impl Store,
    hits: impl Iterator<Item = Hit<'h>>,
) -> WaitCounters {
    let mut counters = WaitCounters::new();
    for hit in hits {
        let counter = queues.queue_id_for_hit(store, &hit);
        if !counters.contains(&counter) {
            counters.push(counter);
        }
    }
    counters
}

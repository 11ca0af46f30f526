//! What is done without a decision: to give back, to take off, to forget.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use slidegate::store::{Charge, Outcomes};
use slidegate::{StoreError, Timestamp};
use tokio::time::Instant;

use crate::ask::Counted;
use crate::call::{self, Call, key_and_tag};
use crate::failure::Failure;
use crate::reply::{Answer, Misread};
use crate::script::Scripts;
use crate::servers::Servers;

/// Something to be done in one slot.
#[derive(Debug)]
pub enum Errand<'e> {
    Revert(Vec<&'e Charge>),
    Refund(Vec<&'e Counted>),
    Reset(Vec<&'e Counted>),
}

impl Errand<'_> {
    /// The call for it at a moment; at none, by Redis's own clock.
    pub fn call<'s>(&self, scripts: &'s Scripts, now: Option<Timestamp>) -> Call<'s, '_> {
        match self {
            Self::Revert(charges) => call::revert(scripts, charges),
            Self::Refund(hits) => call::refund(scripts, now, hits),
            Self::Reset(hits) => call::reset(scripts, hits),
        }
    }

    /// Reads what is answered: how the counters stand, where units were taken off them.
    pub fn read(&self, bytes: &[u8]) -> Result<Answer, Misread> {
        match self {
            Self::Refund(hits) => Answer::read(hits.len(), bytes),
            Self::Revert(_) | Self::Reset(_) if bytes == b"OK" => Ok(Answer::nothing()),
            Self::Revert(_) | Self::Reset(_) => Err(Misread::Garbled),
        }
    }
}

/// Gives charges back. What is of no such store is passed over.
pub async fn revert(
    servers: &Servers,
    charges: &[Charge],
    until: Instant,
) -> Result<(), StoreError> {
    let charges =
        charges.iter().filter_map(|charge| Some((key_and_tag(&charge.counter)?.0, charge)));
    let errands = by_slot(servers, charges)
        .into_iter()
        .map(|(slot, charges)| (slot, Errand::Revert(charges)));
    run(servers, errands, until).await.map(drop)
}

/// Takes the costs of hits off their counters; says how each then stands.
pub async fn refund(
    servers: &Servers,
    hits: &[Counted],
    until: Instant,
) -> Result<Outcomes, StoreError> {
    let placed = hits.iter().enumerate().map(|(place, hit)| (&*hit.key, (place, hit)));
    let (places, errands): (Vec<Vec<usize>>, Vec<_>) = by_slot(servers, placed)
        .into_iter()
        .map(|(slot, placed)| {
            let (places, hits) = placed.into_iter().unzip();
            (places, (slot, Errand::Refund(hits)))
        })
        .unzip();
    let answers = run(servers, errands.into_iter(), until).await?;
    let said = answers.iter().flat_map(Answer::said).map(|said| said.outcome);
    let mut outcomes: Vec<_> = places.into_iter().flatten().zip(said).collect();
    outcomes.sort_unstable_by_key(|(place, _)| *place);
    Ok(outcomes.into_iter().map(|(_, outcome)| outcome).collect())
}

/// Forgets the counters of hits.
pub async fn reset(servers: &Servers, hits: &[Counted], until: Instant) -> Result<(), StoreError> {
    let hits = hits.iter().map(|hit| (&*hit.key, hit));
    let errands =
        by_slot(servers, hits).into_iter().map(|(slot, hits)| (slot, Errand::Reset(hits)));
    run(servers, errands, until).await.map(drop)
}

/// What is about keys, by their slots.
fn by_slot<'k, T>(
    servers: &Servers,
    of_keys: impl Iterator<Item = (&'k str, T)>,
) -> BTreeMap<u16, Vec<T>> {
    let mut by_slot: BTreeMap<u16, Vec<T>> = BTreeMap::new();
    for (key, of_key) in of_keys {
        by_slot.entry(servers.slot(key)).or_default().push(of_key);
    }
    by_slot
}

async fn run(
    servers: &Servers,
    errands: impl Iterator<Item = (u16, Errand<'_>)>,
    until: Instant,
) -> Result<Vec<Answer>, StoreError> {
    let run = |(slot, errand)| async move { servers.run(slot, &errand, until).await };
    let done = join_all(errands.map(run)).await;
    let are_several = done.len() > 1;
    done.into_iter().collect::<Result<_, _>>().map_err(|failure: Failure| match are_several {
        true => failure.of_several().into_error(),
        false => failure.into_error(),
    })
}

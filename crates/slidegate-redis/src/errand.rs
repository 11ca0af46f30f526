//! What is done without a decision: to give back, to forget.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use slidegate::StoreError;
use slidegate::store::Charge;
use tokio::time::Instant;

use crate::ask::Counted;
use crate::call::{self, Call, key_and_tag};
use crate::failure::Failure;
use crate::script::Scripts;
use crate::servers::Servers;

/// Something to be done in one slot.
#[derive(Debug)]
pub enum Errand<'e> {
    GiveBack(Vec<&'e Charge>),
    Reset(Vec<&'e Counted>),
}

impl Errand<'_> {
    pub fn call<'s>(&self, scripts: &'s Scripts) -> Call<'s, '_> {
        match self {
            Self::GiveBack(charges) => call::give_back(scripts, charges),
            Self::Reset(hits) => call::reset(scripts, hits),
        }
    }
}

/// Gives charges back. What is of no such store is passed over.
pub async fn give_back(
    servers: &Servers,
    charges: &[Charge],
    until: Instant,
) -> Result<(), StoreError> {
    let mut by_slot: BTreeMap<u16, Vec<&Charge>> = BTreeMap::new();
    for charge in charges {
        if let Some((key, _)) = key_and_tag(&charge.counter) {
            by_slot.entry(servers.slot(key)).or_default().push(charge);
        }
    }
    let errands = by_slot.into_iter().map(|(slot, charges)| (slot, Errand::GiveBack(charges)));
    run(servers, errands, until).await
}

/// Forgets the counters of hits.
pub async fn reset(servers: &Servers, hits: &[Counted], until: Instant) -> Result<(), StoreError> {
    let mut by_slot: BTreeMap<u16, Vec<&Counted>> = BTreeMap::new();
    for hit in hits {
        by_slot.entry(servers.slot(&hit.key)).or_default().push(hit);
    }
    let errands = by_slot.into_iter().map(|(slot, hits)| (slot, Errand::Reset(hits)));
    run(servers, errands, until).await
}

async fn run(
    servers: &Servers,
    errands: impl Iterator<Item = (u16, Errand<'_>)>,
    until: Instant,
) -> Result<(), StoreError> {
    let run = |(slot, errand)| async move { servers.run(slot, &errand, until).await };
    let done = join_all(errands.map(run)).await;
    let are_several = done.len() > 1;
    match done.into_iter().find_map(Result::err) {
        Some(failure) if are_several => Err(failure.of_several().into_error()),
        failure => failure.map_or(Ok(()), |failure: Failure| Err(failure.into_error())),
    }
}

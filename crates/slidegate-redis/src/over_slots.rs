//! Requests whose keys are in several slots of a Cluster: no script decides those together.
//!
//! All slots are looked at; if all fit, all are charged; if one denies after all, what the others were charged is
//! given back. So nothing is ever above its limit, and what is charged and given back may deny others meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use slidegate::store::{Outcomes, is_admitted};
use slidegate::{ChargeResult, ChargeWhen, Receipt, StoreError, Veto};
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::ask::{Ask, Counted, Mode};
use crate::errand;
use crate::failure::Failure;
use crate::reply::Answer;
use crate::servers::Servers;

/// The hits of a request that are in one slot.
#[derive(Debug)]
pub struct Part {
    slot: u16,
    /// Which of the request's hits they are.
    places: SmallVec<[usize; 2]>,
    ask: Arc<Ask>,
}

/// Hits by their slots.
pub fn parts(servers: &Servers, ask: Ask) -> Vec<Part> {
    let mut by_slot: BTreeMap<u16, Vec<(usize, Counted)>> = BTreeMap::new();
    for (place, hit) in ask.hits.into_iter().enumerate() {
        by_slot.entry(servers.slot(&hit.key)).or_default().push((place, hit));
    }
    let part = |(slot, hits): (u16, Vec<(usize, Counted)>)| {
        let (places, hits) = hits.into_iter().unzip();
        Part { slot, places, ask: Arc::new(Ask { mode: ask.mode, hits }) }
    };
    by_slot.into_iter().map(part).collect()
}

impl Part {
    fn in_mode(&self, mode: Mode) -> Self {
        let ask = Arc::new(Ask { mode, hits: self.ask.hits.clone() });
        Self { slot: self.slot, places: self.places.clone(), ask }
    }

    /// Returns the part such that its slot charges it if the slot alone would pass. Joint hits are looked at together with
    /// those of the other slots.
    fn to_charge(&self) -> Self {
        let mut part = self.in_mode(Mode::Take);
        for hit in Arc::make_mut(&mut part.ask).hits.iter_mut() {
            if hit.veto == Veto::Jointly {
                hit.veto = Veto::Never;
            }
        }
        part
    }

    /// Returns the veto of each hit, with its place in the request.
    fn is_denying(&self) -> impl Iterator<Item = (usize, Veto)> {
        self.places.iter().copied().zip(self.ask.hits.iter().map(|hit| hit.veto))
    }

    /// Those of its hits that are charged whatever becomes of the request.
    fn always(&self) -> Option<Self> {
        let is_charged = |hit: &Counted| hit.charge == ChargeWhen::Always && hit.cost > 0;
        let both = self.places.iter().zip(&self.ask.hits);
        let (places, hits): (SmallVec<[usize; 2]>, SmallVec<[Counted; 1]>) = both
            .filter(|(_, hit)| is_charged(hit))
            .map(|(place, hit)| (*place, hit.clone()))
            .unzip();
        let ask = Arc::new(Ask { mode: Mode::Take, hits });
        (!places.is_empty()).then_some(Self { slot: self.slot, places, ask })
    }
}

/// Looks at all parts.
pub async fn peek(
    servers: &Servers,
    parts: &[Part],
    until: Instant,
) -> Result<Outcomes, StoreError> {
    let looks: Vec<Part> = parts.iter().map(|part| part.in_mode(Mode::Peek)).collect();
    let seen = ask_all(servers, &looks, until).await;
    let seen: Vec<Answer> =
        seen.into_iter().collect::<Result<_, _>>().map_err(Failure::into_error)?;
    Ok(outcomes(parts, &seen))
}

/// Charges all parts, or none but what is charged always.
pub async fn take(
    servers: &Servers,
    parts: &[Part],
    until: Instant,
    give_back_until: impl Fn() -> Instant,
) -> Result<ChargeResult, StoreError> {
    let looks: Vec<Part> = parts.iter().map(|part| part.in_mode(Mode::Peek)).collect();
    let seen = ask_all(servers, &looks, until).await;
    let seen: Vec<Answer> =
        seen.into_iter().collect::<Result<_, _>>().map_err(Failure::into_error)?;
    let mut outcomes = outcomes(parts, &seen);
    let passes = |outcomes: &Outcomes| {
        let all = parts.iter().flat_map(Part::is_denying);
        is_admitted(all.map(|(place, veto)| (veto, outcomes[place].fits())))
    };
    let would_pass = passes(&outcomes);
    let charged: Vec<Part> = match would_pass {
        true => parts.iter().map(Part::to_charge).collect(),
        false => parts.iter().filter_map(Part::always).collect(),
    };
    let answers = ask_all(servers, &charged, until).await;
    let admits = |answer: &Result<Answer, Failure>, part: &Part| {
        answer.as_ref().is_ok_and(|answer| answer.admits(&part.ask.hits))
    };
    let mut decided = outcomes.clone();
    for (answer, part) in answers.iter().zip(&charged) {
        let said = answer.iter().flat_map(Answer::said);
        for (place, said) in part.places.iter().zip(said) {
            decided[*place] = said.outcome;
        }
    }
    let allowed = would_pass
        && answers.iter().zip(&charged).all(|(answer, part)| admits(answer, part))
        && passes(&decided);
    let failure = answers.iter().find_map(|answer| answer.as_ref().err().cloned());

    let (mut kept, mut in_vain) = (Vec::new(), Vec::new());
    for (answer, part) in answers.iter().zip(&charged) {
        let Ok(answer) = answer else { continue };
        for ((place, hit), said) in part.places.iter().zip(&part.ask.hits).zip(answer.said()) {
            let stays = failure.is_none() && (allowed || hit.charge == ChargeWhen::Always);
            match said.charge(hit) {
                Some(charge) if !stays => in_vain.push(charge),
                charge => {
                    kept.extend(charge.map(|charge| (*place, charge)));
                    outcomes[*place] = match allowed {
                        true => said.outcome,
                        false => said.outcome_after(&outcomes[*place]),
                    };
                }
            }
        }
    }
    // What cannot be given back stays until its window has passed.
    if let Err(error) = errand::revert(servers, &in_vain, give_back_until()).await {
        tracing::debug!(%error, "a charge stays that no request has passed for");
    }
    match failure {
        // What was charged has been given back, or nobody knows of it.
        Some(failure) => Err(failure.of_several().into_error()),
        None => {
            kept.sort_unstable_by_key(|(place, _)| *place);
            let receipt = Receipt { charges: kept.into_iter().map(|(_, charge)| charge).collect() };
            Ok(ChargeResult { allowed, outcomes, receipt })
        }
    }
}

async fn ask_all(
    servers: &Servers,
    parts: &[Part],
    until: Instant,
) -> Vec<Result<Answer, Failure>> {
    let ask = |part: &'_ Part| {
        let (slot, ask) = (part.slot, part.ask.clone());
        async move { servers.decide(slot, &ask, until).await.map(|(answer, _)| answer) }
    };
    join_all(parts.iter().map(ask)).await
}

/// The outcomes in the order of the request.
fn outcomes(parts: &[Part], answers: &[Answer]) -> Outcomes {
    let places = parts.iter().flat_map(|part| part.places.iter().copied());
    let said = answers.iter().flat_map(|answer| answer.said());
    let mut placed: Vec<_> = places.zip(said.map(|said| said.outcome)).collect();
    placed.sort_unstable_by_key(|(place, _)| *place);
    placed.into_iter().map(|(_, outcome)| outcome).collect()
}

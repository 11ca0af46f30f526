//! Decides requests with keys in several slots of a Redis Cluster, which no single script call can decide.
//!
//! First, the hits in all slots are evaluated without charging. If the request is admitted, all slots are charged, each
//! with its own call. If a slot then denies after all, the charges of the other slots are reverted. So no counter ever
//! exceeds its limit, but units that are charged and reverted may deny other requests in between.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use slidegate::StoreError;
use slidegate::store::{Block, ChargeResult, ChargeWhen, Outcomes, Veto, is_admitted};
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::failure::Failure;
use crate::maintenance;
use crate::reply::ScriptReply;
use crate::script_request::{KeyedHit, KeyedHits, ScriptMode, ScriptRequest, UNCONDITIONAL_BLOCK};
use crate::topology::Topology;

/// The part of a request whose keys are in one slot.
#[derive(Debug)]
pub struct SlotPart {
    slot: u16,
    /// Indexes of the hits in the request.
    indexes: SmallVec<[usize; 2]>,
    request: Arc<ScriptRequest>,
}

/// Splits the hits of a request into one part for each slot of their keys.
pub fn split_by_slot(topology: &Topology, mode: ScriptMode, hits: KeyedHits) -> Vec<SlotPart> {
    let mut by_slot: BTreeMap<u16, Vec<(usize, KeyedHit)>> = BTreeMap::new();
    for (index, hit) in hits.into_iter().enumerate() {
        by_slot.entry(topology.slot(&hit.key)).or_default().push((index, hit));
    }
    let part = |(slot, hits): (u16, Vec<(usize, KeyedHit)>)| {
        let (indexes, hits) = hits.into_iter().unzip();
        SlotPart { slot, indexes, request: Arc::new(ScriptRequest { mode, hits }) }
    };
    by_slot.into_iter().map(part).collect()
}

impl SlotPart {
    /// Returns a copy of the part with another mode: evaluate only, or also charge.
    fn with_script_mode(&self, mode: ScriptMode) -> Self {
        let request = Arc::new(ScriptRequest { mode, hits: self.request.hits.clone() });
        Self { slot: self.slot, indexes: self.indexes.clone(), request }
    }

    /// Returns a copy of the part for the charging call. This call charges the slot, unless a hit in the slot denies. A
    /// joint hit never denies in the copy. Joint hits deny a request only if none of them fits, and this depends on
    /// other slots too.
    fn to_charging_part(&self) -> Self {
        let mut part = self.with_script_mode(ScriptMode::Take);
        for hit in Arc::make_mut(&mut part.request).hits.iter_mut() {
            if hit.veto == Veto::Jointly {
                hit.veto = Veto::Never;
            }
        }
        part
    }

    /// Returns the index in the request and the veto of each hit of the part.
    fn vetoes_by_hit_index(&self) -> impl Iterator<Item = (usize, Veto)> {
        self.indexes.iter().copied().zip(self.request.hits.iter().map(|hit| hit.veto))
    }

    /// Returns a part with only the hits that a denied request charges, or `None` if the part has no such hits. `outcomes`
    /// are the outcomes of all hits of the request: they decide which hits block their keys.
    fn to_part_of_denied_request(&self, outcomes: &Outcomes) -> Option<Self> {
        let blocks = |nth: usize, block: Block| {
            let at = self.indexes[nth];
            // The limits can be in other slots if the key has no values.
            let mut limits = at.saturating_sub(block.limits.into())..at;
            match outcomes[at].fits() {
                true => limits.any(|limit| !outcomes[limit].fits()),
                false => block.extends,
            }
        };
        let charged = |(nth, hit): (usize, &KeyedHit)| {
            let charge = match hit.charge {
                ChargeWhen::Block(block) if blocks(nth, block) => UNCONDITIONAL_BLOCK,
                ChargeWhen::Always => ChargeWhen::Always,
                _ => return None,
            };
            (hit.cost > 0).then(|| (self.indexes[nth], KeyedHit { charge, ..hit.clone() }))
        };
        let hits = self.request.hits.iter().enumerate().filter_map(charged);
        let (indexes, hits): (SmallVec<[usize; 2]>, SmallVec<[KeyedHit; 1]>) = hits.unzip();
        let request = Arc::new(ScriptRequest { mode: ScriptMode::Take, hits });
        (!indexes.is_empty()).then_some(Self { slot: self.slot, indexes, request })
    }
}

/// Evaluates all parts of a request without charging. Returns the outcomes in the order of the request's hits.
pub async fn evaluate_slot_parts(
    topology: &Topology,
    parts: &[SlotPart],
    deadline: Instant,
) -> Result<Outcomes, StoreError> {
    let peeks: Vec<SlotPart> =
        parts.iter().map(|part| part.with_script_mode(ScriptMode::Peek)).collect();
    let replies = send_parts_concurrently(topology, &peeks, deadline).await;
    let replies: Vec<ScriptReply> =
        replies.into_iter().collect::<Result<_, _>>().map_err(Failure::into_error)?;
    Ok(merge_outcomes_in_request_order(parts, &replies))
}

/// Charges all parts of a request if the request is admitted, otherwise only the hits that are always charged.
///
/// `revert_deadline` returns the deadline for reverting charges. It is called after all slots have been charged.
pub async fn charge_slot_parts(
    topology: &Topology,
    parts: &[SlotPart],
    deadline: Instant,
    revert_deadline: impl Fn() -> Instant,
) -> Result<ChargeResult, StoreError> {
    let mut outcomes = evaluate_slot_parts(topology, parts, deadline).await?;
    let are_admitted = |outcomes: &Outcomes| {
        let vetoes = parts.iter().flat_map(SlotPart::vetoes_by_hit_index);
        is_admitted(vetoes.map(|(index, veto)| (veto, outcomes[index].fits())))
    };
    let is_peek_admitted = are_admitted(&outcomes);
    let charging: Vec<SlotPart> = if is_peek_admitted {
        parts.iter().map(SlotPart::to_charging_part).collect()
    } else {
        parts.iter().filter_map(|part| part.to_part_of_denied_request(&outcomes)).collect()
    };
    let replies = send_parts_concurrently(topology, &charging, deadline).await;
    let is_part_admitted = |reply: &Result<ScriptReply, Failure>, part: &SlotPart| {
        reply.as_ref().is_ok_and(|reply| reply.is_admitted(&part.request.hits))
    };
    let mut charged_outcomes = outcomes.clone();
    for (reply, part) in replies.iter().zip(&charging) {
        let hit_replies = reply.iter().flat_map(ScriptReply::hits);
        for (index, hit_reply) in part.indexes.iter().zip(hit_replies) {
            charged_outcomes[*index] = hit_reply.outcome;
        }
    }
    let allowed = is_peek_admitted
        && replies.iter().zip(&charging).all(|(reply, part)| is_part_admitted(reply, part))
        && are_admitted(&charged_outcomes);
    let failure = replies.iter().find_map(|reply| reply.as_ref().err().cloned());

    let (mut kept, mut to_revert) = (Vec::new(), Vec::new());
    for (reply, part) in replies.iter().zip(&charging) {
        let Ok(reply) = reply else { continue };
        for ((index, hit), hit_reply) in
            part.indexes.iter().zip(&part.request.hits).zip(reply.hits())
        {
            let is_kept = failure.is_none() && (allowed || hit.charge == ChargeWhen::Always);
            match hit_reply.charge(*index as u32, hit) {
                Some(charge) if !is_kept => to_revert.push(charge),
                charge => {
                    kept.extend(charge);
                    outcomes[*index] = if allowed {
                        hit_reply.outcome
                    } else if hit.charge == UNCONDITIONAL_BLOCK {
                        hit_reply.outcome_of_denial()
                    } else {
                        hit_reply.outcome_after_evaluation(&outcomes[*index])
                    };
                }
            }
        }
    }
    // If a charge cannot be reverted, it counts until its window has passed, so the error is only logged.
    if let Err(error) = maintenance::revert(topology, &to_revert, revert_deadline()).await {
        tracing::debug!(
            class = error.class(),
            "cannot revert the charges of a denied request; they count until their windows end"
        );
    }
    match failure {
        // All charges in the replies have been reverted. The failed call may have charged its slot nevertheless.
        Some(failure) => Err(failure.into_partial_call_failure().into_error()),
        None => {
            for part in parts {
                for (index, hit) in part.indexes.iter().zip(&part.request.hits) {
                    kept.extend(hit.charge_without_units(
                        *index as u32,
                        allowed,
                        &outcomes[*index],
                    ));
                }
            }
            kept.sort_unstable_by_key(|charge| charge.hit_index);
            Ok(ChargeResult { allowed, outcomes, receipt: kept.into_iter().collect() })
        }
    }
}

/// Sends all parts of a request to Redis concurrently, each with its own call. Returns the replies in the order of the
/// parts.
async fn send_parts_concurrently(
    topology: &Topology,
    parts: &[SlotPart],
    deadline: Instant,
) -> Vec<Result<ScriptReply, Failure>> {
    let send = |part: &'_ SlotPart| {
        let (slot, request) = (part.slot, part.request.clone());
        async move { topology.decide(slot, &request, deadline).await }
    };
    join_all(parts.iter().map(send)).await
}

/// Merges the replies to all parts into one list of outcomes, in the order of the request's hits.
fn merge_outcomes_in_request_order(parts: &[SlotPart], replies: &[ScriptReply]) -> Outcomes {
    let indexes = parts.iter().flat_map(|part| part.indexes.iter().copied());
    let hit_replies = replies.iter().flat_map(|reply| reply.hits());
    let mut indexed: Vec<_> = indexes.zip(hit_replies.map(|reply| reply.outcome)).collect();
    indexed.sort_unstable_by_key(|(index, _)| *index);
    indexed.into_iter().map(|(_, outcome)| outcome).collect()
}

//! Executes the operations that change counters without a decision: revert, refund and reset. Each slot of a Cluster
//! needs one script call, and these calls run concurrently.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use slidegate::StoreError;
use slidegate::store::{Charge, Outcomes};
use tokio::time::Instant;

use crate::failure::{Failure, into_partial_call_error};
use crate::maintenance_op::MaintenanceOp;
use crate::reply::ScriptReply;
use crate::script_request::{KeyedHit, parse_counter_id};
use crate::topology::Topology;

/// Reverts charges. Charges that were not made by a Redis store are ignored.
pub async fn revert(
    topology: &Topology,
    charges: &[Charge],
    deadline: Instant,
) -> Result<(), StoreError> {
    let charges =
        charges.iter().filter_map(|charge| Some((parse_counter_id(&charge.counter)?.0, charge)));
    let operations = group_items_by_cluster_slot(topology, charges)
        .into_iter()
        .map(|(slot, charges)| (slot, MaintenanceOp::Revert(charges)));
    run_maintenance_concurrently(topology, operations, deadline).await.map(drop)
}

/// Subtracts the costs of hits from their counters. Returns the state of each counter afterwards, in the order of the
/// hits.
pub async fn refund(
    topology: &Topology,
    hits: &[KeyedHit],
    deadline: Instant,
) -> Result<Outcomes, StoreError> {
    let indexed = hits.iter().enumerate().map(|(index, hit)| (&*hit.key, (index, hit)));
    let (index_groups, operations): (Vec<Vec<usize>>, Vec<_>) =
        group_items_by_cluster_slot(topology, indexed)
            .into_iter()
            .map(|(slot, indexed)| {
                let (indexes, hits) = indexed.into_iter().unzip();
                (indexes, (slot, MaintenanceOp::Refund(hits)))
            })
            .unzip();
    let replies = run_maintenance_concurrently(topology, operations.into_iter(), deadline).await?;
    let refunded = replies.iter().flat_map(ScriptReply::hits).map(|hit_reply| hit_reply.outcome);
    let mut outcomes: Vec<_> = index_groups.into_iter().flatten().zip(refunded).collect();
    outcomes.sort_unstable_by_key(|(index, _)| *index);
    Ok(outcomes.into_iter().map(|(_, outcome)| outcome).collect())
}

/// Deletes the counters of hits.
pub async fn reset(
    topology: &Topology,
    hits: &[KeyedHit],
    deadline: Instant,
) -> Result<(), StoreError> {
    let hits = hits.iter().map(|hit| (&*hit.key, hit));
    let operations = group_items_by_cluster_slot(topology, hits)
        .into_iter()
        .map(|(slot, hits)| (slot, MaintenanceOp::Reset(hits)));
    run_maintenance_concurrently(topology, operations, deadline).await.map(drop)
}

/// Groups items by the Cluster slot of their keys.
fn group_items_by_cluster_slot<'k, T>(
    topology: &Topology,
    items: impl Iterator<Item = (&'k str, T)>,
) -> BTreeMap<u16, Vec<T>> {
    let mut items_by_slot: BTreeMap<u16, Vec<T>> = BTreeMap::new();
    for (key, item) in items {
        items_by_slot.entry(topology.slot(key)).or_default().push(item);
    }
    items_by_slot
}

/// Runs operations concurrently. If one of several operations fails, its error becomes a timeout, because the others may
/// have changed counters.
async fn run_maintenance_concurrently(
    topology: &Topology,
    operations: impl Iterator<Item = (u16, MaintenanceOp<'_>)>,
    deadline: Instant,
) -> Result<Vec<ScriptReply>, StoreError> {
    let run =
        |(slot, operation)| async move { topology.run_operation(slot, &operation, deadline).await };
    let results = join_all(operations.map(run)).await;
    let has_several = results.len() > 1;
    results.into_iter().collect::<Result<_, _>>().map_err(|failure: Failure| {
        let error = failure.into_error();
        if has_several { into_partial_call_error(error) } else { error }
    })
}

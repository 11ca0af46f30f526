//! Measures the decision time of a cluster with a single node compared with the memory store.

use std::error::Error;

use lab::block_limiters::{BoxedLimiters, StoreLimiter};
use lab::key_blocks::BlockKey;
use lab::part::{Effort, ReportPart};
use lab::peer_comparison::{ComparisonCase, PeerComparison};
use lab::simulated_node::SimulatedNode;
use lab::targets::{BenchTarget, TargetBound};
use slidegate::{Algorithm, Limit, MemoryStore, Quota};

const MAX_UNITS: u32 = 100;

const MAX_TIME_RELATIVE_TO_MEMORY_STORE: BenchTarget = BenchTarget {
    text: "decision of a cluster of one, time relative to the memory store",
    bound: TargetBound::AtMost(1.25),
    limited_by: "both stores take about 900 instructions, but a slot of the cluster has 48 bytes, so that half of \
        the slots are on two cache lines, and a slot of the memory store has 32. Tried: boxed states (5.7x), state and \
        counters in one entry (2x to 6x).",
};

/// Measures different numbers of text keys, and adds a table to the report.
pub fn run(effort: Effort, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    let key_counts: &[u32] = effort.pick(&[1_000, 100_000, 1_000_000], &[1_000, 100_000]);
    part.progress.add_steps(2 * key_counts.len());
    let mut comparison = PeerComparison::new(&["memory store", "cluster of one"], new_limiters);
    for &keys in key_counts {
        // In a short window, counters would expire, which only a running node removes.
        for case in
            [ComparisonCase::new_never_full(keys), ComparisonCase::new_denied(keys, MAX_UNITS)]
        {
            comparison.measure(effort, &case, &[&MAX_TIME_RELATIVE_TO_MEMORY_STORE], part)?;
        }
    }
    part.add_text(format!(
        "### A cluster of one node\n\nThe default algorithm, {} in the cache, through `Store::charge_async`. The \
         cluster has no other nodes, so it replicates nothing.",
        String::NAME
    ));
    part.add_table(&comparison.into_table());
    Ok(())
}

fn new_limiters(case: &ComparisonCase) -> Result<BoxedLimiters<String>, Box<dyn Error>> {
    let quota = Quota::new(case.max.into(), case.window)?;
    let limit = Limit::new(quota, Algorithm::default())?;
    let cluster = SimulatedNode::new(1, 10_000_000);
    Ok(vec![
        Box::new(StoreLimiter::new(MemoryStore::new(), limit)),
        Box::new(StoreLimiter::new(cluster.into_store(), limit)),
    ])
}

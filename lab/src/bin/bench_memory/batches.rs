//! Measures decisions on batches of keys in one call, compared with one call per key.

use std::error::Error;

use lab::key_distribution::KeyDistribution;
use lab::keys::{KeySequence, Keys};
use lab::limiters::{BenchLimiter, KeyKind, SlidegateLimiter};
use lab::measure::{MeasurePlan, run_interleaved};
use lab::part::{Effort, ReportPart};
use lab::table::MarkdownTable;
use lab::targets::{BenchTarget, TargetBound};

use crate::uncached_keys::{DECISIONS, SEQUENCE_LEN, fill_keys};

const MIN_BATCH_SPEED_RELATIVE_TO_SINGLE_CHECKS: BenchTarget = BenchTarget {
    text: "check_many of 16 and of 64, 10 million keys, speed relative to check",
    bound: TargetBound::AtLeast(2.5),
    limited_by: "",
};

/// Measures single calls and batches with different numbers of keys, and adds a table to the report.
pub fn run(effort: Effort, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    let key_counts: &[usize] = effort.pick(&[1_000_000, 10_000_000], &[1_000_000]);
    part.progress.add_steps(key_counts.len());
    let mut columns = vec!["ns per key, and speed relative to `check`".to_owned()];
    let mut rows =
        ["check", "check_many of 16", "check_many of 64"].map(|name| vec![name.to_owned()]);
    for &count in key_counts {
        part.progress.begin_step(&format!("batches, {count} keys"));
        let ns = measure_batched_decisions(effort, count)?;
        columns.push(format!("{count} keys"));
        for (row, batch_ns) in rows.iter_mut().zip(ns) {
            row.push(format!("{batch_ns:.0} ({:.2}x)", ns[0] / batch_ns));
        }
        if count == 10_000_000 {
            ns[1..].iter().for_each(|batch_ns| {
                part.record_target(&MIN_BATCH_SPEED_RELATIVE_TO_SINGLE_CHECKS, ns[0] / batch_ns)
            });
        }
    }
    let mut table = MarkdownTable::new(columns);
    rows.into_iter().for_each(|row| table.add_row(row));
    part.add_text("### `check_many`, uniform text keys, 1 thread");
    part.add_table(&table);
    Ok(())
}

fn measure_batched_decisions(effort: Effort, count: usize) -> Result<[f64; 3], Box<dyn Error>> {
    let keys = Keys::new(count);
    let slidegate = SlidegateLimiter::new(KeyKind::Text)?;
    let decisions = effort.pick(DECISIONS, DECISIONS / 5);
    fill_keys(&slidegate, &keys);
    let sequence = KeySequence::new(&keys, &KeyDistribution::Uniform(count), SEQUENCE_LEN);
    let keys_from_seed = |seed| sequence.iter(seed, decisions);
    let timings = run_interleaved(
        MeasurePlan { rounds: effort.rounds(), threads: 1, decisions },
        &[
            &|seed| slidegate.charge_keys_and_count_denied(keys_from_seed(seed)),
            &|seed| slidegate.count_denied_batched(keys_from_seed(seed), 16),
            &|seed| slidegate.count_denied_batched(keys_from_seed(seed), 64),
        ],
    );
    Ok([timings[0].ns, timings[1].ns, timings[2].ns])
}

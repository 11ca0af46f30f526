//! Many keys at once, beside one after the other.

use std::error::Error;

use lab::draw::Draw;
use lab::keys::{Course, Keys};
use lab::measure::{Plan, interleaved};
use lab::part::{Effort, Part};
use lab::peers::{KeyKind, Peer, Slidegate};
use lab::table::Table;
use lab::targets::{Aim, Bound};

use crate::keys::{DECISIONS, DRAWN, fill};

const BATCHES: Aim = Aim {
    text: "check_many of 16 and of 64, 10 million keys, times as fast as check",
    bound: Bound::AtLeast(2.5),
    limited_by: "",
};

/// Measures a limiter that holds many keys.
pub fn run(effort: Effort, part: &mut Part) -> Result<(), Box<dyn Error>> {
    let key_counts: &[usize] = effort.pick(&[1_000_000, 10_000_000], &[1_000_000]);
    part.progress.expect(key_counts.len());
    let mut columns = vec!["ns per key, and times as fast as `check`".to_owned()];
    let mut rows =
        ["check", "check_many of 16", "check_many of 64"].map(|name| vec![name.to_owned()]);
    for &count in key_counts {
        part.progress.step(&format!("batches, {count} keys"));
        let ns = measure(effort, count)?;
        columns.push(format!("{count} keys"));
        for (row, its) in rows.iter_mut().zip(ns) {
            row.push(format!("{its:.0} ({:.2}x)", ns[0] / its));
        }
        if count == 10_000_000 {
            ns[1..].iter().for_each(|its| part.hold(&BATCHES, ns[0] / its));
        }
    }
    let mut table = Table::new(columns);
    rows.into_iter().for_each(|row| table.row(row));
    part.say("### `check_many`, uniform text keys, 1 thread");
    part.table(&table);
    Ok(())
}

fn measure(effort: Effort, count: usize) -> Result<[f64; 3], Box<dyn Error>> {
    let keys = Keys::new(count);
    let slidegate = Slidegate::new(KeyKind::Text)?;
    let decisions = effort.pick(DECISIONS, DECISIONS / 5);
    fill(&slidegate, &keys);
    let course = Course::new(&keys, &Draw::Uniform(count), DRAWN);
    let draw = |seed| course.draws(seed, decisions);
    let timings = interleaved(
        Plan { rounds: effort.rounds(), threads: 1, decisions },
        &[
            &|seed| slidegate.decide(draw(seed)),
            &|seed| slidegate.decide_many(draw(seed), 16),
            &|seed| slidegate.decide_many(draw(seed), 64),
        ],
    );
    Ok([timings[0].ns, timings[1].ns, timings[2].ns])
}

//! Measures the decision time with different numbers of limits per key.

use std::error::Error;
use std::num::NonZeroU32;

use governor::state::keyed::DashMapStateStore;
use governor::{Quota, RateLimiter, clock::DefaultClock};
use lab::chart::{LineChart, Series};
use lab::key_distribution::KeyDistribution;
use lab::keys::{KeySequence, Keys};
use lab::measure::{MeasurePlan, run_interleaved};
use lab::part::{Effort, ReportPart};
use lab::table::MarkdownTable;
use slidegate::Limiter;

use crate::uncached_keys::{DECISIONS, SEQUENCE_LEN};

const KEY_COUNT: usize = 100_000;

const LIMIT_COUNTS_PER_KEY: [usize; 4] = [1, 2, 4, 8];

/// The maximum of each limit. It is so high that no limit denies a request, and so every limit is checked for each
/// request.
const MAX_UNITS_PER_WINDOW: u32 = 1_000_000;

type KeyedGovernorLimiter =
    RateLimiter<String, DashMapStateStore<String, foldhash::fast::RandomState>, DefaultClock>;

/// Measures one slidegate limiter with several limits. It is compared with as many governor limiters, which have one
/// limit each and are called one after another.
pub fn run(effort: Effort, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    part.progress.add_steps(LIMIT_COUNTS_PER_KEY.len());
    let keys = Keys::new(KEY_COUNT);
    let sequence = KeySequence::new(&keys, &KeyDistribution::Uniform(KEY_COUNT), SEQUENCE_LEN);
    let mut table = MarkdownTable::new([
        "limits of one key",
        "slidegate, ns",
        "per limit",
        "governor keyed, foldhash, one after another, ns",
        "relative to slidegate",
    ]);
    let mut lines = ["slidegate, one atomic step", "governor, one after another"]
        .map(|name| Series { name: name.to_owned(), points: Vec::new() });
    for count in LIMIT_COUNTS_PER_KEY {
        part.progress.begin_step(&format!("{count} limits"));
        let ns = measure_decisions_with_limits(effort, &sequence, count)?;
        table.add_row([
            count.to_string(),
            format!("{:.0}", ns[0]),
            format!("{:.0}", ns[0] / count as f64),
            format!("{:.0}", ns[1]),
            format!("{:.2}", ns[1] / ns[0]),
        ]);
        lines.iter_mut().zip(ns).for_each(|(line, ns)| line.points.push((count as f64, ns)));
    }
    part.add_text(format!(
        "### Decision time by the number of limits\n\n{KEY_COUNT} text keys, sampled uniformly, all allowed, 1 thread. \
         slidegate charges all limits of a key or none. governor has one limit per limiter, so its limiters are \
         called one after another; if a later one denies, the charges of the earlier ones remain."
    ));
    part.add_table(&table);
    let chart = LineChart {
        title: "Decision time by the number of limits",
        x_label: "limits",
        y_label: "ns",
        is_log_x: false,
        lines: &lines,
    };
    part.add_chart("memory-limits", "time of a decision by the number of limits", chart.draw()?);
    Ok(())
}

fn measure_decisions_with_limits(
    effort: Effort,
    sequence: &KeySequence<'_>,
    limits: usize,
) -> Result<[f64; 2], Box<dyn Error>> {
    // Windows of different lengths, since equal limits are an error.
    let quotas: Vec<String> =
        (1..=limits).map(|days| format!("{MAX_UNITS_PER_WINDOW}/{days}d")).collect();
    let limiter = Limiter::new(quotas.iter().map(String::as_str))?;
    let governors: Vec<KeyedGovernorLimiter> =
        (0..limits).map(|_| new_governor_limiter()).collect::<Result<_, _>>()?;
    let decisions = effort.pick(DECISIONS, DECISIONS / 5);
    let slidegate_turn = |seed: u64| {
        let sampled = sequence.iter(seed, decisions);
        sampled.filter(|(_, key)| !limiter.check(*key).is_allowed()).count()
    };
    let governor_turn = |seed: u64| {
        let mut owned = String::new();
        let denied = sequence.iter(seed, decisions).filter(|(_, key)| {
            owned.clear();
            owned.push_str(key);
            !governors.iter().all(|governor| governor.check_key(&owned).is_ok())
        });
        denied.count()
    };
    let plan = MeasurePlan { rounds: effort.rounds(), threads: 1, decisions };
    // One turn without measurement creates all keys.
    slidegate_turn(0);
    governor_turn(0);
    let timings = run_interleaved(plan, &[&slidegate_turn, &governor_turn]);
    Ok([timings[0].ns, timings[1].ns])
}

fn new_governor_limiter() -> Result<KeyedGovernorLimiter, Box<dyn Error>> {
    let max = NonZeroU32::new(MAX_UNITS_PER_WINDOW).ok_or("the burst is zero")?;
    Ok(RateLimiter::dashmap_with_hasher(Quota::per_second(max), Default::default()))
}

//! Measures the memory per key of each limiter. Each limiter is filled in a separate child process.

use std::error::Error;
use std::hash::RandomState;

use lab::keys::{KEY_LEN, KeyWriter};
use lab::limiters::{BenchLimiter, GovernorLimiter, KeyKind, SlidegateLimiter};
use lab::part::{Effort, ReportPart};
use lab::rss;
use lab::table::MarkdownTable;
use lab::targets::{BenchTarget, TargetBound};

/// The first argument of the child process that fills one limiter.
pub const CHILD_ARGUMENT: &str = "footprint-child";

const LONG_KEY_LEN: usize = 200;

/// The number of keys in a full measurement, which is compared with [`MAX_BYTES_PER_KEY`].
const KEY_COUNT_FOR_TARGET: usize = 10_000_000;

const MAX_BYTES_PER_KEY: BenchTarget = BenchTarget {
    text: "bytes per key of the default algorithm, 10 million keys of 20 and of 200 bytes",
    bound: TargetBound::AtMost(36.0),
    limited_by: "",
};

/// Measures the memory per key of slidegate with short keys and with long keys, and of governor.
pub fn run(effort: Effort, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    let keys = effort.pick(KEY_COUNT_FOR_TARGET, KEY_COUNT_FOR_TARGET / 10);
    let contenders =
        [("slidegate", KEY_LEN), ("slidegate", LONG_KEY_LEN), ("governor keyed, String", KEY_LEN)];
    part.progress.add_steps(contenders.len());
    let mut table = MarkdownTable::new(["", "length of a key in bytes", "bytes per key"]);
    for (name, key_len) in contenders {
        part.progress.begin_step(&format!("filling {name} with {keys} keys of {key_len} bytes"));
        let (count, len) = (keys.to_string(), key_len.to_string());
        let bytes = rss::run_child(&[CHILD_ARGUMENT, name, &count, &len])? as f64 / keys as f64;
        table.add_row([name.to_owned(), len, format!("{bytes:.1}")]);
        // The fill level of tables depends on the number of keys; the target is for this number.
        if name == "slidegate" && keys == KEY_COUNT_FOR_TARGET {
            part.record_target(&MAX_BYTES_PER_KEY, bytes);
        }
    }
    part.add_text(format!("### Memory, default algorithm, {keys} keys"));
    part.add_table(&table);
    Ok(())
}

/// Fills the limiter with this name, and prints the number of bytes by which the memory of this process grows. Runs in
/// the child process.
pub fn run_child(name: &str, keys: &str, key_len: &str) -> Result<(), Box<dyn Error>> {
    let keys = keys.parse()?;
    let mut writer = KeyWriter::new(key_len.parse()?);
    let grown = rss::measure_growth(|| {
        let limiter: Box<dyn BenchLimiter> = match name {
            "slidegate" => Box::new(SlidegateLimiter::new(KeyKind::Text)?),
            _ => Box::new(GovernorLimiter::<String, RandomState>::new("governor")?),
        };
        for nth in 0..keys {
            assert!(limiter.charge_units(nth, writer.write(nth), 1), "a new key accepts a charge");
        }
        Ok(limiter)
    })?;
    println!("{grown}");
    Ok(())
}

//! Tests the memory store with a flood of 50 million requests with random keys. The memory of the process must not grow
//! after the store is full, and keys without available units must stay denied. The program exits with 1 if the test
//! fails.
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::error::Error;
use std::process::ExitCode;

use lab::server::resident_bytes;
use slidegate::{Limiter, ManualClock, MemoryStore, Timestamp};

const MAX_KEYS_IN_STORE: usize = 1_000_000;
const DECISION_COUNT: usize = 50_000_000;
const DECISIONS_BETWEEN_MEMORY_MEASUREMENTS: usize = 100_000;
const UNITS_ALLOWED_PER_MINUTE: u64 = 100;

/// The number of keys that are charged up to their limit before the flood. The flood uses other keys.
const EXHAUSTED_KEY_COUNT: u64 = 1_000;

/// The maximum memory of the process at the end of the flood, relative to its memory at the time when the store became
/// full.
const MAX_MEMORY_GROWTH_RATIO: f64 = 1.10;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let start = std::time::Instant::now();
    // The clock does not advance, so exhausted keys stay exhausted.
    let clock = ManualClock::at(Timestamp::from_secs(1_750_000_020));
    let limit = format!("{UNITS_ALLOWED_PER_MINUTE}/min");
    let limiter =
        Limiter::with_store([limit.as_str()], MemoryStore::with_clock(clock, MAX_KEYS_IN_STORE))?;
    for key in 0..EXHAUSTED_KEY_COUNT {
        let allowed = limiter.check_cost(&key, UNITS_ALLOWED_PER_MINUTE).is_allowed();
        assert!(allowed, "a new key accepts a charge");
    }
    let mut rng = fastrand::Rng::with_seed(1);
    let mut wrongly_allowed = 0;
    let mut bytes_when_full = None;
    for decision in 1..=DECISION_COUNT {
        let _ = limiter.check(&rng.u64(EXHAUSTED_KEY_COUNT..));
        if bytes_when_full.is_none() && limiter.store().evicted_keys() > 0 {
            bytes_when_full = Some(resident_bytes("self")?);
        }
        if decision % DECISIONS_BETWEEN_MEMORY_MEASUREMENTS == 0 {
            wrongly_allowed +=
                (0..EXHAUSTED_KEY_COUNT).filter(|key| limiter.check(key).is_allowed()).count();
        }
        if decision % (DECISION_COUNT / 10) == 0 {
            eprintln!("{decision} decisions, {} keys", limiter.store().keys());
        }
    }
    let bytes_when_full = bytes_when_full.ok_or("the store was never full")?;
    let bytes_at_end = resident_bytes("self")?;
    let growth = bytes_at_end as f64 / bytes_when_full as f64;
    let keys = limiter.store().keys();
    println!(
        "{DECISION_COUNT} new keys at {MAX_KEYS_IN_STORE}: {:.1} MB when full, {:.1} MB at the end ({:+.1} %), {keys} keys, {} evicted, {wrongly_allowed} probes of exhausted keys allowed, {:.1?}",
        bytes_when_full as f64 / 1e6,
        bytes_at_end as f64 / 1e6,
        (growth - 1.0) * 100.0,
        limiter.store().evicted_keys(),
        start.elapsed(),
    );
    let has_passed =
        growth <= MAX_MEMORY_GROWTH_RATIO && wrongly_allowed == 0 && keys <= MAX_KEYS_IN_STORE;
    Ok(if has_passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

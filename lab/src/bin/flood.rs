//! A flood of new keys: memory stays where it was when the store was full, and what is being denied
//! stays denied. Exits with 1 if not.

use std::error::Error;
use std::process::ExitCode;

use lab::rss;
use slidegate::{Limiter, ManualClock, MemoryStore, Timestamp};

const MAX_KEYS: usize = 1_000_000;
const DECISIONS: usize = 50_000_000;
const PROBE_EVERY: usize = 100_000;
const UNITS: u64 = 100;

/// Keys that are exhausted before the flood; those that it brings are random, and none of these.
const EXHAUSTED: u64 = 1_000;

/// How much larger than full the process may be in the end.
const MAX_GROWTH: f64 = 1.10;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let started = quanta::Instant::now();
    // Time stands still, so that what is exhausted stays so.
    let clock = ManualClock::at(Timestamp::from_secs(1_750_000_020));
    let limit = format!("{UNITS}/min");
    let limiter = Limiter::with_store([limit.as_str()], MemoryStore::with_clock(clock, MAX_KEYS))?;
    for key in 0..EXHAUSTED {
        let allowed = limiter.check_cost(&key, UNITS).is_allowed();
        assert!(allowed, "a new key has room");
    }
    let mut rng = fastrand::Rng::with_seed(1);
    let mut freed = 0;
    let mut full = None;
    for decided in 1..=DECISIONS {
        let _ = limiter.check(&rng.u64(EXHAUSTED..));
        if full.is_none() && limiter.store().evicted_keys() > 0 {
            full = Some(rss::resident()?);
        }
        if decided % PROBE_EVERY == 0 {
            freed += (0..EXHAUSTED).filter(|key| limiter.check(key).is_allowed()).count();
        }
        if decided % (DECISIONS / 10) == 0 {
            eprintln!("{decided} decisions, {} keys", limiter.store().keys());
        }
    }
    let full = full.ok_or("the store was never full")?;
    let end = rss::resident()?;
    let growth = end as f64 / full as f64;
    let keys = limiter.store().keys();
    println!(
        "{DECISIONS} new keys at {MAX_KEYS}: {:.1} MB when full, {:.1} MB at the end ({:+.1} %), {keys} keys, {} evicted, {freed} probes of exhausted keys allowed, {:.1?}",
        full as f64 / 1e6,
        end as f64 / 1e6,
        (growth - 1.0) * 100.0,
        limiter.store().evicted_keys(),
        started.elapsed(),
    );
    let held = growth <= MAX_GROWTH && freed == 0 && keys <= MAX_KEYS;
    Ok(if held { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

//! Simulated clusters with real engines, memberships and counters. The network loses, delays, reorders and duplicates
//! frames, is partitioned, also partially and in one direction, clocks differ or are set to another time, and nodes
//! join, stop and restart. A seed determines the whole run, so a failure can be
//! repeated.
//!
//! In every run, the overshoot bound holds for the timestamps of all charges. A node whose clock is wrong counts as
//! another node, and its charges count at the time that its clock would show. After the faults have ended, all nodes
//! have identical counters three intervals after the last request. Half of the scenarios are designed to detect nodes
//! that charge without the required acknowledgements.
//!
//! `SEEDS=20000` runs more seeds than CI, `FROM=1000` sets the first seed, `SEED=17` runs one seed and prints its
//! statistics.

mod checks;
mod clocks;
mod event_queue;
mod network_conditions;
mod scenario;
mod sim_node;
mod simulator;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use checks::RunStats;
use scenario::Scenario;
use simulator::Simulator;

/// The number of seeds that CI runs.
const CI_SEED_COUNT: u64 = 1_000;

/// Returns the number in an environment variable, or `None` if the variable is not set.
fn read_env_number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable}: `{value}` is not a number")))
}

/// Runs one seed. Returns the statistics, or a description of the violated guarantee.
fn simulate_seed(seed: u64) -> Result<RunStats, String> {
    let scenario = Scenario::from_seed(seed);
    let description = format!("{scenario:?}");
    Simulator::new(scenario).run().map_err(|error| {
        format!("seed {seed}: {error}\n{description}\nrun it alone with SEED={seed}")
    })
}

/// Runs seeds on all cores. Returns the combined statistics, or the first failure.
fn simulate_seeds(seeds: std::ops::Range<u64>) -> Result<RunStats, String> {
    let next = AtomicU64::new(seeds.start);
    let all = Mutex::new(Ok(RunStats::default()));
    let work = || loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= seeds.end || all.lock().unwrap().is_err() {
            return;
        }
        let stats = simulate_seed(seed);
        let mut all = all.lock().unwrap();
        match (&mut *all, stats) {
            (Ok(all), Ok(stats)) => all.add(&stats),
            (Ok(_), Err(error)) => *all = Err(error),
            (Err(_), _) => return,
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| _ = scope.spawn(work)));
    all.into_inner().unwrap()
}

#[test]
fn overshoot_bound_holds_and_nodes_agree_after_faults() {
    let first = read_env_number("FROM").unwrap_or(0);
    let seeds = match read_env_number("SEED") {
        Some(seed) => seed..seed + 1,
        None => first..first + read_env_number("SEEDS").unwrap_or(CI_SEED_COUNT),
    };
    let is_representative = seeds.end - seeds.start >= CI_SEED_COUNT;
    let stats = simulate_seeds(seeds).unwrap_or_else(|error| panic!("{error}"));
    println!("{stats:#?}");
    if is_representative {
        stats.assert_coverage();
    }
}

#[test]
fn same_seed_produces_same_simulation_result() {
    for seed in 0..3 {
        assert_eq!(simulate_seed(seed), simulate_seed(seed));
    }
}

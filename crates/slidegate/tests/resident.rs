//! The memory store counts as many bytes as the process grows by. Each mix is measured in its own process, in which
//! nothing else allocates.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

use std::process::Command;
use std::time::Duration;

use slidegate::{
    Algorithm, Hit, Key, Limit, ManualClock, MemoryStore, Scope, SyncStore, Timestamp,
};

/// Names the mix in the child.
const MIX: &str = "SLIDEGATE_TEST_MIX";

/// The size of a page that `/proc/self/statm` counts in.
const PAGE: usize = 4096;

/// Bytes of this process that are resident.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * PAGE
}

/// Keys of one limit, each charged so often, at moments that are so far apart.
struct Mix {
    name: &'static str,
    limit: &'static str,
    algorithm: Algorithm,
    keys: u64,
    charges: u64,
    step: Duration,
}

fn mixes() -> Vec<Mix> {
    let minutes = Algorithm::SlidingBuckets { precision: Some(Duration::from_secs(60)) };
    let minute = Duration::from_secs(60);
    let mix = |name, limit, algorithm, keys, charges| Mix {
        name,
        limit,
        algorithm,
        keys,
        charges,
        step: minute,
    };
    vec![
        mix("default", "10/d", Algorithm::SlidingWindow, 600_000, 1),
        mix("fixed", "10/d", Algorithm::FixedWindow { align: Default::default() }, 500_000, 1),
        mix("token", "10/d", Algorithm::TokenBucket { burst: None, max_debt: None }, 300_000, 1),
        mix("one-request-buckets", "10/d", minutes, 200_000, 1),
        mix("dense-buckets", "10000/d", minutes, 2_000, 1_500),
        mix("few-buckets", "1000/d", Algorithm::SlidingBuckets { precision: None }, 150_000, 3),
        mix("short-logs", "10/d", Algorithm::SlidingLog, 150_000, 4),
        mix("long-logs", "1000/d", Algorithm::SlidingLog, 10_000, 300),
    ]
}

impl Mix {
    /// Fills a store; prints by how much it and the process have grown.
    fn measure(&self) {
        let limit = Limit::new(self.limit.parse().unwrap(), self.algorithm).unwrap();
        let clock = ManualClock::at(Timestamp::from_secs(1_750_000_020));
        let store = MemoryStore::with_clock(clock.clone(), 10_000_000);
        let scope = Scope::new("test", "resident", "limit", &["number"]);
        let before = resident();
        for _ in 0..self.charges {
            clock.advance(self.step);
            for number in 0..self.keys {
                let text = number.to_string();
                let values = [text.as_str().into()];
                let key = Key::new(&scope, &values);
                let hit = Hit::new(key, &limit, 1);
                assert!(store.take_one_now(&hit).charge.is_some());
            }
        }
        println!("\nmeasured {} {}", store.memory_bytes(), resident() - before);
    }
}

fn measured_in_child(mix: &Mix) -> (f64, f64) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    let child = child.args(["--exact", "accounted_memory_is_resident_growth", "--nocapture"]);
    let output = child.env(MIX, mix.name).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("measured ")).unwrap();
    let (accounted, resident) = line.split_once(' ').unwrap();
    (accounted.parse().unwrap(), resident.parse().unwrap())
}

#[test]
fn accounted_memory_is_resident_growth() {
    if let Ok(name) = std::env::var(MIX) {
        return mixes().iter().filter(|mix| mix.name == name).for_each(Mix::measure);
    }
    let mut shares = Vec::new();
    for mix in mixes() {
        let (accounted, resident) = measured_in_child(&mix);
        let share = accounted / resident;
        let megabytes = resident / 1e6;
        println!(
            "{}: {megabytes:.1} MB resident, {:.1} % of it accounted",
            mix.name,
            share * 100.0
        );
        assert!(resident > 10e6, "{}: {megabytes} MB are too few to compare", mix.name);
        shares.push((mix.name, share));
    }
    for (name, share) in shares {
        assert!((0.8..=1.2).contains(&share), "{name}: {share}");
    }
}

//! Tests that the number of bytes that the memory store reports matches the growth of the process. The store is filled
//! with several workloads (key mixes and record mixes). Each mix is measured in its own process, in which nothing else
//! allocates.

#![cfg(target_os = "linux")]

use std::process::Command;
use std::time::Duration;

use slidegate::store::{CallId, CallIdentity, Hit, Key, Scope, Value};
use slidegate::{Algorithm, Limit, ManualClock, MemoryStore, SyncStore, Timestamp};

/// The environment variable that holds the name of the mix to measure. It is set only in child processes.
const MIX_ENV_VAR: &str = "SLIDEGATE_TEST_MIX";

/// The page size, the unit of `/proc/self/statm`, in bytes.
const PAGE_SIZE_BYTES: usize = 4096;

/// Returns the number of bytes of this process that are resident in memory.
fn read_resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * PAGE_SIZE_BYTES
}

/// A workload for the store: a number of keys of one limit, the number of charges per key, and the time between two
/// charges of a key.
struct KeyMix {
    name: &'static str,
    limit: &'static str,
    algorithm: Algorithm,
    keys: u64,
    charges: u64,
    step: Duration,
}

fn key_mixes() -> Vec<KeyMix> {
    let minutes = Algorithm::SlidingBuckets { precision: Some(Duration::from_secs(60)) };
    let minute = Duration::from_secs(60);
    let mix = |name, limit, algorithm, keys, charges| KeyMix {
        name,
        limit,
        algorithm,
        keys,
        charges,
        step: minute,
    };
    vec![
        mix("counter", "10/d", Algorithm::SlidingCounter, 600_000, 1),
        mix("one-entry", "10/d", Algorithm::default(), 600_000, 1),
        mix("eight-entries", "10/d", Algorithm::default(), 100_000, 8),
        mix("many-entries", "32/d", Algorithm::default(), 50_000, 32),
        mix("fixed", "10/d", Algorithm::FixedWindow { align: Default::default() }, 500_000, 1),
        mix("token", "10/d", Algorithm::TokenBucket { burst: None, max_debt: None }, 300_000, 1),
        mix("one-request-buckets", "10/d", minutes, 400_000, 1),
        mix("dense-buckets", "10000/d", minutes, 2_000, 1_500),
        mix("few-buckets", "1000/d", minutes, 150_000, 3),
        mix("short-logs", "10/d", Algorithm::SlidingLog, 150_000, 4),
        mix("long-logs", "1000/d", Algorithm::SlidingLog, 10_000, 300),
    ]
}

impl KeyMix {
    /// Fills a store with this key mix. Prints the bytes that the store reports, and the bytes by which the process has
    /// grown.
    fn fill_store_and_print_memory(&self) {
        let limit = Limit::new(self.limit.parse().unwrap(), self.algorithm).unwrap();
        let clock = ManualClock::at(Timestamp::from_secs(1_750_000_020));
        let store = MemoryStore::with_clock(clock.clone(), 10_000_000);
        let scope = Scope::new("test", "resident", "limit", &["number"]);
        let before = read_resident_bytes();
        for _ in 0..self.charges {
            clock.advance(self.step);
            for number in 0..self.keys {
                let text = number.to_string();
                let values = [text.as_str().into()];
                let key = Key::new(&scope, &values);
                let hit = Hit::new(key, &limit, 1);
                assert!(!store.charge(&[hit]).receipt.is_empty());
            }
        }
        println!("\nmeasured {} {}", store.memory_bytes(), read_resident_bytes() - before);
    }
}

/// A workload of calls with an id: a number of calls, and the number of hits of each.
struct RecordMix {
    name: &'static str,
    calls: u64,
    hits: u32,
}

const RECORD_MIXES: [RecordMix; 3] = [
    RecordMix { name: "records-of-one-hit", calls: 100_000, hits: 1 },
    RecordMix { name: "records-of-four-hits", calls: 60_000, hits: 4 },
    RecordMix { name: "records-of-sixty-hits", calls: 6_000, hits: 60 },
];

impl RecordMix {
    /// Charges the calls. Prints the bytes that the records take, and the bytes by which the process has grown.
    fn fill_store_and_print_memory(&self) {
        let limit: Limit = "1000000/d".parse().unwrap();
        let clock = ManualClock::at(Timestamp::from_secs(1_750_000_020));
        let store = MemoryStore::with_clock(clock.clone(), 10_000_000);
        let scope = Scope::new("test", "resident", "limit", &["number"]);
        let texts: Vec<String> = (0..self.hits).map(|number| number.to_string()).collect();
        let values: Vec<[Value<'_>; 1]> = texts.iter().map(|text| [text.as_str().into()]).collect();
        let hit = |values| Hit::new(Key::new(&scope, values), &limit, 1);
        let hits: Vec<Hit<'_>> = values.iter().map(|values| hit(values)).collect();
        let before = read_resident_bytes();
        for number in 0..self.calls {
            clock.advance(Duration::from_micros(10));
            // The ids of real calls are digests, so they have no order.
            let id = u128::from(number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
            let id = CallId::from_bytes(id.to_be_bytes());
            let ttl = Duration::from_secs(600);
            store.charge_once(&hits, &CallIdentity { id, request_digest: 0, ttl });
        }
        assert_eq!(store.call_record_table().evicted_records(), 0);
        let bytes = store.call_record_table().memory_bytes();
        println!("\nmeasured {} {}", bytes, read_resident_bytes() - before);
    }
}

/// Measures a mix in a child process. Returns the bytes that the store reports, and the bytes by which the process has
/// grown.
fn measure_memory_in_child_process(mix: &str) -> (f64, f64) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    let child =
        child.args(["--exact", "resident::reported_memory_matches_resident_growth", "--nocapture"]);
    let output = child.env(MIX_ENV_VAR, mix).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("measured ")).unwrap();
    let (accounted, resident) = line.split_once(' ').unwrap();
    (accounted.parse().unwrap(), resident.parse().unwrap())
}

#[test]
fn reported_memory_matches_resident_growth() {
    if let Ok(name) = std::env::var(MIX_ENV_VAR) {
        let key_mixes = key_mixes();
        let key_mixes = key_mixes.iter().filter(|mix| mix.name == name);
        key_mixes.for_each(KeyMix::fill_store_and_print_memory);
        let record_mixes = RECORD_MIXES.iter().filter(|mix| mix.name == name);
        return record_mixes.for_each(RecordMix::fill_store_and_print_memory);
    }
    let mut shares = Vec::new();
    let key_mixes = key_mixes();
    let key_mixes = key_mixes.iter().map(|mix| mix.name);
    for name in key_mixes.chain(RECORD_MIXES.iter().map(|mix| mix.name)) {
        let (accounted, resident) = measure_memory_in_child_process(name);
        let share = accounted / resident;
        let megabytes = resident / 1e6;
        println!("{name}: {megabytes:.1} MB resident, {:.1} % of it accounted", share * 100.0);
        assert!(resident > 10e6, "{name}: {megabytes} MB are too few to compare");
        shares.push((name, share));
    }
    for (name, share) in shares {
        assert!((0.8..=1.2).contains(&share), "{name}: {share}");
    }
}

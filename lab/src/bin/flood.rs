//! Floods a memory store with keys that an attacker invents, and counts the clients whose counters are evicted. The store
//! has the default bounds. Its clock advances as in a flood of 60,000 keys per second.
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::error::Error;
use std::time::{Duration, Instant};

use lab::server::resident_bytes;
use slidegate::store::{Hit, Key, Scope, Value};
use slidegate::{Limit, ManualClock, MemoryStore, SyncStore, Timestamp};

/// The default maximum number of keys.
const MAX_KEYS: usize = 10_000_000;

const MAX_UNITS: u64 = 100;

const FLOODED_KEYS_PER_SECOND: u64 = 60_000;

/// The number of clients that have used units before the flood.
const CLIENTS: u64 = 1_000;

/// The numbers of invented keys after which the clients are counted.
const FLOODED_KEYS: [u64; 3] = [10_200_000, 15_000_000, 20_000_000];

struct FloodedStore {
    clock: ManualClock,
    store: MemoryStore<ManualClock>,
    limit: Limit,
}

impl FloodedStore {
    fn new() -> Result<Self, Box<dyn Error>> {
        let clock = ManualClock::at(Timestamp::from_secs(1_750_000_020));
        let store = MemoryStore::with_clock(clock.clone(), MAX_KEYS);
        Ok(Self { clock, store, limit: format!("{MAX_UNITS}/h").parse()? })
    }

    fn charge(&self, rule: &Scope, key: u64, cost: u64) -> bool {
        let text = key.to_string();
        let value = [Value::Text(&text)];
        self.store.charge(&[Hit::new(Key::new(rule, &value), &self.limit, cost)]).allowed
    }

    /// Returns the sum of the units that the clients have in use.
    fn used(&self, rule: &Scope) -> u64 {
        let mut used = 0;
        for client in 0..CLIENTS {
            let text = client.to_string();
            let value = [Value::Text(&text)];
            let hit = Hit::new(Key::new(rule, &value), &self.limit, 1);
            used += MAX_UNITS - self.store.peek(&[hit])[0].remaining();
        }
        used
    }
}

/// Floods a store with keys of `flooded`, each charged with `cost` units, after clients have used `used` units of the rule
/// `api`. Prints the fraction of the clients' units that the store still counts.
fn flood(title: &str, used: u64, flooded: &Scope, cost: u64) -> Result<(), Box<dyn Error>> {
    let store = FloodedStore::new()?;
    let api = Scope::new("shop", "api", "1h", &["client"]);
    for client in 0..CLIENTS {
        assert!(store.charge(&api, client, used), "a new key accepts a charge");
    }
    let started = Instant::now();
    let mut keys = 0;
    let mut kept = Vec::new();
    for until in FLOODED_KEYS {
        for key in keys..until {
            store.charge(flooded, CLIENTS + key, cost);
            if key % FLOODED_KEYS_PER_SECOND == 0 {
                store.clock.advance(Duration::from_secs(1));
            }
        }
        keys = until;
        kept.push(format!("{:.1} %", store.used(&api) as f64 * 100.0 / (CLIENTS * used) as f64));
    }
    let us_per_key = started.elapsed().as_secs_f64() * 1e6 / keys as f64;
    let mib = resident_bytes("self")? >> 20;
    println!("| {title} | {} | {us_per_key:.1} | {mib} |", kept.join(" | "));
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let same = Scope::new("shop", "api", "1h", &["client"]);
    let other = Scope::new("blog", "api", "1h", &["client"]);
    println!(
        "| clients, then invented keys | 10.2 million | 15 million | 20 million | us per key | MiB |"
    );
    println!("|---|---|---|---|---|---|");
    flood("exhausted; one request each", MAX_UNITS, &same, 1)?;
    flood("one unit short; one request each", MAX_UNITS - 1, &same, 1)?;
    flood("exhausted; exhausted", MAX_UNITS, &same, MAX_UNITS)?;
    flood("one unit short; exhausted", MAX_UNITS - 1, &same, MAX_UNITS)?;
    flood("ten units used; exhausted keys of another domain", 10, &other, MAX_UNITS)
}

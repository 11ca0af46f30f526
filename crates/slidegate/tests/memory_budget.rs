//! Tests of the memory budget of the memory store. The store counts and bounds the memory in use, and does not evict a
//! key whose requests are currently denied.

use std::ops::Range;
use std::time::Duration;

use slidegate::store::{Adjustment, CallId, CallIdentity, Edit, Hit, Key, Scope, Value};
use slidegate::{Algorithm, Limit, ManualClock, MemoryStore, SyncStore, Timestamp};

const MIB: usize = 1 << 20;

/// A memory store with a manual clock. Tests identify each key by a number.
struct MemoryStoreFixture {
    clock: ManualClock,
    store: MemoryStore<ManualClock>,
    scope: Scope,
}

impl MemoryStoreFixture {
    fn new(max_memory: usize) -> Self {
        let clock = ManualClock::at(Timestamp::from_secs(1_750_000_020));
        let store = MemoryStore::with_clock(clock.clone(), 10_000_000).with_max_memory(max_memory);
        Self { clock, store, scope: Scope::new("test", "memory", "limit", &["number"]) }
    }

    fn call_with_one_unit_hit<T>(
        &self,
        limit: &Limit,
        number: u64,
        call: impl FnOnce(&Hit<'_>) -> T,
    ) -> T {
        let text = number.to_string();
        let values = [text.as_str().into()];
        let key = Key::new(&self.scope, &values);
        call(&Hit::new(key, limit, 1))
    }

    /// Tries to charge one unit to the key with this number. Returns `true` if the unit was charged.
    fn charge(&self, limit: &Limit, number: u64) -> bool {
        self.call_with_one_unit_hit(limit, number, |hit| {
            !self.store.charge(&[*hit]).receipt.is_empty()
        })
    }

    /// Tries to charge one unit to each key with a number in `numbers`. Returns the number of charged units.
    fn charge_each_key(&self, limit: &Limit, numbers: Range<u64>) -> usize {
        numbers.filter(|&number| self.charge(limit, number)).count()
    }

    /// Charges `cost` units to the key with this number, even if they exceed the limit.
    fn report_usage(&self, limit: &Limit, number: u64, cost: u64) {
        self.call_with_one_unit_hit(limit, number, |hit| {
            self.store.charge(&[Hit { cost, ..*hit }.reported()]);
        });
    }

    fn reset(&self, limit: &Limit, number: u64) {
        self.call_with_one_unit_hit(limit, number, |hit| {
            self.store.edit(std::slice::from_ref(hit), Edit::Reset)
        });
    }

    fn remaining(&self, limit: &Limit, number: u64) -> u64 {
        self.call_with_one_unit_hit(limit, number, |hit| {
            self.store.peek(std::slice::from_ref(hit))[0].remaining()
        })
    }

    /// Charges a call with an id, and one unit to each key with a number in `numbers`.
    fn charge_call_once(&self, limit: &Limit, numbers: Range<u64>, id: u64) {
        let texts: Vec<String> = numbers.map(|number| number.to_string()).collect();
        let values: Vec<[Value<'_>; 1]> = texts.iter().map(|text| [text.as_str().into()]).collect();
        let hit = |values| Hit::new(Key::new(&self.scope, values), limit, 1);
        let hits: Vec<Hit<'_>> = values.iter().map(|values| hit(values)).collect();
        let id = CallId::from_bytes(u128::from(id).to_be_bytes());
        let ttl = Duration::from_secs(600);
        self.store.charge_once(&hits, &CallIdentity { id, request_digest: 0, ttl });
    }

    /// Returns the number of keys with a number in `numbers` that currently have no free unit.
    fn count_denied_keys(&self, limit: &Limit, numbers: Range<u64>) -> usize {
        let is_denied = |&number: &u64| {
            self.call_with_one_unit_hit(limit, number, |hit| {
                !self.store.peek(std::slice::from_ref(hit))[0].fits()
            })
        };
        numbers.filter(is_denied).count()
    }
}

fn new_limit(quota: &str, algorithm: Algorithm) -> Limit {
    Limit::new(quota.parse().unwrap(), algorithm).unwrap()
}

/// Creates a limit of `max` units per day, whose `sliding_buckets` counter has 1440 buckets of one minute each.
fn new_day_limit_with_minute_buckets(max: u32) -> Limit {
    let precision = Some(Duration::from_secs(60));
    new_limit(&format!("{max}/d"), Algorithm::SlidingBuckets { precision })
}

fn new_limits_of_all_algorithms(quota: &str) -> [Limit; 6] {
    Algorithm::ALL.map(|algorithm| new_limit(quota, algorithm))
}

#[test]
fn key_with_one_charge_uses_at_most_72_bytes() {
    let fixture = MemoryStoreFixture::new(1 << 30);
    fixture.charge_each_key(&new_day_limit_with_minute_buckets(10), 0..100_000);
    let bytes = fixture.store.memory_bytes() / 100_000;
    assert!((41..=72).contains(&bytes), "{bytes}");
}

#[test]
fn max_state_bytes_matches_largest_key_state() {
    const KEY_COUNT: u64 = 20;
    // The slot with its tag, and three quarters for free slots.
    const BUCKETS_SLOT_BYTES: usize = 41 + 41 * 3 / 4;
    const LOG_SLOT_BYTES: usize = 57 + 57 * 3 / 4;
    let limits = new_limits_of_all_algorithms("500/d");
    let is_window = |limit: &Limit| matches!(limit.algorithm(), Algorithm::SlidingWindow { .. });
    for limit in limits
        .into_iter()
        .filter(|limit| !is_window(limit))
        .chain([new_day_limit_with_minute_buckets(500)])
    {
        let fixture = MemoryStoreFixture::new(1 << 30);
        // Gives every bucket units, and fills a log beyond its max with charges of two units.
        for _ in 0..3_000 {
            fixture.clock.advance(Duration::from_secs(30));
            (0..KEY_COUNT).for_each(|key| fixture.report_usage(&limit, key, 2));
        }
        let worst = fixture.store.memory_bytes();
        (0..KEY_COUNT).for_each(|key| fixture.reset(&limit, key));
        let heap = (worst - fixture.store.memory_bytes()) / KEY_COUNT as usize;
        let promised = limit.max_state_bytes();
        match limit.algorithm() {
            Algorithm::SlidingBuckets { .. } => {
                assert_eq!(BUCKETS_SLOT_BYTES + heap, promised, "{limit}")
            }
            Algorithm::SlidingLog => {
                let min = promised * 9 / 10;
                assert!(
                    (min..=promised).contains(&(LOG_SLOT_BYTES + heap)),
                    "{heap} of {promised}"
                );
            }
            _ => {
                assert_eq!(heap, 0, "{limit}");
                assert!(promised <= LOG_SLOT_BYTES, "{limit}: {promised}");
            }
        }
    }
}

/// Fills the logs of a sliding window with entries that cannot be merged: some close by time, the others by units.
#[test]
fn max_state_bytes_bounds_largest_sliding_window() {
    const KEY_COUNT: u64 = 20;
    let limit: Limit = "500/d".parse().unwrap();
    let resolution = 32;
    let max_entry_units = 500_u64.div_ceil(u64::from(resolution));
    let fixture = MemoryStoreFixture::new(1 << 30);
    let report = |units| (0..KEY_COUNT).for_each(|key| fixture.report_usage(&limit, key, units));
    for _ in 1..resolution {
        report(1);
        fixture.clock.advance(Duration::from_secs(24 * 3600) / resolution);
    }
    for _ in 0..100 {
        for units in [max_entry_units, 1] {
            fixture.clock.advance(Duration::from_secs(1));
            report(units);
        }
    }
    let worst = fixture.store.memory_bytes();
    (0..KEY_COUNT).for_each(|key| fixture.reset(&limit, key));
    let heap = (worst - fixture.store.memory_bytes()) / KEY_COUNT as usize;
    let promised = limit.max_state_bytes();
    assert!((promised * 6 / 10..=promised).contains(&heap), "{heap} of {promised}");
}

/// Checks the memory per key while tables grow. Tables of different shards double at different times.
#[test]
fn average_key_uses_at_most_max_state_bytes() {
    for limit in new_limits_of_all_algorithms("1/d") {
        let fixture = MemoryStoreFixture::new(1 << 30);
        fixture.charge_each_key(&limit, 0..250_000);
        for keys in (300_000..=400_000).step_by(50_000) {
            fixture.charge_each_key(&limit, keys - 50_000..keys);
            let bytes = fixture.store.memory_bytes() as u64 / keys;
            assert!(bytes <= limit.max_state_bytes() as u64, "{limit}: {bytes}");
        }
    }
}

#[test]
fn key_flood_within_budget_evicts_no_denied_key() {
    let mut limits = new_limits_of_all_algorithms("3/d").to_vec();
    limits.push(new_day_limit_with_minute_buckets(3));
    for limit in limits {
        const DENIED_KEY_COUNT: u64 = 500;
        let fixture = MemoryStoreFixture::new(8 * MIB);
        for _ in 0..3 {
            assert_eq!(
                fixture.charge_each_key(&limit, 0..DENIED_KEY_COUNT),
                DENIED_KEY_COUNT as usize
            );
        }
        let mut peak_bytes = 0;
        for flood in 1..=14 {
            let new = flood * 25_000..(flood + 1) * 25_000;
            assert_eq!(fixture.charge_each_key(&limit, new), 25_000);
            peak_bytes = peak_bytes.max(fixture.store.memory_bytes());
            assert_eq!(
                fixture.count_denied_keys(&limit, 0..DENIED_KEY_COUNT),
                DENIED_KEY_COUNT as usize,
                "{limit}"
            );
        }
        // A table without evictable keys may have to grow.
        assert!(peak_bytes <= 8 * MIB + MIB / 16, "{limit}: {peak_bytes}");
        assert!(peak_bytes >= 6 * MIB, "{limit}: {peak_bytes}: the budget is used");
        assert!(fixture.store.evicted_keys() > 50_000, "{limit}");
        let full = fixture.store.keys() * limit.max_state_bytes();
        assert!(full >= 6 * MIB, "{limit}: {full}: as many keys as fit");
    }
}

/// Checks that a store full of keys of one algorithm accepts keys of another algorithm, which expire later. The full
/// tables of the first algorithm must free memory for the tables of the second.
#[test]
fn new_keys_of_other_algorithm_obtain_memory() {
    for (first, second) in [(1, 0), (0, 2), (2, 4), (4, 1), (3, 2)] {
        let (first, second) = (
            new_limits_of_all_algorithms("3/d")[first],
            new_limits_of_all_algorithms("3/w")[second],
        );
        let fixture = MemoryStoreFixture::new(8 * MIB);
        fixture.charge_each_key(&first, 0..300_000);
        let keys = fixture.store.keys();
        let mut peak_bytes = 0;
        for flood in 0..15 {
            fixture.charge_each_key(&second, flood * 20_000..(flood + 1) * 20_000);
            peak_bytes = peak_bytes.max(fixture.store.memory_bytes());
        }
        assert!(peak_bytes <= 9 * MIB, "{first} then {second}: {peak_bytes}");
        let known = (0..300_000).filter(|&number| fixture.remaining(&second, number) < 3).count();
        assert!(known > keys / 3, "{first} then {second}: {known} of {keys}");
    }
}

#[test]
fn growing_sliding_log_evicts_only_other_keys() {
    let (log, once) =
        (new_limit("200000/d", Algorithm::SlidingLog), new_limit("10/d", Algorithm::SlidingLog));
    let fixture = MemoryStoreFixture::new(4 * MIB);
    fixture.charge_each_key(&once, 1..100_000);
    let keys = fixture.store.keys();
    for _ in 0..150_000 {
        fixture.clock.advance(Duration::from_micros(100));
        assert!(fixture.charge(&log, 0));
        assert!(
            fixture.store.memory_bytes() <= 4 * MIB + MIB / 8,
            "{}",
            fixture.store.memory_bytes()
        );
    }
    assert!(fixture.store.keys() < keys, "other keys were evicted");
    let remaining = fixture.call_with_one_unit_hit(&log, 0, |hit| {
        fixture.store.peek(std::slice::from_ref(hit))[0].remaining()
    });
    assert_eq!(remaining, 50_000, "no unit is lost");
}

#[test]
fn sliding_log_larger_than_budget_still_counts() {
    let log = new_limit("400000/d", Algorithm::SlidingLog);
    let fixture = MemoryStoreFixture::new(MIB);
    for taken in 0..400_000 {
        fixture.clock.advance(Duration::from_micros(100));
        assert!(fixture.charge(&log, 0), "{taken}");
    }
    assert!(!fixture.charge(&log, 0));
    assert_eq!(fixture.store.keys(), 1);
}

#[test]
fn memory_is_bounded_when_all_keys_are_denied() {
    for limit in new_limits_of_all_algorithms("1/d") {
        let fixture = MemoryStoreFixture::new(MIB);
        fixture.charge_each_key(&limit, 0..40_000);
        assert!(
            fixture.store.memory_bytes() <= MIB + MIB / 8,
            "{limit}: {}",
            fixture.store.memory_bytes()
        );
        assert!(fixture.store.keys() * limit.max_state_bytes() > MIB / 2, "{limit}");
    }
}

#[test]
fn removed_keys_free_all_memory() {
    for limit in new_limits_of_all_algorithms("5/min")
        .into_iter()
        .chain([new_day_limit_with_minute_buckets(5)])
    {
        let fixture = MemoryStoreFixture::new(1 << 30);
        for _ in 0..5 {
            fixture.clock.advance(Duration::from_secs(1));
            fixture.charge_each_key(&limit, 0..5_000);
        }
        let full = fixture.store.memory_bytes();
        (0..2_500).for_each(|number| fixture.reset(&limit, number));
        fixture.clock.advance(Duration::from_secs(3 * 86_400));
        fixture.store.sweep();
        assert_eq!(fixture.store.keys(), 0);
        assert_eq!(fixture.store.memory_bytes(), 0, "{limit}: of {full}");
    }
}

/// Checks that the store counts each change of memory that a revert or a refund causes.
#[test]
fn reverts_and_refunds_keep_reported_memory_exact() {
    for limit in new_limits_of_all_algorithms("50/h") {
        let fixture = MemoryStoreFixture::new(1 << 30);
        for number in 0..300 {
            for step in 0..20 {
                fixture.clock.advance(Duration::from_secs(1));
                let receipt = fixture.call_with_one_unit_hit(&limit, number, |hit| {
                    fixture.store.charge(std::slice::from_ref(hit)).receipt
                });
                match step % 3 {
                    0 => fixture.store.adjust(&receipt, Adjustment::Revert),
                    1 => drop(fixture.call_with_one_unit_hit(&limit, number, |hit| {
                        fixture.store.edit(std::slice::from_ref(hit), Edit::Refund)
                    })),
                    _ => {}
                }
            }
        }
        (0..300).for_each(|number| fixture.reset(&limit, number));
        assert_eq!(fixture.store.keys(), 0);
        assert!(fixture.store.memory_bytes() > 0, "tables keep their blocks");
        fixture.store.sweep();
        assert_eq!(fixture.store.memory_bytes(), 0, "{limit}");
    }
}

#[test]
fn records_of_calls_take_quarter_of_memory() {
    let fixture = MemoryStoreFixture::new(4 * MIB);
    let limit = new_limit("1000000/d", Algorithm::SlidingCounter);
    fixture.charge_each_key(&limit, 0..200_000);
    assert!(fixture.store.memory_bytes() > 3 * MIB, "{}", fixture.store.memory_bytes());
    let keys = fixture.store.keys();
    let (mut peak_bytes, mut peak_record_bytes) = (0, 0);
    for id in 0..5_000 {
        fixture.charge_call_once(&limit, 0..60, id);
        let record_bytes = fixture.store.call_record_table().memory_bytes();
        peak_record_bytes = peak_record_bytes.max(record_bytes);
        peak_bytes = peak_bytes.max(fixture.store.memory_bytes() + record_bytes);
    }
    assert!((MIB * 3 / 4..=MIB).contains(&peak_record_bytes), "{peak_record_bytes}");
    assert!(peak_bytes <= 4 * MIB + MIB / 8, "{peak_bytes}");
    // A quarter of the keys is enough for the records; a batch of evictions may take a few more.
    assert!(fixture.store.keys() > keys * 6 / 10, "{} of {keys}", fixture.store.keys());
}

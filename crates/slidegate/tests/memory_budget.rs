//! The bytes of the memory store are counted and bounded, and keys that are being denied stay.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

use std::ops::Range;
use std::time::Duration;

use slidegate::{
    Algorithm, Hit, Key, Limit, ManualClock, MemoryStore, Scope, SyncStore, Timestamp,
};

const MIB: usize = 1 << 20;

/// A store, its clock, and numbers for keys.
struct Numbered {
    clock: ManualClock,
    store: MemoryStore<ManualClock>,
    scope: Scope,
}

impl Numbered {
    fn new(max_memory: usize) -> Self {
        let clock = ManualClock::at(Timestamp::from_secs(1_750_000_020));
        let store = MemoryStore::with_clock(clock.clone(), 10_000_000).with_max_memory(max_memory);
        Self { clock, store, scope: Scope::new("test", "memory", "limit", &["number"]) }
    }

    fn with_hit<T>(&self, limit: &Limit, number: u64, ask: impl FnOnce(&Hit<'_>) -> T) -> T {
        let text = number.to_string();
        let values = [text.as_str().into()];
        let key = Key::new(&self.scope, &values);
        ask(&Hit::new(key, limit, 1))
    }

    /// Takes one unit; whether it was there.
    fn take(&self, limit: &Limit, number: u64) -> bool {
        self.with_hit(limit, number, |hit| self.store.take_one_now(hit).charge.is_some())
    }

    fn take_each(&self, limit: &Limit, params: Range<u64>) -> usize {
        params.filter(|&number| self.take(limit, number)).count()
    }

    /// Charges units whether they fit or not.
    fn report(&self, limit: &Limit, number: u64, cost: u64) {
        self.with_hit(limit, number, |hit| {
            self.store.take_one_now(&Hit { cost, ..*hit }.reported());
        });
    }

    fn reset(&self, limit: &Limit, number: u64) {
        self.with_hit(limit, number, |hit| self.store.reset_now(std::slice::from_ref(hit)));
    }

    fn remaining(&self, limit: &Limit, number: u64) -> u64 {
        self.with_hit(limit, number, |hit| {
            self.store.peek_now(std::slice::from_ref(hit))[0].remaining()
        })
    }

    fn denied(&self, limit: &Limit, params: Range<u64>) -> usize {
        let is_denied = |&number: &u64| {
            self.with_hit(limit, number, |hit| {
                !self.store.peek_now(std::slice::from_ref(hit))[0].fits()
            })
        };
        params.filter(is_denied).count()
    }
}

fn limit(quota: &str, algorithm: Algorithm) -> Limit {
    Limit::new(quota.parse().unwrap(), algorithm).unwrap()
}

/// 1440 buckets of a minute.
fn day_by_minutes(max: u32) -> Limit {
    let precision = Some(Duration::from_secs(60));
    limit(&format!("{max}/d"), Algorithm::SlidingBuckets { precision })
}

fn all_limits(quota: &str) -> [Limit; 5] {
    Algorithm::ALL.map(|algorithm| limit(quota, algorithm))
}

#[test]
fn key_with_one_request_takes_tens_of_bytes() {
    let store = Numbered::new(1 << 30);
    store.take_each(&day_by_minutes(10), 0..100_000);
    let bytes = store.store.memory_bytes() / 100_000;
    assert!((64..=120).contains(&bytes), "{bytes}");
}

#[test]
fn max_state_bytes_is_what_worst_key_takes() {
    const KEYS: u64 = 20;
    // A slot of the larger kind, its part of a chunk's overhead, and a quarter for free slots.
    const SLOT: usize = 66 + 66 / 4;
    for limit in all_limits("500/d").into_iter().chain([day_by_minutes(500)]) {
        let store = Numbered::new(1 << 30);
        // Every bucket has units; and a log is full beyond its max, of charges of two units.
        for _ in 0..3_000 {
            store.clock.advance(Duration::from_secs(30));
            (0..KEYS).for_each(|key| store.report(&limit, key, 2));
        }
        let worst = store.store.memory_bytes();
        (0..KEYS).for_each(|key| store.reset(&limit, key));
        let heap = (worst - store.store.memory_bytes()) / KEYS as usize;
        let promised = limit.max_state_bytes();
        match limit.algorithm() {
            Algorithm::SlidingBuckets { .. } => assert_eq!(SLOT + heap, promised, "{limit}"),
            Algorithm::SlidingLog => {
                let least = promised * 9 / 10;
                assert!((least..=promised).contains(&(SLOT + heap)), "{heap} of {promised}");
            }
            _ => {
                assert_eq!(heap, 0, "{limit}");
                assert!(promised <= SLOT, "{limit}: {promised}");
            }
        }
    }
}

/// Slots of tables that grow are at least four fifths full.
#[test]
fn max_state_bytes_holds_for_many_keys() {
    for limit in all_limits("1/d") {
        let store = Numbered::new(1 << 30);
        store.take_each(&limit, 0..250_000);
        for keys in (300_000..=400_000).step_by(50_000) {
            store.take_each(&limit, keys - 50_000..keys);
            let bytes = store.store.memory_bytes() as u64 / keys;
            assert!(bytes <= limit.max_state_bytes() as u64, "{limit}: {bytes}");
        }
    }
}

#[test]
fn flood_stays_below_max_memory_and_denied_keys_stay() {
    let mut limits = all_limits("3/d").to_vec();
    limits.push(day_by_minutes(3));
    for limit in limits {
        const DENIED: u64 = 500;
        let store = Numbered::new(8 * MIB);
        for _ in 0..3 {
            assert_eq!(store.take_each(&limit, 0..DENIED), DENIED as usize);
        }
        let mut most = 0;
        for flood in 1..=14 {
            let new = flood * 25_000..(flood + 1) * 25_000;
            assert_eq!(store.take_each(&limit, new), 25_000);
            most = most.max(store.store.memory_bytes());
            assert_eq!(store.denied(&limit, 0..DENIED), DENIED as usize, "{limit}");
        }
        // A table may have to grow that has nothing else to evict.
        assert!(most <= 8 * MIB + MIB / 16, "{limit}: {most}");
        assert!(most >= 6 * MIB, "{limit}: {most}: the budget is used");
        assert!(store.store.evicted_keys() > 50_000, "{limit}");
        let full = store.store.keys() * limit.max_state_bytes();
        assert!(full >= 6 * MIB, "{limit}: {full}: keys are as many as fit");
    }
}

/// Tables that are full of one algorithm give memory back to those of another, whose keys expire later.
#[test]
fn flood_of_another_algorithm_gets_memory() {
    for (first, second) in [(1, 0), (0, 2), (2, 4), (4, 1), (3, 2)] {
        let (first, second) = (all_limits("3/d")[first], all_limits("3/w")[second]);
        let store = Numbered::new(8 * MIB);
        store.take_each(&first, 0..300_000);
        let keys = store.store.keys();
        let mut most = 0;
        for flood in 0..15 {
            store.take_each(&second, flood * 20_000..(flood + 1) * 20_000);
            most = most.max(store.store.memory_bytes());
        }
        assert!(most <= 9 * MIB, "{first} then {second}: {most}");
        let known = (0..300_000).filter(|&number| store.remaining(&second, number) < 3).count();
        assert!(known > keys / 3, "{first} then {second}: {known} of {keys}");
    }
}

#[test]
fn growing_log_evicts_others_and_stays() {
    let (log, once) =
        (limit("200000/d", Algorithm::SlidingLog), limit("10/d", Algorithm::SlidingLog));
    let store = Numbered::new(4 * MIB);
    store.take_each(&once, 1..100_000);
    let keys = store.store.keys();
    for _ in 0..150_000 {
        store.clock.advance(Duration::from_micros(100));
        assert!(store.take(&log, 0));
        assert!(store.store.memory_bytes() <= 4 * MIB + MIB / 8, "{}", store.store.memory_bytes());
    }
    assert!(store.store.keys() < keys, "others went");
    let remaining = store
        .with_hit(&log, 0, |hit| store.store.peek_now(std::slice::from_ref(hit))[0].remaining());
    assert_eq!(remaining, 50_000, "not one unit is forgotten");
}

#[test]
fn log_larger_than_budget_still_counts() {
    let log = limit("400000/d", Algorithm::SlidingLog);
    let store = Numbered::new(MIB);
    for taken in 0..400_000 {
        store.clock.advance(Duration::from_micros(100));
        assert!(store.take(&log, 0), "{taken}");
    }
    assert!(!store.take(&log, 0));
    assert_eq!(store.store.keys(), 1);
}

#[test]
fn when_all_keys_are_denied_memory_stays_bounded() {
    for limit in all_limits("1/d") {
        let store = Numbered::new(MIB);
        store.take_each(&limit, 0..40_000);
        assert!(
            store.store.memory_bytes() <= MIB + MIB / 8,
            "{limit}: {}",
            store.store.memory_bytes()
        );
        assert!(store.store.keys() * limit.max_state_bytes() > MIB / 2, "{limit}");
    }
}

#[test]
fn memory_is_given_back_with_its_keys() {
    for limit in all_limits("5/min").into_iter().chain([day_by_minutes(5)]) {
        let store = Numbered::new(1 << 30);
        for _ in 0..5 {
            store.clock.advance(Duration::from_secs(1));
            store.take_each(&limit, 0..5_000);
        }
        let full = store.store.memory_bytes();
        (0..2_500).for_each(|number| store.reset(&limit, number));
        store.clock.advance(Duration::from_secs(3 * 86_400));
        store.store.sweep();
        assert_eq!(store.store.keys(), 0);
        assert_eq!(store.store.memory_bytes(), 0, "{limit}: of {full}");
    }
}

/// Give-backs and refunds move no bytes that are not counted.
#[test]
fn bytes_are_counted_through_give_backs_and_refunds() {
    for limit in all_limits("50/h") {
        let store = Numbered::new(1 << 30);
        for number in 0..300 {
            for step in 0..20 {
                store.clock.advance(Duration::from_secs(1));
                let receipt = store.with_hit(&limit, number, |hit| {
                    store.store.take_now(std::slice::from_ref(hit)).receipt
                });
                match step % 3 {
                    0 => store.store.revert_now(&receipt),
                    1 => drop(store.with_hit(&limit, number, |hit| {
                        store.store.refund_now(std::slice::from_ref(hit))
                    })),
                    _ => {}
                }
            }
        }
        (0..300).for_each(|number| store.reset(&limit, number));
        assert_eq!(store.store.keys(), 0);
        assert!(store.store.memory_bytes() > 0, "tables keep what they have");
        store.store.sweep();
        assert_eq!(store.store.memory_bytes(), 0, "{limit}");
    }
}

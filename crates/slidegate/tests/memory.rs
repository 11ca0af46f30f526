//! Tests that the memory store removes expired keys, bounds the number of keys, and evicts keys that have little to lose.

use std::ops::Range;
use std::time::Duration;

use slidegate::store::{Adjustment, Edit, Hit, Key, Outcome, Scope};
use slidegate::{Algorithm, Check, Limit, Limiter, ManualClock, MemoryStore, SyncStore, Timestamp};

const MICROSECOND: Duration = Duration::from_micros(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// A memory store with a manual clock. Tests identify each key by a number.
struct MemoryStoreFixture {
    clock: ManualClock,
    store: MemoryStore<ManualClock>,
    scope: Scope,
}

impl MemoryStoreFixture {
    fn new(max_keys: usize) -> Self {
        let clock = ManualClock::at(Timestamp::from_secs(1_750_000_020));
        let store = MemoryStore::with_clock(clock.clone(), max_keys);
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

    fn peek(&self, limit: &Limit, number: u64) -> Outcome {
        self.call_with_one_unit_hit(limit, number, |hit| {
            self.store.peek(std::slice::from_ref(hit))[0]
        })
    }

    fn reset(&self, limit: &Limit, number: u64) {
        self.call_with_one_unit_hit(limit, number, |hit| {
            self.store.edit(std::slice::from_ref(hit), Edit::Reset)
        });
    }

    /// Returns the number of keys with a number in `numbers` that currently have no free unit.
    fn count_denied_keys(&self, limit: &Limit, numbers: Range<u64>) -> usize {
        numbers.filter(|&number| !self.peek(limit, number).fits()).count()
    }
}

fn parse_limit(quota: &str) -> Limit {
    quota.parse().unwrap()
}

/// Checks that insertions remove expired keys. Each insertion sweeps one block of the key's shard, which means that it
/// removes the expired keys of that block. A block has four slots and is usually at least three quarters full, so
/// 100,000 expired keys are removed long before 200,000 new keys have been inserted. One key in a thousand may remain:
/// when a table is rebuilt, a key can move behind the position of the sweep, and is then removed in the next round.
#[test]
fn expired_keys_are_removed_by_insertions() {
    for algorithm in Algorithm::ALL {
        let fixture = MemoryStoreFixture::new(1_000_000);
        let limit = Limit::new("5/s".parse().unwrap(), algorithm).unwrap();
        assert_eq!(fixture.charge_each_key(&limit, 0..100_000), 100_000);
        assert_eq!(fixture.store.keys(), 100_000);
        fixture.clock.advance(HOUR);
        assert_eq!(fixture.charge_each_key(&limit, 100_000..300_000), 200_000);
        let idle = fixture.store.keys() - 200_000;
        assert!(idle <= 100, "{algorithm}: {idle} expired keys remain");
    }
}

/// Checks that insertions remove expired keys while the tables grow continuously, because other keys do not expire.
#[test]
fn expired_keys_are_removed_while_store_grows() {
    let fixture = MemoryStoreFixture::new(1_000_000);
    let (short, long) = (parse_limit("5/s"), parse_limit("5/d"));
    fixture.charge_each_key(&long, 0..70_000);
    fixture.charge_each_key(&short, 70_000..100_000);
    fixture.clock.advance(HOUR);
    fixture.charge_each_key(&long, 100_000..300_000);
    let idle = fixture.store.keys() - 270_000;
    assert!(idle <= 30, "{idle} expired keys remain");
}

/// Checks that expired keys do not accumulate if keys are inserted at a steady rate. Each key is live for at most two
/// windows. Each insertion checks about three other keys for expiry, so the store always contains fewer expired keys
/// than live keys.
#[test]
fn short_lived_keys_do_not_accumulate() {
    for algorithm in Algorithm::ALL {
        let fixture = MemoryStoreFixture::new(1_000_000);
        let limit = Limit::new("5/s".parse().unwrap(), algorithm).unwrap();
        let per_second = 20_000;
        for step in 0..200 {
            fixture.charge_each_key(&limit, step * per_second / 10..(step + 1) * per_second / 10);
            fixture.clock.advance(SECOND / 10);
            let max_keys = 4 * per_second as usize;
            assert!(fixture.store.keys() <= max_keys, "{algorithm}: {}", fixture.store.keys());
        }
    }
}

/// Checks that expired keys are removed without insertions: every 64th decision in a shard removes the expired keys of
/// one block.
#[test]
fn expired_keys_are_removed_without_new_keys() {
    let fixture = MemoryStoreFixture::new(20_000);
    let limit = parse_limit("5/s");
    fixture.charge_each_key(&limit, 0..10_000);
    fixture.clock.advance(HOUR);
    for _ in 0..1_000 {
        fixture.charge_each_key(&limit, 0..1_000);
    }
    assert_eq!(fixture.store.keys(), 1_000, "each of the 64 shards has some of the 1,000 keys");
}

#[test]
fn sweep_removes_exactly_expired_keys() {
    for algorithm in Algorithm::ALL {
        let fixture = MemoryStoreFixture::new(1_000_000);
        let short = Limit::new("5/s".parse().unwrap(), algorithm).unwrap();
        let long = Limit::new("2/h".parse().unwrap(), algorithm).unwrap();
        fixture.charge_each_key(&short, 0..100_000);
        fixture.charge_each_key(&long, 0..1_000);
        fixture.charge_each_key(&long, 0..1_000);
        fixture.store.sweep();
        assert_eq!(fixture.store.keys(), 101_000, "{algorithm}: nothing has expired");
        fixture.clock.advance(10 * SECOND);
        fixture.store.sweep();
        assert_eq!(
            fixture.store.keys(),
            1_000,
            "{algorithm}: all keys with the short window have expired"
        );
        assert_eq!(
            fixture.count_denied_keys(&long, 0..1_000),
            1_000,
            "{algorithm}: the others still count"
        );
        fixture.clock.advance(3 * HOUR);
        fixture.store.sweep();
        assert_eq!(fixture.store.keys(), 0, "{algorithm}");
        assert_eq!(fixture.store.evicted_keys(), 0, "{algorithm}: no key was evicted");
    }
}

#[test]
fn key_count_never_exceeds_max_keys() {
    for max_keys in [1, 10, 64, 1_000, 5_000] {
        for quota in ["1/h", "2/h"] {
            let fixture = MemoryStoreFixture::new(max_keys);
            let limit = parse_limit(quota);
            for number in 0..10_000 {
                fixture.charge(&limit, number);
                assert!(fixture.store.keys() <= max_keys, "{quota}: {}", fixture.store.keys());
            }
            assert_eq!(fixture.store.keys(), max_keys);
            assert_eq!(fixture.store.evicted_keys(), 10_000 - max_keys as u64);
        }
    }
}

#[test]
fn requests_with_several_hits_respect_max_keys() {
    let fixture = MemoryStoreFixture::new(100);
    let limits = [parse_limit("1/s"), parse_limit("1/min"), parse_limit("2/h")];
    for number in 0..10_000 {
        let text = (number * 7919 % 3_000).to_string();
        let values = [text.as_str().into()];
        let key = Key::new(&fixture.scope, &values);
        let hits = limits.each_ref().map(|limit| Hit::new(key, limit, 1));
        fixture.store.charge(&hits);
        assert!(fixture.store.keys() <= 100, "{}", fixture.store.keys());
    }
}

#[test]
fn evicted_key_count_excludes_expired_keys() {
    let fixture = MemoryStoreFixture::new(2_000);
    let limit = parse_limit("5/s");
    fixture.charge_each_key(&limit, 0..2_000);
    fixture.clock.advance(HOUR);
    fixture.charge_each_key(&limit, 2_000..3_000);
    assert_eq!(fixture.store.evicted_keys(), 0, "there were enough expired keys");
    fixture.charge_each_key(&limit, 3_000..5_000);
    assert_eq!(fixture.store.keys(), 2_000);
    assert_eq!(fixture.store.evicted_keys(), 1_000);
}

#[test]
fn denied_keys_stay_while_others_are_evictable() {
    for algorithm in Algorithm::ALL {
        let fixture = MemoryStoreFixture::new(2_000);
        let limit = Limit::new("3/h".parse().unwrap(), algorithm).unwrap();
        for _ in 0..3 {
            assert_eq!(fixture.charge_each_key(&limit, 0..500), 500);
        }
        let mut waits: Vec<(Duration, u64)> = (0..500)
            .map(|number| (fixture.peek(&limit, number).retry_after().unwrap(), number))
            .collect();
        waits.sort_unstable();
        let mut new = 500;
        let mut flood = || {
            assert_eq!(fixture.charge_each_key(&limit, new..new + 20_000), 20_000);
            assert_eq!(fixture.store.keys(), 2_000);
            new += 20_000;
        };
        flood();
        assert_eq!(fixture.count_denied_keys(&limit, 0..500), 500, "{algorithm}");
        assert_eq!(fixture.store.evicted_keys(), 18_500, "{algorithm}");
        let (soonest, first) = waits[0];
        fixture.clock.advance(soonest - MICROSECOND);
        flood();
        assert_eq!(
            fixture.count_denied_keys(&limit, 0..500),
            500,
            "{algorithm}: just before the first denial ends"
        );
        fixture.clock.advance(MICROSECOND);
        assert!(fixture.peek(&limit, first).fits(), "{algorithm}: its denial has ended");
    }
}

#[test]
fn reverted_keys_are_evicted_before_denied_ones() {
    let fixture = MemoryStoreFixture::new(1_000);
    let (once, new) = (parse_limit("1/h"), parse_limit("1/d"));
    assert_eq!(fixture.charge_each_key(&once, 0..990), 990);
    let receipts: Vec<_> = (990..1_000)
        .map(|number| {
            let take = |hit: &Hit<'_>| fixture.store.charge(std::slice::from_ref(hit)).receipt;
            fixture.call_with_one_unit_hit(&once, number, take)
        })
        .collect();
    // All keys are exhausted, so one of them is evicted.
    assert!(fixture.charge(&new, 0));
    let denied = fixture.count_denied_keys(&once, 0..990);
    receipts.iter().for_each(|receipt| fixture.store.adjust(receipt, Adjustment::Revert));
    assert_eq!(fixture.charge_each_key(&new, 1..9), 8);
    assert_eq!(fixture.count_denied_keys(&once, 0..990), denied);
}

#[test]
fn refunded_keys_are_evicted_before_denied_ones() {
    let fixture = MemoryStoreFixture::new(1_000);
    let (once, new) = (parse_limit("1/h"), parse_limit("1/d"));
    assert_eq!(fixture.charge_each_key(&once, 0..1_000), 1_000);
    assert!(fixture.charge(&new, 0));
    let denied = fixture.count_denied_keys(&once, 0..990);
    for number in 990..1_000 {
        fixture.call_with_one_unit_hit(&once, number, |hit| {
            fixture.store.edit(std::slice::from_ref(hit), Edit::Refund)
        });
    }
    assert_eq!(fixture.charge_each_key(&new, 1..9), 8);
    assert_eq!(fixture.count_denied_keys(&once, 0..990), denied);
    fixture.call_with_one_unit_hit(&once, 5_000, |hit| {
        fixture.store.edit(std::slice::from_ref(hit), Edit::Refund)
    });
    assert_eq!(fixture.store.keys(), 1_000, "a refund creates no key");
}

#[test]
fn key_whose_denial_ends_first_is_evicted_first() {
    let fixture = MemoryStoreFixture::new(1_000);
    let (short, long, new) = (parse_limit("1/min"), parse_limit("1/h"), parse_limit("1/d"));
    assert_eq!(fixture.charge_each_key(&short, 0..500), 500);
    assert_eq!(fixture.charge_each_key(&long, 500..1_000), 500);
    assert_eq!(fixture.charge_each_key(&new, 1_000..1_500), 500);
    assert_eq!(fixture.store.keys(), 1_000);
    assert_eq!(fixture.count_denied_keys(&short, 0..500), 0);
    assert_eq!(fixture.count_denied_keys(&long, 500..1_000), 500);
    assert_eq!(fixture.count_denied_keys(&new, 1_000..1_500), 500);
}

#[test]
fn flood_of_new_keys_evicts_no_exhausted_key() {
    const EXHAUSTED_KEY_COUNT: u64 = 500;
    let fixture = MemoryStoreFixture::new(40_000);
    let limit = parse_limit("100/min");
    for _ in 0..100 {
        assert_eq!(
            fixture.charge_each_key(&limit, 0..EXHAUSTED_KEY_COUNT),
            EXHAUSTED_KEY_COUNT as usize
        );
    }
    for flood in 1..=20 {
        let new = flood * 100_000..(flood + 1) * 100_000;
        assert_eq!(fixture.charge_each_key(&limit, new), 100_000);
        assert_eq!(fixture.store.keys(), 40_000);
        assert_eq!(
            fixture.charge_each_key(&limit, 0..EXHAUSTED_KEY_COUNT),
            0,
            "all are still denied"
        );
    }
}

#[test]
fn flood_of_new_keys_evicts_no_key_with_few_units_left() {
    let fixture = MemoryStoreFixture::new(10_000);
    let limit = parse_limit("100/min");
    for _ in 0..99 {
        fixture.charge_each_key(&limit, 0..500);
    }
    assert_eq!(fixture.charge_each_key(&limit, 500..200_000), 199_500);
    let remaining: u64 = (0..500).map(|number| fixture.peek(&limit, number).remaining()).sum();
    assert_eq!(remaining, 500);
}

#[test]
fn flood_of_one_limit_evicts_no_keys_of_another_within_its_share() {
    let fixture = MemoryStoreFixture::new(10_000);
    let limit = parse_limit("2/min");
    assert_eq!(fixture.charge_each_key(&limit, 0..4_000), 4_000);
    let flooded = Scope::new("test", "other", "limit", &["number"]);
    for number in 0..100_000 {
        let text = number.to_string();
        let values = [text.as_str().into()];
        let hit = Hit::new(Key::new(&flooded, &values), &limit, 2);
        assert!(fixture.store.charge(&[hit]).allowed);
    }
    let remaining: u64 = (0..4_000).map(|number| fixture.peek(&limit, number).remaining()).sum();
    assert_eq!(remaining, 4_000, "one of two units of each key");
}

/// The remaining attack: exhausted keys are evicted by chance, so that as many of them as the store has keys free two thirds
/// of the clients, and not all clients at once.
#[test]
fn exhausted_keys_evict_exhausted_keys_by_chance() {
    let fixture = MemoryStoreFixture::new(10_000);
    let limit = parse_limit("1/min");
    fixture.charge_each_key(&limit, 0..1_000);
    fixture.charge_each_key(&limit, 1_000..10_200);
    assert!(fixture.count_denied_keys(&limit, 0..1_000) >= 950);
    fixture.charge_each_key(&limit, 10_200..20_000);
    let kept = fixture.count_denied_keys(&limit, 0..1_000);
    assert!((200..500).contains(&kept), "{kept}");
}

#[test]
fn long_keys_with_same_prefix_have_separate_counters() {
    let store = MemoryStore::with_clock(ManualClock::default(), 100);
    let limiter = Limiter::with_store("limiter", ["2/min"], store).unwrap();
    let key = |last: char| -> String { "k".repeat(1_000_000) + &last.to_string() };
    for _ in 0..2 {
        assert!(limiter.check(&key('a')).is_allowed());
    }
    assert!(!limiter.check(&key('a')).is_allowed());
    assert!(
        limiter.check(&key('b')).is_allowed(),
        "keys that differ in the last of a million bytes"
    );
    assert_eq!(limiter.store().keys(), 2);
}

#[test]
fn reset_removes_keys() {
    let fixture = MemoryStoreFixture::new(1_000);
    let limit = parse_limit("1/h");
    fixture.charge_each_key(&limit, 0..1_000);
    (0..600).for_each(|number| fixture.reset(&limit, number));
    (0..600).for_each(|number| fixture.reset(&limit, number));
    assert_eq!(fixture.store.keys(), 400);
    assert_eq!(fixture.charge_each_key(&limit, 1_000..1_600), 600);
    assert_eq!(fixture.store.keys(), 1_000);
    assert_eq!(fixture.store.evicted_keys(), 0);
    assert_eq!(fixture.count_denied_keys(&limit, 600..1_000), 400);
}

#[test]
fn peek_and_denial_create_no_key() {
    let store = MemoryStore::with_clock(ManualClock::default(), 100);
    let limiter = Limiter::with_store("limiter", ["2/min"], store).unwrap();
    assert!(limiter.peek("peeked").is_allowed());
    assert!(!limiter.check(Check::new("denied").cost(3)).is_allowed());
    assert_eq!(limiter.store().keys(), 0);
}

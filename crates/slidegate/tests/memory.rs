//! What the memory store promises of its own: idle keys leave, there are never too many, and what is
//! being denied stays.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

use std::ops::Range;
use std::time::Duration;

use slidegate::{
    Algorithm, Hit, Key, Limit, Limiter, ManualClock, MemoryStore, Outcome, Scope, SyncStore,
    Timestamp, Verdict,
};

const MICROSECOND: Duration = Duration::from_micros(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// A store, its clock, and numbers for keys.
struct Numbered {
    clock: ManualClock,
    store: MemoryStore<ManualClock>,
    scope: Scope,
}

impl Numbered {
    fn new(max_keys: usize) -> Self {
        let clock = ManualClock::at(Timestamp::from_secs(1_750_000_020));
        let store = MemoryStore::with_clock(clock.clone(), max_keys);
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

    fn peek(&self, limit: &Limit, number: u64) -> Outcome {
        self.with_hit(limit, number, |hit| self.store.peek_now(std::slice::from_ref(hit))[0])
    }

    fn reset(&self, limit: &Limit, number: u64) {
        self.with_hit(limit, number, |hit| self.store.reset_now(std::slice::from_ref(hit)));
    }

    fn denied(&self, limit: &Limit, params: Range<u64>) -> usize {
        params.filter(|&number| !self.peek(limit, number).fits()).count()
    }
}

fn limit(quota: &str) -> Limit {
    quota.parse().unwrap()
}

/// Every new key looks at one block of its shard, which has four places and is mostly three quarters
/// full at least. So 100,000 idle keys are gone long before 200,000 others have come: what is left are
/// the others. One in a thousand may be left over: a table that is rebuilt can put a key behind the hand
/// that sweeps, and then it waits for the next round.
#[test]
fn idle_keys_leave_as_others_come() {
    for algorithm in Algorithm::ALL {
        let store = Numbered::new(1_000_000);
        let limit = Limit::new("5/s".parse().unwrap(), algorithm).unwrap();
        assert_eq!(store.take_each(&limit, 0..100_000), 100_000);
        assert_eq!(store.store.keys(), 100_000);
        store.clock.advance(HOUR);
        assert_eq!(store.take_each(&limit, 100_000..300_000), 200_000);
        let idle = store.store.keys() - 200_000;
        assert!(idle <= 100, "{algorithm}: {idle} idle ones are left");
    }
}

/// As above, but among keys that stay, so that the tables have to grow all the while.
#[test]
fn idle_keys_leave_although_the_store_keeps_growing() {
    let store = Numbered::new(1_000_000);
    let (short, long) = (limit("5/s"), limit("5/d"));
    store.take_each(&long, 0..70_000);
    store.take_each(&short, 70_000..100_000);
    store.clock.advance(HOUR);
    store.take_each(&long, 100_000..300_000);
    let idle = store.store.keys() - 270_000;
    assert!(idle <= 30, "{idle} idle ones are left");
}

/// Keys come at a steady rate, and each is live for two windows at most. A key that comes looks at about
/// three others, so the dead are never as many as the live.
#[test]
fn keys_that_come_and_go_never_pile_up() {
    for algorithm in Algorithm::ALL {
        let store = Numbered::new(1_000_000);
        let limit = Limit::new("5/s".parse().unwrap(), algorithm).unwrap();
        let a_second = 20_000;
        for step in 0..200 {
            store.take_each(&limit, step * a_second / 10..(step + 1) * a_second / 10);
            store.clock.advance(SECOND / 10);
            let most = 4 * a_second as usize;
            assert!(store.store.keys() <= most, "{algorithm}: {}", store.store.keys());
        }
    }
}

/// Without any new key, every 64th decision in a shard looks at one block of it.
#[test]
fn idle_keys_leave_although_no_other_comes() {
    let store = Numbered::new(20_000);
    let limit = limit("5/s");
    store.take_each(&limit, 0..10_000);
    store.clock.advance(HOUR);
    for _ in 0..1_000 {
        store.take_each(&limit, 0..1_000);
    }
    assert_eq!(store.store.keys(), 1_000, "each of the 64 shards has some of the thousand");
}

#[test]
fn a_sweep_forgets_all_that_has_expired_and_nothing_else() {
    for algorithm in Algorithm::ALL {
        let store = Numbered::new(1_000_000);
        let short = Limit::new("5/s".parse().unwrap(), algorithm).unwrap();
        let long = Limit::new("2/h".parse().unwrap(), algorithm).unwrap();
        store.take_each(&short, 0..100_000);
        store.take_each(&long, 0..1_000);
        store.take_each(&long, 0..1_000);
        store.store.sweep();
        assert_eq!(store.store.keys(), 101_000, "{algorithm}: nothing has expired");
        store.clock.advance(10 * SECOND);
        store.store.sweep();
        assert_eq!(store.store.keys(), 1_000, "{algorithm}: all of the short ones have");
        assert_eq!(store.denied(&long, 0..1_000), 1_000, "{algorithm}: the others still count");
        store.clock.advance(3 * HOUR);
        store.store.sweep();
        assert_eq!(store.store.keys(), 0, "{algorithm}");
        assert_eq!(store.store.evicted_keys(), 0, "{algorithm}: none had to go");
    }
}

#[test]
fn never_more_than_max_keys() {
    for max_keys in [1, 10, 64, 1_000, 5_000] {
        for quota in ["1/h", "2/h"] {
            let store = Numbered::new(max_keys);
            let limit = limit(quota);
            for number in 0..10_000 {
                store.take(&limit, number);
                assert!(store.store.keys() <= max_keys, "{quota}: {}", store.store.keys());
            }
            assert_eq!(store.store.keys(), max_keys);
            assert_eq!(store.store.evicted_keys(), 10_000 - max_keys as u64);
        }
    }
}

#[test]
fn never_more_than_max_keys_with_several_hits() {
    let store = Numbered::new(100);
    let limits = [limit("1/s"), limit("1/min"), limit("2/h")];
    for number in 0..10_000 {
        let text = (number * 7919 % 3_000).to_string();
        let values = [text.as_str().into()];
        let key = Key::new(&store.scope, &values);
        let hits = limits.each_ref().map(|limit| Hit::new(key, limit, 1));
        store.store.take_now(&hits);
        assert!(store.store.keys() <= 100, "{}", store.store.keys());
    }
}

#[test]
fn evicted_keys_counts_only_what_was_live() {
    let store = Numbered::new(2_000);
    let limit = limit("5/s");
    store.take_each(&limit, 0..2_000);
    store.clock.advance(HOUR);
    store.take_each(&limit, 2_000..3_000);
    assert_eq!(store.store.evicted_keys(), 0, "there was enough that had expired");
    store.take_each(&limit, 3_000..5_000);
    assert_eq!(store.store.keys(), 2_000);
    assert_eq!(store.store.evicted_keys(), 1_000);
}

#[test]
fn what_is_being_denied_stays_until_its_time_while_another_can_go() {
    for algorithm in Algorithm::ALL {
        let store = Numbered::new(2_000);
        let limit = Limit::new("3/h".parse().unwrap(), algorithm).unwrap();
        for _ in 0..3 {
            assert_eq!(store.take_each(&limit, 0..500), 500);
        }
        let mut waits: Vec<(Duration, u64)> = (0..500)
            .map(|number| (store.peek(&limit, number).retry_after().unwrap(), number))
            .collect();
        waits.sort_unstable();
        let mut new = 500;
        let mut flood = || {
            assert_eq!(store.take_each(&limit, new..new + 20_000), 20_000);
            assert_eq!(store.store.keys(), 2_000);
            new += 20_000;
        };
        flood();
        assert_eq!(store.denied(&limit, 0..500), 500, "{algorithm}");
        assert_eq!(store.store.evicted_keys(), 18_500, "{algorithm}");
        let (soonest, first) = waits[0];
        store.clock.advance(soonest - MICROSECOND);
        flood();
        assert_eq!(store.denied(&limit, 0..500), 500, "{algorithm}: just before the first is free");
        store.clock.advance(MICROSECOND);
        assert!(store.peek(&limit, first).fits(), "{algorithm}: its time has come");
    }
}

#[test]
fn what_was_given_back_can_go_before_what_is_being_denied() {
    let store = Numbered::new(1_000);
    let (once, new) = (limit("1/h"), limit("1/d"));
    assert_eq!(store.take_each(&once, 0..990), 990);
    let receipts: Vec<_> = (990..1_000)
        .map(|number| {
            let take = |hit: &Hit<'_>| store.store.take_now(std::slice::from_ref(hit)).receipt;
            store.with_hit(&once, number, take)
        })
        .collect();
    // All are being denied, so one of them has to go, and the store has seen that in every shard.
    assert!(store.take(&new, 0));
    let denied = store.denied(&once, 0..990);
    receipts.iter().for_each(|receipt| store.store.revert_now(receipt));
    assert_eq!(store.take_each(&new, 1..9), 8);
    assert_eq!(store.denied(&once, 0..990), denied);
}

#[test]
fn what_was_given_back_without_a_receipt_can_go_before_what_is_being_denied() {
    let store = Numbered::new(1_000);
    let (once, new) = (limit("1/h"), limit("1/d"));
    assert_eq!(store.take_each(&once, 0..1_000), 1_000);
    assert!(store.take(&new, 0));
    let denied = store.denied(&once, 0..990);
    for number in 990..1_000 {
        store.with_hit(&once, number, |hit| store.store.refund_now(std::slice::from_ref(hit)));
    }
    assert_eq!(store.take_each(&new, 1..9), 8);
    assert_eq!(store.denied(&once, 0..990), denied);
    store.with_hit(&once, 5_000, |hit| store.store.refund_now(std::slice::from_ref(hit)));
    assert_eq!(store.store.keys(), 1_000, "nothing to give back makes no key");
}

#[test]
fn when_every_key_is_being_denied_the_soonest_freed_goes() {
    let store = Numbered::new(1_000);
    let (short, long, new) = (limit("1/min"), limit("1/h"), limit("1/d"));
    assert_eq!(store.take_each(&short, 0..500), 500);
    assert_eq!(store.take_each(&long, 500..1_000), 500);
    assert_eq!(store.take_each(&new, 1_000..1_500), 500);
    assert_eq!(store.store.keys(), 1_000);
    assert_eq!(store.denied(&short, 0..500), 0);
    assert_eq!(store.denied(&long, 500..1_000), 500);
    assert_eq!(store.denied(&new, 1_000..1_500), 500);
}

#[test]
fn a_flood_of_new_keys_frees_nobody() {
    const EXHAUSTED: u64 = 500;
    let store = Numbered::new(40_000);
    let limit = limit("100/min");
    for _ in 0..100 {
        assert_eq!(store.take_each(&limit, 0..EXHAUSTED), EXHAUSTED as usize);
    }
    for flood in 1..=20 {
        let new = flood * 100_000..(flood + 1) * 100_000;
        assert_eq!(store.take_each(&limit, new), 100_000);
        assert_eq!(store.store.keys(), 40_000);
        assert_eq!(store.take_each(&limit, 0..EXHAUSTED), 0, "none is free");
    }
}

#[test]
fn a_key_may_be_of_any_length() {
    let store = MemoryStore::with_clock(ManualClock::default(), 100);
    let limiter = Limiter::with_store(["2/min"], store).unwrap();
    let key = |last: char| -> String { "k".repeat(1_000_000) + &last.to_string() };
    for _ in 0..2 {
        assert!(limiter.check(&key('a')).is_allowed());
    }
    assert!(!limiter.check(&key('a')).is_allowed());
    assert!(limiter.check(&key('b')).is_allowed(), "the last byte of a million counts");
    assert_eq!(limiter.store().keys(), 2);
}

#[test]
fn a_reset_makes_room() {
    let store = Numbered::new(1_000);
    let limit = limit("1/h");
    store.take_each(&limit, 0..1_000);
    (0..600).for_each(|number| store.reset(&limit, number));
    (0..600).for_each(|number| store.reset(&limit, number));
    assert_eq!(store.store.keys(), 400);
    assert_eq!(store.take_each(&limit, 1_000..1_600), 600);
    assert_eq!(store.store.keys(), 1_000);
    assert_eq!(store.store.evicted_keys(), 0);
    assert_eq!(store.denied(&limit, 600..1_000), 400);
}

#[test]
fn what_is_denied_or_peeked_takes_no_room() {
    let store = MemoryStore::with_clock(ManualClock::default(), 100);
    let limiter = Limiter::with_store(["2/min"], store).unwrap();
    assert!(matches!(limiter.peek("peeked", 1), Verdict::Allowed(_)));
    assert!(!limiter.check_cost("denied", 3).is_allowed());
    assert_eq!(limiter.store().keys(), 0);
}

//! Tests of the memory store under many thread schedules, which the `shuttle` crate generates. Run with `make
//! test-shuttle`.

#![cfg(shuttle)]
#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

use std::sync::Arc;
use std::time::Duration;

use shuttle::sync::atomic::{AtomicU64, Ordering};
use slidegate::store::{Hit, Key, Scope, Value};
use slidegate::{Limit, Limiter, ManualClock, MemoryStore, SyncStore, Timestamp};

const SCHEDULES_PER_TEST: usize = 2_000;

type TestStore = MemoryStore<ManualClock>;

fn new_clock() -> ManualClock {
    ManualClock::at(Timestamp::from_secs(1_750_000_020))
}

fn new_store(max_keys: usize) -> TestStore {
    MemoryStore::with_clock(new_clock(), max_keys)
}

/// Runs a test under random thread schedules, and under schedules of the PCT algorithm (probabilistic concurrency
/// testing), which finds bugs that need few but specific thread switches.
fn explore_thread_schedules(test: impl Fn() + Send + Sync + Copy + 'static) {
    shuttle::check_random(test, SCHEDULES_PER_TEST);
    shuttle::check_pct(test, SCHEDULES_PER_TEST, 3);
}

/// Runs `work` in several threads. The argument of `work` is the index of the thread.
fn run_threads(threads: usize, work: impl Fn(usize) + Send + Sync + 'static) {
    let work = Arc::new(work);
    let threads: Vec<_> = (0..threads)
        .map(|nth| {
            let work = work.clone();
            shuttle::thread::spawn(move || work(nth))
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

/// Takes one unit of each of these keys in one request. Returns `true` if the request was allowed.
fn take_units(store: &TestStore, limit: &Limit, keys: &[&str]) -> bool {
    let scope = Scope::new("test", "shuttle", "limit", &["key"]);
    let values: Vec<[Value<'_>; 1]> = keys.iter().map(|key| [(*key).into()]).collect();
    let hits: Vec<Hit<'_>> = (values.iter())
        .map(|values| {
            let key = Key::new(&scope, values);
            Hit::new(key, limit, 1)
        })
        .collect();
    store.charge(&hits).allowed
}

#[test]
fn concurrent_checks_never_exceed_max() {
    explore_thread_schedules(|| {
        let limiter = Limiter::with_store("limiter", ["3/h"], new_store(100)).unwrap();
        let shared = Arc::new((limiter, AtomicU64::new(0)));
        let threads = shared.clone();
        run_threads(3, move |_| {
            for _ in 0..2 {
                let allowed = threads.0.check("key").is_allowed();
                threads.1.fetch_add(u64::from(allowed), Ordering::SeqCst);
            }
        });
        assert_eq!(shared.1.load(Ordering::SeqCst), 3);
    });
}

#[test]
fn overlapping_requests_are_atomic() {
    const KEYS_PER_REQUEST: [[&str; 3]; 3] = [["a", "b", "c"], ["c", "a", "d"], ["d", "c", "b"]];
    explore_thread_schedules(|| {
        let limit: Limit = "3/h".parse().unwrap();
        let allowed: [AtomicU64; 3] = Default::default();
        let shared = Arc::new((new_store(100), allowed));
        let threads = shared.clone();
        run_threads(3, move |nth| {
            for _ in 0..2 {
                let allowed = take_units(&threads.0, &limit, &KEYS_PER_REQUEST[nth]);
                threads.1[nth].fetch_add(u64::from(allowed), Ordering::SeqCst);
            }
        });
        let (store, allowed) = &*shared;
        for key in ["a", "b", "c", "d"] {
            let with_key =
                KEYS_PER_REQUEST.iter().zip(allowed).filter(|(request, _)| request.contains(&key));
            let charged: u64 = with_key.map(|(_, allowed)| allowed.load(Ordering::SeqCst)).sum();
            let left = (0..4).filter(|_| take_units(store, &limit, &[key])).count() as u64;
            assert_eq!(charged + left, 3, "{key}");
        }
    });
}

#[test]
fn overlapping_batches_do_not_deadlock() {
    explore_thread_schedules(|| {
        let limits = ["2/min", "3/h"];
        let single =
            Limiter::with_store("limiter", limits[..1].iter().copied(), new_store(100)).unwrap();
        let double =
            Limiter::with_store("limiter", limits.iter().copied(), new_store(100)).unwrap();
        let allowed: [AtomicU64; 6] = Default::default();
        let shared = Arc::new((single, double, allowed));
        let threads = shared.clone();
        run_threads(3, move |nth| {
            let (single, double, allowed) = &*threads;
            let keys = [[0, 1, 2], [2, 1, 0], [1, 0, 2]][nth];
            for (limiter, allowed) in [(single, &allowed[..3]), (double, &allowed[3..])] {
                for (key, decision) in keys.iter().zip(limiter.check_many(&keys)) {
                    allowed[*key].fetch_add(u64::from(decision.is_allowed()), Ordering::SeqCst);
                }
            }
        });
        for allowed in &shared.2 {
            assert_eq!(allowed.load(Ordering::SeqCst), 2, "2 of 3 requests");
        }
    });
}

#[test]
fn concurrent_reverts_restore_full_count() {
    explore_thread_schedules(|| {
        let limiter =
            Arc::new(Limiter::with_store("limiter", ["2/min", "5/h"], new_store(100)).unwrap());
        let threads = limiter.clone();
        run_threads(3, move |_| {
            let decision = threads.check("key");
            if decision.is_allowed() {
                threads.revert(&decision);
            }
        });
        assert_eq!(limiter.peek("key").remaining(), 2);
    });
}

/// Checks that evictions do not deadlock. Each key is denied after its first request, so each insertion searches other
/// shards for a key to evict. The insertion already holds the locks of several shards, and other threads may have
/// locked the shards that it searches.
#[test]
fn eviction_from_other_shards_does_not_deadlock() {
    const KEYS_PER_REQUEST: [[&str; 3]; 3] = [["a", "b", "c"], ["d", "e", "f"], ["f", "g", "a"]];
    explore_thread_schedules(|| {
        let limit: Limit = "1/h".parse().unwrap();
        let clock = new_clock();
        let store = Arc::new(MemoryStore::with_clock(clock.clone(), 4));
        let threads = store.clone();
        run_threads(3, move |nth| {
            take_units(&threads, &limit, &KEYS_PER_REQUEST[nth]);
            take_units(&threads, &limit, &KEYS_PER_REQUEST[(nth + 1) % 3][..1]);
        });
        clock.advance(Duration::from_secs(86_400));
        store.sweep();
        assert_eq!(store.keys(), 0, "every key was counted");
    });
}

#[test]
fn key_count_stays_exact_during_concurrent_insertions() {
    explore_thread_schedules(|| {
        let clock = new_clock();
        let store = MemoryStore::with_clock(clock.clone(), 4);
        let limiter = Arc::new(Limiter::with_store("limiter", ["2/s"], store).unwrap());
        let threads = limiter.clone();
        let moved = clock.clone();
        run_threads(3, move |nth| match nth {
            0 => drop(threads.check_many(&[1, 2, 3, 4, 5])),
            1 => {
                let _ = threads.check(&6);
                threads.reset(&1);
                let _ = threads.check(&1);
            }
            _ => {
                let _ = threads.check(&7);
                moved.advance(Duration::from_secs(10));
                threads.store().sweep();
            }
        });
        clock.advance(Duration::from_secs(10));
        limiter.store().sweep();
        assert_eq!(limiter.store().keys(), 0);
    });
}

//! Tests of concurrent decisions in many threads: they never exceed max, are atomic, and do not deadlock.

use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use fastrand::Rng;
use slidegate::store::{Adjustment, ChargeResult, Edit, Hit, Key, Outcomes, Scope, Value};
use slidegate::testkit::block_on;
use slidegate::testkit::faulty::{Faults, FaultyStore};
use slidegate::{
    Algorithm, Check, Decision, Limit, Limiter, ManualClock, MemoryStore, Store, SyncStore,
    Timestamp,
};

const THREAD_COUNT: u64 = 8;

/// The time after which a test is considered deadlocked. Each of these tests ends much earlier, even on a busy machine.
const DEADLOCK_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs `work` in several threads that start at the same time. The argument of `work` is the index of the thread.
/// Panics if a thread panics or if the threads deadlock.
fn run_threads(threads: u64, work: impl Fn(u64) + Send + Sync + 'static) {
    let work = Arc::new(work);
    let start = Arc::new(Barrier::new(threads as usize));
    let (running, all_done) = channel::<()>();
    let threads: Vec<_> = (0..threads)
        .map(|nth| {
            let (work, start, running) = (work.clone(), start.clone(), running.clone());
            std::thread::spawn(move || {
                start.wait();
                work(nth);
                drop(running);
            })
        })
        .collect();
    drop(running);
    // Nothing is ever sent: the channel closes with its last sender.
    let ended = all_done.recv_timeout(DEADLOCK_TIMEOUT);
    assert_eq!(ended, Err(RecvTimeoutError::Disconnected), "a thread is stuck");
    for thread in threads {
        thread.join().unwrap();
    }
}

fn new_clock() -> ManualClock {
    ManualClock::at(Timestamp::from_secs(1_750_000_020))
}

fn new_store(max_keys: usize) -> MemoryStore<ManualClock> {
    MemoryStore::with_clock(new_clock(), max_keys)
}

fn new_limit(quota: &str, algorithm: Algorithm) -> Limit {
    Limit::new(quota.parse().unwrap(), algorithm).unwrap()
}

/// A counter, and the number of units that the test has recorded as charged to the counter.
struct TrackedCounter {
    limit: Limit,
    values: [Value<'static>; 1],
    charged: AtomicU64,
}

/// Counters of every algorithm for a few keys. Their limits are small, so that many requests are denied.
struct TrackedCounters {
    scope: Scope,
    all: Vec<TrackedCounter>,
}

impl TrackedCounters {
    fn new() -> Self {
        let scope = Scope::new("test", "races", "limit", &["name"]);
        let mut all = Vec::new();
        for (nth, algorithm) in Algorithm::ALL.into_iter().enumerate() {
            for name in ["ada", "bob", "eve"] {
                let limit = new_limit(&format!("{}/h", 100 + 60 * nth), algorithm);
                all.push(TrackedCounter {
                    limit,
                    values: [name.into()],
                    charged: AtomicU64::new(0),
                });
            }
        }
        Self { scope, all }
    }

    /// Draws `count` of the counters in random order.
    fn draw_random_counters(&self, rng: &mut Rng, count: usize) -> Vec<&TrackedCounter> {
        let mut drawn = rng.choose_multiple(&self.all, count);
        rng.shuffle(&mut drawn);
        drawn
    }

    /// Creates one hit for each of these counters, with the cost at the same index.
    fn new_hits<'a>(&'a self, counters: &[&'a TrackedCounter], costs: &[u64]) -> Vec<Hit<'a>> {
        (counters.iter().zip(costs))
            .map(|(counter, &cost)| {
                let key = Key::new(&self.scope, &counter.values);
                Hit::new(key, &counter.limit, cost)
            })
            .collect()
    }

    /// Records the charges of an allowed request, and asserts that a denied request charged nothing. The recorded units
    /// never exceed the units that the store has counted.
    fn record_charged_units(
        &self,
        counters: &[&TrackedCounter],
        costs: &[u64],
        result: &ChargeResult,
    ) {
        if !result.allowed {
            assert!(result.receipt.is_empty(), "a denied request charges nothing");
            assert!(result.outcomes.iter().any(|outcome| !outcome.fits()));
            return;
        }
        assert_eq!(
            result.receipt.charges().len(),
            counters.len(),
            "an allowed request charges all"
        );
        for (counter, cost) in counters.iter().zip(costs) {
            let charged = counter.charged.fetch_add(*cost, Ordering::Relaxed) + cost;
            let max = counter.limit.quota().max();
            assert!(charged <= max, "{} {:?}", counter.limit, counter.values);
        }
    }

    /// Asserts that the store has counted, for each counter, exactly the units of the allowed requests.
    fn assert_store_counts_match(&self, peek: impl Fn(&[Hit<'_>]) -> Outcomes) {
        for counter in &self.all {
            let outcomes = peek(&self.new_hits(&[counter], &[1]));
            let left = counter.limit.quota().max() - counter.charged.load(Ordering::Relaxed);
            assert_eq!(outcomes[0].remaining(), left, "{} {:?}", counter.limit, counter.values);
        }
        let total: u64 = self.all.iter().map(|counter| counter.limit.quota().max()).sum();
        let charged: u64 =
            self.all.iter().map(|counter| counter.charged.load(Ordering::Relaxed)).sum();
        assert!(charged * 10 > total * 9, "too few requests were allowed for a meaningful test");
    }
}

#[test]
fn concurrent_checks_on_one_key_admit_max() {
    for algorithm in Algorithm::ALL {
        for _ in 0..10 {
            let limiter =
                Limiter::with_store("limiter", [new_limit("1000/h", algorithm)], new_store(100))
                    .unwrap();
            let shared = Arc::new((limiter, AtomicU64::new(0)));
            let threads = shared.clone();
            run_threads(THREAD_COUNT, move |_| {
                for _ in 0..250 {
                    let allowed = threads.0.check("key").is_allowed();
                    threads.1.fetch_add(u64::from(allowed), Ordering::Relaxed);
                }
            });
            assert_eq!(shared.1.load(Ordering::Relaxed), 1_000, "{algorithm}");
        }
    }
}

#[test]
fn overlapping_requests_are_atomic() {
    for round in 0..20 {
        let shared = Arc::new((new_store(1_000), TrackedCounters::new()));
        let threads = shared.clone();
        run_threads(THREAD_COUNT, move |thread| {
            let (store, counters) = &*threads;
            let mut rng = Rng::with_seed(round << 8 | thread);
            for _ in 0..1_000 {
                let count = rng.usize(2..=4);
                let drawn = counters.draw_random_counters(&mut rng, count);
                let costs: Vec<u64> = drawn.iter().map(|_| rng.u64(1..=3)).collect();
                let result = store.charge(&counters.new_hits(&drawn, &costs));
                counters.record_charged_units(&drawn, &costs, &result);
            }
        });
        shared.1.assert_store_counts_match(|hits| shared.0.peek(hits));
    }
}

#[test]
fn overlapping_batches_charge_each_request_atomically() {
    for round in 0..20 {
        let shared = Arc::new((new_store(1_000), TrackedCounters::new()));
        let threads = shared.clone();
        run_threads(THREAD_COUNT, move |thread| {
            let (store, counters) = &*threads;
            let mut rng = Rng::with_seed(round << 8 | thread);
            for _ in 0..200 {
                let drawn = counters.draw_random_counters(&mut rng, 12);
                let costs = [1; 12];
                let hits = counters.new_hits(&drawn, &costs);
                let hits_per_request = if rng.bool() { 1 } else { 3 };
                let requests: Vec<&[Hit<'_>]> = hits.chunks(hits_per_request).collect();
                let results = store.charge_many(&requests);
                let requests = drawn.chunks(hits_per_request).zip(costs.chunks(hits_per_request));
                assert_eq!(results.len(), requests.len());
                requests.zip(&results).for_each(|((drawn, costs), result)| {
                    counters.record_charged_units(drawn, costs, result);
                });
            }
        });
        shared.1.assert_store_counts_match(|hits| shared.0.peek(hits));
    }
}

/// The number of operations of each kind on one key of a limiter.
#[derive(Default)]
struct KeyOperationCounts {
    allowed: AtomicU64,
    reverted: AtomicU64,
    resets: AtomicU64,
}

/// Makes random single checks, batches and reverts, and resets some of the keys. Asserts after each allowed request
/// that the key stays within its bound.
fn run_random_operations(
    limiter: &Limiter<MemoryStore<ManualClock>>,
    operations: &[KeyOperationCounts],
    max: u64,
    mut rng: Rng,
) {
    let first_reset_key = operations.len() * 3 / 4;
    let mut charged: Vec<(usize, Decision<'_>)> = Vec::new();
    for _ in 0..1_500 {
        let key = rng.usize(..operations.len());
        let keys: Vec<usize> =
            (0..rng.usize(1..40)).map(|_| rng.usize(..operations.len())).collect();
        let decisions = match rng.u32(..100) {
            0..40 => vec![(key, limiter.check(&key))],
            40..80 => keys.iter().copied().zip(limiter.check_many(&keys)).collect(),
            // Recorded before the revert, so that the recorded bound is never below the actual one.
            80..99 => {
                if let Some((key, decision)) = charged.pop() {
                    operations[key].reverted.fetch_add(1, Ordering::SeqCst);
                    limiter.revert(&decision);
                }
                continue;
            }
            _ => {
                let key = rng.usize(first_reset_key..operations.len());
                operations[key].resets.fetch_add(1, Ordering::SeqCst);
                limiter.reset(&key);
                continue;
            }
        };
        for (key, decision) in decisions {
            if !decision.is_allowed() {
                continue;
            }
            let counts = &operations[key];
            let allowed = counts.allowed.fetch_add(1, Ordering::SeqCst) + 1;
            let resets = counts.resets.load(Ordering::SeqCst);
            let bound = max * (1 + resets) + counts.reverted.load(Ordering::SeqCst);
            assert!(allowed <= bound, "key {key}: {allowed} of {bound}");
            charged.push((key, decision));
        }
    }
}

#[test]
fn mixed_operations_never_exceed_max() {
    for limits in [&["50/min"][..], &["50/min", "200/h"]] {
        for algorithm in Algorithm::ALL {
            let limits = limits.iter().map(|quota| new_limit(quota, algorithm));
            let limiter = Limiter::with_store("limiter", limits, new_store(10_000)).unwrap();
            let operations: Vec<KeyOperationCounts> =
                (0..40).map(|_| KeyOperationCounts::default()).collect();
            let shared = Arc::new((limiter, operations));
            let threads = shared.clone();
            run_threads(THREAD_COUNT, move |thread| {
                run_random_operations(&threads.0, &threads.1, 50, Rng::with_seed(thread));
            });
            let (limiter, operations) = &*shared;
            for (key, counts) in operations.iter().enumerate().take(30) {
                let load = |count: &AtomicU64| count.load(Ordering::SeqCst);
                let used = load(&counts.allowed) - load(&counts.reverted);
                let left = limiter.peek(&key).remaining();
                assert_eq!(left, 50 - used, "{algorithm}, key {key}");
            }
        }
    }
}

#[test]
fn reverting_concurrent_charges_restores_earlier_count() {
    for algorithm in Algorithm::ALL {
        let limiter =
            Limiter::with_store("limiter", [new_limit("20/h", algorithm)], new_store(100)).unwrap();
        for _ in 0..7 {
            assert!(limiter.check("key").is_allowed());
        }
        let shared = Arc::new((limiter, AtomicU64::new(7)));
        let threads = shared.clone();
        run_threads(THREAD_COUNT, move |_| {
            let (limiter, outstanding) = &*threads;
            for nth in 0..3_000 {
                let cost = nth % 5 + 1;
                let decision = limiter.check(Check::new("key").cost(cost));
                if decision.is_allowed() {
                    let total = outstanding.fetch_add(cost, Ordering::SeqCst) + cost;
                    assert!(total <= 20, "{total}");
                    outstanding.fetch_sub(cost, Ordering::SeqCst);
                    limiter.revert(&decision);
                }
            }
        });
        assert_eq!(shared.0.peek("key").remaining(), 13, "{algorithm}");
        assert!(shared.0.check(Check::new("key").cost(13)).is_allowed());
        assert!(!shared.0.check("key").is_allowed());
    }
}

/// Checks the number of keys while several threads insert keys. Half of the limits have a max of 1, so many keys are
/// being denied and few keys can be evicted.
#[test]
fn concurrent_insertions_stay_near_max_keys() {
    const MAX_KEYS: usize = 200;
    let clock = new_clock();
    let store = MemoryStore::with_clock(clock.clone(), MAX_KEYS);
    let limits: Vec<Limit> = (Algorithm::ALL.into_iter())
        .flat_map(|algorithm| [new_limit("1/min", algorithm), new_limit("3/h", algorithm)])
        .collect();
    let shared = Arc::new((store, limits, Scope::new("test", "races", "limit", &["number"])));
    let threads = shared.clone();
    run_threads(THREAD_COUNT, move |thread| {
        let (store, limits, scope) = &*threads;
        let mut rng = Rng::with_seed(thread);
        for _ in 0..10_000 {
            let texts: Vec<String> =
                (0..rng.usize(1..=4)).map(|_| rng.u32(..5_000).to_string()).collect();
            let values: Vec<[Value<'_>; 1]> =
                texts.iter().map(|text| [text.as_str().into()]).collect();
            let hits: Vec<Hit<'_>> = (values.iter())
                .map(|values| {
                    let limit = &limits[rng.usize(..limits.len())];
                    let key = Key::new(scope, values);
                    Hit::new(key, limit, 1)
                })
                .collect();
            match rng.u32(..3) {
                0 => drop(store.charge_many(&hits.chunks(1).collect::<Vec<_>>())),
                1 => drop(store.charge_many(&[&hits])),
                _ => {
                    let result = store.charge(&hits);
                    if rng.u32(..10) == 0 {
                        store.adjust(&result.receipt, Adjustment::Revert);
                        store.edit(&hits, Edit::Reset);
                    }
                }
            }
            assert!(store.keys() <= MAX_KEYS + THREAD_COUNT as usize, "{}", store.keys());
        }
    });
    let store = &shared.0;
    assert!(store.evicted_keys() > 10_000, "too few evictions for a meaningful test");
    clock.advance(Duration::from_secs(86_400));
    store.sweep();
    assert_eq!(store.keys(), 0, "every key was counted");
}

#[test]
fn interleaved_multi_slot_requests_are_atomic() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for seed in 0..20 {
        let store = FaultyStore::new(&new_clock(), 4, Faults::default(), seed);
        let shared = Rc::new((store, TrackedCounters::new()));
        let tasks = tokio::task::LocalSet::new();
        for task in 0..THREAD_COUNT {
            let shared = shared.clone();
            tasks.spawn_local(async move {
                let (store, counters) = &*shared;
                let mut rng = Rng::with_seed(seed << 8 | task);
                for _ in 0..500 {
                    let count = rng.usize(1..=4);
                    let drawn = counters.draw_random_counters(&mut rng, count);
                    let costs: Vec<u64> = drawn.iter().map(|_| rng.u64(1..=3)).collect();
                    let result =
                        store.charge_async(&counters.new_hits(&drawn, &costs)).await.unwrap();
                    counters.record_charged_units(&drawn, &costs, &result);
                }
            });
        }
        runtime.block_on(tasks);
        shared.1.assert_store_counts_match(|hits| block_on(shared.0.peek_async(hits)).unwrap());
    }
}

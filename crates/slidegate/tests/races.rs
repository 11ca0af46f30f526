//! Many threads at once: never above max, all or nothing, and nobody waits for ever.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use fastrand::Rng;
use slidegate::store::Outcomes;
use slidegate::testkit::block_on;
use slidegate::testkit::faulty::{Faults, FaultyStore};
use slidegate::{
    Algorithm, ChargeResult, Hit, Key, Limit, Limiter, ManualClock, MemoryStore, Receipt, Scope,
    Store, SyncStore, Timestamp, Value, Verdict,
};

const THREADS: u64 = 8;

/// Long enough for any of these tests, even on a busy machine.
const STUCK_AFTER: Duration = Duration::from_secs(30);

/// Runs `work` in several threads that start together, each with its own number. Fails if one does, or
/// if they wait for each other for ever.
fn together(threads: u64, work: impl Fn(u64) + Send + Sync + 'static) {
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
    let ended = all_done.recv_timeout(STUCK_AFTER);
    assert_eq!(ended, Err(RecvTimeoutError::Disconnected), "some thread is stuck");
    for thread in threads {
        thread.join().unwrap();
    }
}

fn still_clock() -> ManualClock {
    ManualClock::at(Timestamp::from_secs(1_750_000_020))
}

fn memory(max_keys: usize) -> MemoryStore<ManualClock> {
    MemoryStore::with_clock(still_clock(), max_keys)
}

fn with_policy(quota: &str, algorithm: Algorithm) -> Limit {
    Limit::new(quota.parse().unwrap(), algorithm).unwrap()
}

/// A counter that requests are drawn over, and what was charged to it.
struct Ledger {
    limit: Limit,
    values: [Value<'static>; 1],
    charged: AtomicU64,
}

/// Counters of every algorithm on a few keys, with maxima so small that many requests are denied.
struct Ledgers {
    scope: Scope,
    all: Vec<Ledger>,
}

impl Ledgers {
    fn new() -> Self {
        let scope = Scope::new("test", "races", "limit", &["name"]);
        let mut all = Vec::new();
        for (nth, algorithm) in Algorithm::ALL.into_iter().enumerate() {
            for name in ["ada", "bob", "eve"] {
                let limit = with_policy(&format!("{}/h", 100 + 60 * nth), algorithm);
                all.push(Ledger { limit, values: [name.into()], charged: AtomicU64::new(0) });
            }
        }
        Self { scope, all }
    }

    /// Some of the counters in random order.
    fn draw(&self, rng: &mut Rng, how_many: usize) -> Vec<&Ledger> {
        let mut drawn = rng.choose_multiple(&self.all, how_many);
        rng.shuffle(&mut drawn);
        drawn
    }

    /// A hit for each of these counters.
    fn hits<'a>(&'a self, ledgers: &[&'a Ledger], costs: &[u64]) -> Vec<Hit<'a>> {
        (ledgers.iter().zip(costs))
            .map(|(ledger, &cost)| {
                let key = Key::new(&self.scope, &ledger.values);
                Hit::new(key, &ledger.limit, cost)
            })
            .collect()
    }

    /// Notes what an answer says was charged. What is noted is never ahead of what is counted.
    fn note(&self, ledgers: &[&Ledger], costs: &[u64], taken: &ChargeResult) {
        if !taken.allowed {
            assert!(taken.receipt.is_empty(), "a denied request charges nothing");
            assert!(taken.outcomes.iter().any(|outcome| !outcome.fits()));
            return;
        }
        assert_eq!(taken.receipt.charges.len(), ledgers.len(), "an allowed one charges all");
        for (ledger, cost) in ledgers.iter().zip(costs) {
            let charged = ledger.charged.fetch_add(*cost, Ordering::Relaxed) + cost;
            assert!(charged <= ledger.limit.quota().max(), "{} {:?}", ledger.limit, ledger.values);
        }
    }

    /// Every counter stands where the allowed requests have brought it.
    fn assert_counted(&self, peek: impl Fn(&[Hit<'_>]) -> Outcomes) {
        for ledger in &self.all {
            let outcomes = peek(&self.hits(&[ledger], &[1]));
            let left = ledger.limit.quota().max() - ledger.charged.load(Ordering::Relaxed);
            assert_eq!(outcomes[0].remaining(), left, "{} {:?}", ledger.limit, ledger.values);
        }
        let most: u64 = self.all.iter().map(|ledger| ledger.limit.quota().max()).sum();
        let charged: u64 = self.all.iter().map(|one| one.charged.load(Ordering::Relaxed)).sum();
        assert!(charged * 10 > most * 9, "so few were allowed that this shows nothing");
    }
}

#[test]
fn exactly_max_are_allowed_on_one_key() {
    for algorithm in Algorithm::ALL {
        for _ in 0..10 {
            let limiter =
                Limiter::with_store([with_policy("1000/h", algorithm)], memory(100)).unwrap();
            let shared = Arc::new((limiter, AtomicU64::new(0)));
            let threads = shared.clone();
            together(THREADS, move |_| {
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
fn crossing_requests_are_all_or_nothing() {
    for round in 0..20 {
        let shared = Arc::new((memory(1_000), Ledgers::new()));
        let threads = shared.clone();
        together(THREADS, move |thread| {
            let (store, ledgers) = &*threads;
            let mut rng = Rng::with_seed(round << 8 | thread);
            for _ in 0..1_000 {
                let how_many = rng.usize(2..=4);
                let drawn = ledgers.draw(&mut rng, how_many);
                let costs: Vec<u64> = drawn.iter().map(|_| rng.u64(1..=3)).collect();
                let taken = store.take_now(&ledgers.hits(&drawn, &costs));
                ledgers.note(&drawn, &costs, &taken);
            }
        });
        shared.1.assert_counted(|hits| shared.0.peek_now(hits));
    }
}

#[test]
fn crossing_batches_are_decided_request_by_request() {
    for round in 0..20 {
        let shared = Arc::new((memory(1_000), Ledgers::new()));
        let threads = shared.clone();
        together(THREADS, move |thread| {
            let (store, ledgers) = &*threads;
            let mut rng = Rng::with_seed(round << 8 | thread);
            for _ in 0..200 {
                let drawn = ledgers.draw(&mut rng, 12);
                let costs = [1; 12];
                let mut answers = Vec::new();
                let singly = rng.bool();
                let hits = ledgers.hits(&drawn, &costs);
                if singly {
                    store.take_each_now(&hits, |taken| {
                        answers.push(ChargeResult {
                            allowed: taken.charge.is_some(),
                            outcomes: Outcomes::from_slice(&[taken.outcome]),
                            receipt: Receipt { charges: taken.charge.into_iter().collect() },
                        });
                    });
                } else {
                    let asks: Vec<&[Hit<'_>]> = hits.chunks(3).collect();
                    store.take_many_now(&asks, |taken| answers.push(taken));
                }
                let hits_each = if singly { 1 } else { 3 };
                let asked = drawn.chunks(hits_each).zip(costs.chunks(hits_each));
                assert_eq!(answers.len(), asked.len());
                asked.zip(&answers).for_each(|((drawn, costs), taken)| {
                    ledgers.note(drawn, costs, taken);
                });
            }
        });
        shared.1.assert_counted(|hits| shared.0.peek_now(hits));
    }
}

/// What was done to one key of a limiter.
#[derive(Default)]
struct Account {
    allowed: AtomicU64,
    given_back: AtomicU64,
    resets: AtomicU64,
}

/// Single checks, batches, returns and, on some keys, resets.
fn mix(limiter: &Limiter<MemoryStore<ManualClock>>, accounts: &[Account], max: u64, mut rng: Rng) {
    let reset_from = accounts.len() * 3 / 4;
    let mut receipts: Vec<(usize, Receipt)> = Vec::new();
    for _ in 0..1_500 {
        let key = rng.usize(..accounts.len());
        let keys: Vec<usize> = (0..rng.usize(1..40)).map(|_| rng.usize(..accounts.len())).collect();
        let verdicts = match rng.u32(..100) {
            0..40 => vec![(key, limiter.check(&key))],
            40..80 => keys.iter().copied().zip(limiter.check_many(&keys)).collect(),
            // Noted before it happens: what is noted allows at least as much as what has happened.
            80..99 => {
                if let Some((key, receipt)) = receipts.pop() {
                    accounts[key].given_back.fetch_add(1, Ordering::SeqCst);
                    limiter.revert(&receipt);
                }
                continue;
            }
            _ => {
                let key = rng.usize(reset_from..accounts.len());
                accounts[key].resets.fetch_add(1, Ordering::SeqCst);
                limiter.reset(&key);
                continue;
            }
        };
        for (key, verdict) in verdicts {
            let Verdict::Allowed(decision) = verdict else { continue };
            let account = &accounts[key];
            let allowed = account.allowed.fetch_add(1, Ordering::SeqCst) + 1;
            let resets = account.resets.load(Ordering::SeqCst);
            let most = max * (1 + resets) + account.given_back.load(Ordering::SeqCst);
            assert!(allowed <= most, "key {key}: {allowed} of {most}");
            receipts.push((key, decision.receipt().clone()));
        }
    }
}

#[test]
fn batches_checks_returns_and_resets_together_are_never_above_max() {
    for limits in [&["50/min"][..], &["50/min", "200/h"]] {
        for algorithm in Algorithm::ALL {
            let limits = limits.iter().map(|quota| with_policy(quota, algorithm));
            let limiter = Limiter::with_store(limits, memory(10_000)).unwrap();
            let accounts: Vec<Account> = (0..40).map(|_| Account::default()).collect();
            let shared = Arc::new((limiter, accounts));
            let threads = shared.clone();
            together(THREADS, move |thread| {
                mix(&threads.0, &threads.1, 50, Rng::with_seed(thread));
            });
            let (limiter, accounts) = &*shared;
            for (key, account) in accounts.iter().enumerate().take(30) {
                let count = |count: &AtomicU64| count.load(Ordering::SeqCst);
                let used = count(&account.allowed) - count(&account.given_back);
                let left = limiter.peek(&key, 1).decision().remaining();
                assert_eq!(left, 50 - used, "{algorithm}, key {key}");
            }
        }
    }
}

#[test]
fn what_all_give_back_leaves_the_count_as_it_was() {
    for algorithm in Algorithm::ALL {
        let limiter = Limiter::with_store([with_policy("20/h", algorithm)], memory(100)).unwrap();
        for _ in 0..7 {
            assert!(limiter.check("key").is_allowed());
        }
        let shared = Arc::new((limiter, AtomicU64::new(7)));
        let threads = shared.clone();
        together(THREADS, move |_| {
            let (limiter, outstanding) = &*threads;
            for nth in 0..3_000 {
                let cost = nth % 5 + 1;
                if let Verdict::Allowed(decision) = limiter.check_cost("key", cost) {
                    let now_out = outstanding.fetch_add(cost, Ordering::SeqCst) + cost;
                    assert!(now_out <= 20, "{now_out}");
                    outstanding.fetch_sub(cost, Ordering::SeqCst);
                    limiter.revert(decision.receipt());
                }
            }
        });
        assert_eq!(shared.0.peek("key", 1).decision().remaining(), 13, "{algorithm}");
        assert!(shared.0.check_cost("key", 13).is_allowed());
        assert!(!shared.0.check("key").is_allowed());
    }
}

/// Half of the limits have a max of 1, so that many keys are being denied and room is hard to find.
#[test]
fn too_many_keys_at_once_stay_within_the_bound() {
    const MAX_KEYS: usize = 200;
    let clock = still_clock();
    let store = MemoryStore::with_clock(clock.clone(), MAX_KEYS);
    let limits: Vec<Limit> = (Algorithm::ALL.into_iter())
        .flat_map(|algorithm| [with_policy("1/min", algorithm), with_policy("3/h", algorithm)])
        .collect();
    let shared = Arc::new((store, limits, Scope::new("test", "races", "limit", &["number"])));
    let threads = shared.clone();
    together(THREADS, move |thread| {
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
                0 => store.take_each_now(&hits, |_| ()),
                1 => store.take_many_now(&[&hits], |_| ()),
                _ => {
                    let taken = store.take_now(&hits);
                    if rng.u32(..10) == 0 {
                        store.revert_now(&taken.receipt);
                        store.reset_now(&hits);
                    }
                }
            }
            assert!(store.keys() <= MAX_KEYS + THREADS as usize, "{}", store.keys());
        }
    });
    let store = &shared.0;
    assert!(store.evicted_keys() > 10_000, "few had to go: this shows nothing");
    clock.advance(Duration::from_secs(86_400));
    store.sweep();
    assert_eq!(store.keys(), 0, "the count has missed none");
}

#[test]
fn requests_that_interleave_slot_by_slot_are_all_or_nothing_in_the_end() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for seed in 0..20 {
        let store = FaultyStore::new(&still_clock(), 4, Faults::default(), seed);
        let shared = Rc::new((store, Ledgers::new()));
        let tasks = tokio::task::LocalSet::new();
        for task in 0..THREADS {
            let shared = shared.clone();
            tasks.spawn_local(async move {
                let (store, ledgers) = &*shared;
                let mut rng = Rng::with_seed(seed << 8 | task);
                for _ in 0..500 {
                    let how_many = rng.usize(1..=4);
                    let drawn = ledgers.draw(&mut rng, how_many);
                    let costs: Vec<u64> = drawn.iter().map(|_| rng.u64(1..=3)).collect();
                    let taken = store.take(&ledgers.hits(&drawn, &costs)).await.unwrap();
                    ledgers.note(&drawn, &costs, &taken);
                }
            });
        }
        runtime.block_on(tasks);
        shared.1.assert_counted(|hits| block_on(shared.0.peek(hits)).unwrap());
    }
}

//! Tests of the circuit breaker with thread schedules that shuttle chooses. Run them with `make test-shuttle`.

#![cfg(shuttle)]
#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

use std::sync::Arc;
use std::time::Duration;

use shuttle::sync::atomic::{AtomicUsize, Ordering};
use slidegate::Timestamp;
use slidegate_redis::breaker::{
    Breaker, BreakerCallPass, BreakerDecision, BreakerSettings, BreakerStateChange,
};

const THREAD_SCHEDULE_COUNT: usize = 2_000;

const NOW: Timestamp = Timestamp::from_secs(1_750_000_020);

fn explore_thread_schedules(test: impl Fn() + Send + Sync + Copy + 'static) {
    shuttle::check_random(test, THREAD_SCHEDULE_COUNT);
    shuttle::check_pct(test, THREAD_SCHEDULE_COUNT, 3);
}

/// Runs `work` in three threads, and returns the sum of the results. The argument of `work` is the index of the thread.
fn sum_results_of_three_threads(work: impl Fn(usize) -> usize + Send + Sync + 'static) -> usize {
    let work = Arc::new(work);
    let total = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..3)
        .map(|nth| {
            let (work, total) = (work.clone(), total.clone());
            shuttle::thread::spawn(move || total.fetch_add(work(nth), Ordering::SeqCst))
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    total.load(Ordering::SeqCst)
}

/// Creates a closed breaker that opens at the second failure.
fn new_closed_breaker() -> Arc<Breaker> {
    Arc::new(Breaker::new(BreakerSettings {
        consecutive_failures: 2,
        ..BreakerSettings::default()
    }))
}

fn new_open_breaker() -> Arc<Breaker> {
    let breaker = new_closed_breaker();
    for _ in 0..2 {
        let pass = admit_call(&breaker);
        breaker.record_failure(pass, NOW);
    }
    assert!(breaker.is_open());
    breaker
}

fn admit_call(breaker: &Breaker) -> BreakerCallPass {
    let BreakerDecision::Call(pass) = breaker.admit(NOW) else { panic!("the breaker is open") };
    pass
}

#[test]
fn concurrent_failures_open_breaker_once() {
    explore_thread_schedules(|| {
        let breaker = new_closed_breaker();
        let shared = breaker.clone();
        let opened = sum_results_of_three_threads(move |_| {
            let mut opened = 0;
            for _ in 0..2 {
                if let BreakerDecision::Call(pass) = shared.admit(NOW) {
                    opened += usize::from(shared.record_failure(pass, NOW).is_some());
                }
            }
            opened
        });
        assert!(breaker.is_open());
        assert_eq!(opened, 1);
    });
}

#[test]
fn concurrent_callers_get_one_probe() {
    explore_thread_schedules(|| {
        let breaker = new_open_breaker();
        let later = NOW.after(Duration::from_secs(1));
        let probes = sum_results_of_three_threads(move |_| {
            usize::from(breaker.admit(later) != BreakerDecision::Reject)
        });
        assert_eq!(probes, 1);
    });
}

#[test]
fn late_results_do_not_affect_probe() {
    explore_thread_schedules(|| {
        let breaker = new_closed_breaker();
        let early = [admit_call(&breaker), admit_call(&breaker)]
            .map(|pass| std::sync::Mutex::new(Some(pass)));
        for pass in [admit_call(&breaker), admit_call(&breaker)] {
            breaker.record_failure(pass, NOW);
        }
        let later = NOW.after(Duration::from_secs(1));
        let shared = breaker.clone();
        let changes = sum_results_of_three_threads(move |nth| {
            let take = |nth: usize| early[nth].lock().unwrap().take().unwrap();
            let change = match nth {
                0 => shared.record_success(take(0), later),
                1 => shared.record_failure(take(1), later),
                _ => {
                    let BreakerDecision::Probe(probe) = shared.admit(later) else {
                        panic!("the probe must be allowed")
                    };
                    shared.record_success(probe, later)
                }
            };
            assert!(change.is_none() || nth == 2);
            usize::from(matches!(change, Some(BreakerStateChange::Closed { .. })))
        });
        assert_eq!((changes, breaker.is_open()), (1, false));
    });
}

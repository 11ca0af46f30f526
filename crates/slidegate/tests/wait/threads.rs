//! Calls that wait on threads. These tests run on the real clock.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use slidegate::{Check, Limiter, Reason};

use crate::wait::fixture::ms;

#[test]
fn waiting_threads_are_all_admitted() {
    let limiter = Limiter::new(["10/5ms"]).unwrap();
    let admitted = AtomicUsize::new(0);
    thread::scope(|scope| {
        for nth in 0..8_u64 {
            let (limiter, admitted) = (&limiter, &admitted);
            scope.spawn(move || {
                for _ in 0..50 {
                    let cost = 1 + nth % 3;
                    assert!(limiter.wait(Check::new("key").cost(cost)).unwrap().is_allowed());
                    admitted.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(admitted.into_inner(), 400);
    let stats = limiter.wait_stats();
    assert_eq!((stats.waiting, stats.timed_out, stats.cancelled), (0, 0, 0));
}

#[test]
fn bounded_waits_of_threads_end() {
    let limiter = Limiter::new(["5/20ms"]).unwrap();
    let counts = [(); 2].map(|()| AtomicUsize::new(0));
    thread::scope(|scope| {
        for nth in 0..8_u64 {
            let (limiter, counts) = (&limiter, &counts);
            scope.spawn(move || {
                for turn in 0..30 {
                    let decision = limiter.check(Check::new("key").max_wait(ms((nth + turn) % 12)));
                    counts[usize::from(decision.is_allowed())].fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let [denied, allowed] = counts.map(AtomicUsize::into_inner);
    assert_eq!(denied + allowed, 8 * 30);
    assert_eq!(limiter.wait_stats().waiting, 0);
}

#[test]
fn threads_and_tasks_share_a_queue() {
    let limiter = Limiter::new(["1/100ms"]).unwrap();
    assert!(limiter.check("key").is_allowed());
    let order = parking_order(&limiter);
    assert_eq!(order, ["thread", "task"]);
}

/// Returns the order in which a thread and a task are admitted. The thread arrives first.
fn parking_order(limiter: &Limiter) -> Vec<&'static str> {
    let order = std::sync::Mutex::new(Vec::new());
    thread::scope(|scope| {
        scope.spawn(|| {
            let _ = limiter.wait("key").unwrap();
            order.lock().unwrap().push("thread");
        });
        while limiter.wait_stats().waiting == 0 {
            thread::yield_now();
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _ = runtime.block_on(limiter.wait_async("key")).unwrap();
        order.lock().unwrap().push("task");
    });
    order.into_inner().unwrap()
}

#[test]
fn cost_above_max_never_waits() {
    let limiter = Limiter::new(["5/h"]).unwrap();
    let denied = limiter.wait(Check::new("key").cost(6)).unwrap_err();
    assert_eq!(denied.decision().reason(), Some(Reason::CostExceedsMax));
    assert!(!limiter.check(Check::new("key").cost(6).max_wait(Duration::MAX)).is_allowed());
    assert!(limiter.check(Check::new("key").cost(5).max_wait(Duration::MAX)).is_allowed());
}

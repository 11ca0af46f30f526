//! Order and times of admissions.

use std::cell::RefCell;
use std::rc::Rc;

use slidegate::wait::WaitOptions;
use slidegate::{Check, Jitter, Limiter, MemoryStore, Reason};
use tokio::task::spawn_local;
use tokio::time::sleep;

use crate::wait::fixture::{TokioClock, exact, ms, new_exact_limiter, run_on_paused_time};

#[test]
fn waiting_calls_are_admitted_in_order_of_arrival() {
    run_on_paused_time(async {
        let (clock, limiter) = new_exact_limiter(&["1/100ms"]);
        let admitted = Rc::new(RefCell::new(Vec::new()));
        let calls: Vec<_> = (0..5)
            .map(|nth| {
                let (limiter, admitted) = (limiter.clone(), admitted.clone());
                spawn_local(async move {
                    sleep(ms(nth)).await;
                    let decision = limiter.check_async(Check::new("key").max_wait(ms(1_000))).await;
                    assert!(decision.is_allowed());
                    admitted.borrow_mut().push((nth, clock.elapsed_ms()));
                })
            })
            .collect();
        for call in calls {
            call.await.unwrap();
        }
        assert_eq!(*admitted.borrow(), [(0, 0), (1, 100), (2, 200), (3, 300), (4, 400)]);
        let stats = limiter.wait_stats();
        assert_eq!((stats.waiting, stats.admitted, stats.timed_out), (0, 4, 0));
    });
}

#[test]
fn later_call_does_not_overtake_larger_one() {
    run_on_paused_time(async {
        let (clock, limiter) = new_exact_limiter(&["10/s"]);
        assert!(limiter.check(Check::new("key").cost(4)).is_allowed());
        sleep(ms(500)).await;
        let large = async {
            let decision = limiter.wait_async(Check::new("key").cost(8)).await.unwrap();
            (decision.remaining(), clock.elapsed_ms())
        };
        let small = async {
            sleep(ms(1)).await;
            // Six units are free, but the call before this one needs them.
            let decision = limiter.check_async(Check::new("key").max_wait(ms(5_000))).await;
            (decision.remaining(), clock.elapsed_ms())
        };
        assert_eq!(tokio::join!(large, small), ((2, 1_000), (1, 1_000)));
    });
}

#[test]
fn call_without_wait_takes_free_capacity() {
    run_on_paused_time(async {
        let (clock, limiter) = new_exact_limiter(&["10/s"]);
        assert!(limiter.check(Check::new("key").cost(4)).is_allowed());
        let waiting = async {
            let _ = limiter.wait_async(Check::new("key").cost(8)).await.unwrap();
            clock.elapsed_ms()
        };
        let immediate = async {
            sleep(ms(10)).await;
            assert!(limiter.check(Check::new("key").cost(3)).is_allowed());
        };
        assert_eq!(tokio::join!(waiting, immediate), (1_010, ()));
    });
}

#[test]
fn calls_for_other_keys_do_not_wait() {
    run_on_paused_time(async {
        let (clock, limiter) = new_exact_limiter(&["1/s"]);
        assert!(limiter.check("key").is_allowed());
        let waiting = limiter.check_async(Check::new("key").max_wait(ms(2_000)));
        let other = async {
            sleep(ms(10)).await;
            assert!(
                limiter.check_async(Check::new("other").max_wait(ms(2_000))).await.is_allowed()
            );
            clock.elapsed_ms()
        };
        let (waiting, at) = tokio::join!(waiting, other);
        assert!(waiting.is_allowed());
        assert_eq!(at, 10);
    });
}

#[test]
fn call_that_does_not_fit_within_its_wait_is_denied_immediately() {
    run_on_paused_time(async {
        let (clock, limiter) = new_exact_limiter(&["1/s"]);
        assert!(limiter.check("key").is_allowed());
        let denied = limiter.check_async(Check::new("key").max_wait(ms(998))).await;
        assert_eq!((denied.is_allowed(), clock.elapsed_ms()), (false, 0));
        assert_eq!(
            (denied.retry_after(), denied.reason()),
            (Some(ms(1_000)), Some(Reason::LimitExceeded))
        );
        let never = limiter.check_async(Check::new("key").cost(2).max_wait(ms(5_000))).await;
        assert_eq!((never.reason(), clock.elapsed_ms()), (Some(Reason::CostExceedsMax), 0));
        assert!(limiter.check_async(Check::new("key").max_wait(ms(1_000))).await.is_allowed());
        assert_eq!(clock.elapsed_ms(), 1_000);
        let stats = limiter.wait_stats();
        assert_eq!((stats.admitted, stats.timed_out, stats.queue_full), (1, 0, 0));
    });
}

#[test]
fn call_behind_longer_wait_is_denied_immediately() {
    run_on_paused_time(async {
        let (clock, limiter) = new_exact_limiter(&["10/s"]);
        assert!(limiter.check(Check::new("key").cost(4)).is_allowed());
        let large = limiter.check_async(Check::new("key").cost(8).max_wait(ms(2_000)));
        let small = async {
            sleep(ms(100)).await;
            let denied = limiter.check_async(Check::new("key").max_wait(ms(500))).await;
            assert_eq!((denied.is_allowed(), clock.elapsed_ms()), (false, 100));
            assert_eq!(denied.retry_after(), Some(ms(900)), "the earlier call is admitted then");
            assert_eq!(denied.reason(), Some(Reason::LimitExceeded));
            assert_eq!(denied.limits().filter(|status| status.is_denying()).count(), 1);
        };
        assert!(tokio::join!(large, small).0.is_allowed());
    });
}

#[test]
fn call_behind_others_is_denied_at_end_of_wait() {
    run_on_paused_time(async {
        let (clock, limiter) = new_exact_limiter(&["1/s"]);
        assert!(limiter.check("key").is_allowed());
        let first = limiter.check_async(Check::new("key").max_wait(ms(1_500)));
        let second = async {
            sleep(ms(1)).await;
            // The second call does not know the cost of the first. At 1000 ms, it is the first, and its wait
            // is too short.
            let denied = limiter.check_async(Check::new("key").max_wait(ms(1_500))).await;
            assert_eq!((denied.is_allowed(), clock.elapsed_ms()), (false, 1_000));
            assert_eq!(denied.retry_after(), Some(ms(1_000)));
        };
        assert!(tokio::join!(first, second).0.is_allowed());
        assert_eq!(limiter.wait_stats().timed_out, 1);
    });
}

#[test]
fn refund_and_reset_wake_first_call() {
    run_on_paused_time(async {
        let (clock, limiter) = new_exact_limiter(&["10/min"]);
        assert!(limiter.check(Check::new("key").cost(10)).is_allowed());
        for edit in ["refund", "reset"] {
            let before = clock.elapsed_ms();
            let waiting = async {
                assert!(limiter.wait_async("key").await.is_ok(), "{edit}");
                clock.elapsed_ms() - before
            };
            let freeing = async {
                sleep(ms(70)).await;
                match edit {
                    "refund" => limiter.refund("key", 1),
                    _ => limiter.reset_async("key").await.unwrap(),
                }
            };
            assert_eq!(tokio::join!(waiting, freeing).0, 70, "{edit}");
        }
    });
}

#[test]
fn jitter_lengthens_sleeps_of_bounded_waits_only_to_deadline() {
    run_on_paused_time(async {
        let clock = TokioClock::new();
        let limiter =
            Limiter::with_store("limiter", exact(&["1/s"]), MemoryStore::with_clock(clock, 10))
                .unwrap();
        let jitter = Jitter::up_to(ms(400));
        let limiter = limiter.with_wait_options(WaitOptions { jitter, ..WaitOptions::default() });
        assert!(limiter.check("key").is_allowed());
        assert!(limiter.wait_async("key").await.is_ok());
        assert!((1_000..=1_401).contains(&clock.elapsed_ms()), "{}", clock.elapsed_ms());
    });
}

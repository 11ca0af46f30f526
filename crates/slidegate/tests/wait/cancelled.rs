//! Callers that give up.

use std::time::Duration;

use slidegate::Check;
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

use crate::wait::fixture::{ms, new_exact_limiter, run_on_paused_time};

#[test]
fn dropped_call_leaves_queue_and_charges_nothing() {
    run_on_paused_time(async {
        let (clock, limiter) = new_exact_limiter(&["10/s"]);
        assert!(limiter.check(Check::new("key").cost(4)).is_allowed());
        let large =
            timeout(ms(200), limiter.check_async(Check::new("key").cost(8).max_wait(ms(2_000))));
        let small = async {
            sleep(ms(1)).await;
            let decision = limiter.check_async(Check::new("key").max_wait(ms(2_000))).await;
            assert!(decision.is_allowed());
            // The next call is the first as soon as the first gives up, and six units are free.
            (decision.remaining(), clock.elapsed_ms())
        };
        let (large, small) = tokio::join!(large, small);
        assert!(large.is_err());
        assert_eq!(small, (5, 200));
        let stats = limiter.wait_stats();
        assert_eq!((stats.waiting, stats.admitted, stats.cancelled), (0, 1, 1));
    });
}

#[test]
fn dropped_call_in_middle_of_queue_is_skipped() {
    run_on_paused_time(async {
        let (clock, limiter) = new_exact_limiter(&["1/s"]);
        assert!(limiter.check("key").is_allowed());
        let call = |wait| limiter.check_async(Check::new("key").max_wait(wait));
        let last = async {
            sleep(ms(2)).await;
            assert!(call(ms(5_000)).await.is_allowed());
            clock.elapsed_ms()
        };
        let middle = async {
            sleep(ms(1)).await;
            timeout(ms(500), call(ms(5_000))).await
        };
        let (first, middle, last) = tokio::join!(call(ms(5_000)), middle, last);
        assert!(first.is_allowed() && middle.is_err());
        assert_eq!(last, 2_000);
    });
}

#[test]
fn queues_are_removed_when_empty() {
    run_on_paused_time(async {
        let (_, limiter) = new_exact_limiter(&["1/s"]);
        for key in 0..500_u32 {
            assert!(limiter.check(&key).is_allowed());
        }
        let tasks: Vec<_> = (0..500_u32)
            .map(|key| {
                let limiter = limiter.clone();
                spawn_local(async move {
                    let _ = limiter.check_async(Check::new(&key).max_wait(ms(5_000))).await;
                })
            })
            .collect();
        sleep(ms(1)).await;
        assert_eq!(limiter.wait_stats().waiting, 500);
        assert!(format!("{limiter:?}").contains("queues: 500"), "{limiter:?}");
        tasks.iter().take(250).for_each(|task| task.abort());
        sleep(ms(1)).await;
        assert_eq!(limiter.wait_stats().waiting, 250);
        assert!(format!("{limiter:?}").contains("queues: 250"), "{limiter:?}");
        sleep(Duration::from_secs(2)).await;
        assert_eq!(limiter.wait_stats().waiting, 0);
        assert!(format!("{limiter:?}").contains("queues: 0"), "{limiter:?}");
    });
}

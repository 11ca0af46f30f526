//! Bounds of the queues.

use slidegate::wait::WaitOptions;
use slidegate::{Check, Descriptor, Gate, Limiter, MemoryStore, Policy, Reason, Request};
use tokio::time::sleep;

use crate::wait::fixture::{TokioClock, exact, ms, run_on_paused_time};

fn new_bounded_limiter(
    max_waiting: usize,
    max_waiting_per_key: usize,
) -> Limiter<MemoryStore<TokioClock>> {
    let store = MemoryStore::with_clock(TokioClock::new(), 1_000);
    let limiter = Limiter::with_store("limiter", exact(&["1/s"]), store).unwrap();
    limiter.with_wait_options(WaitOptions {
        max_waiting,
        max_waiting_per_key,
        ..WaitOptions::default()
    })
}

#[test]
fn call_is_denied_if_queue_of_key_is_full() {
    run_on_paused_time(async {
        let limiter = new_bounded_limiter(10, 2);
        assert!(limiter.check("key").is_allowed() && limiter.check("other").is_allowed());
        let call = |key| limiter.check_async(Check::new(key).max_wait(ms(10_000)));
        let late = async {
            sleep(ms(100)).await;
            let denied = call("key").await;
            assert_eq!(denied.reason(), Some(Reason::WaitQueueFull));
            assert_eq!((denied.status(), denied.retry_after()), (429, Some(ms(900))));
            let text = denied.into_result().unwrap_err().to_string();
            assert!(text.contains("wait_queue_full"), "{text}");
            assert!(call("other").await.is_allowed(), "each key has a queue");
        };
        let (first, second, ()) = tokio::join!(call("key"), call("key"), late);
        assert!(first.is_allowed() && second.is_allowed());
        let stats = limiter.wait_stats();
        assert_eq!((stats.queue_full, stats.admitted, stats.waiting), (1, 3, 0));
    });
}

#[test]
fn call_is_denied_if_all_queues_together_are_full() {
    run_on_paused_time(async {
        let limiter = new_bounded_limiter(2, 2);
        for key in ["a", "b", "c"] {
            assert!(limiter.check(key).is_allowed());
        }
        let call = |key| limiter.check_async(Check::new(key).max_wait(ms(10_000)));
        let late = async {
            sleep(ms(100)).await;
            assert_eq!(call("c").await.reason(), Some(Reason::WaitQueueFull));
            assert!(call("d").await.is_allowed(), "a call that fits does not wait");
        };
        let (first, second, ()) = tokio::join!(call("a"), call("b"), late);
        assert!(first.is_allowed() && second.is_allowed());
    });
}

#[test]
fn zero_bound_disables_waiting() {
    run_on_paused_time(async {
        for (max_waiting, max_waiting_per_key) in [(0, 5), (5, 0)] {
            let limiter = new_bounded_limiter(max_waiting, max_waiting_per_key);
            assert!(limiter.check_async(Check::new("key").max_wait(ms(5_000))).await.is_allowed());
            let denied = limiter.check_async(Check::new("key").max_wait(ms(5_000))).await;
            assert_eq!(denied.reason(), Some(Reason::WaitQueueFull));
        }
    });
}

#[test]
fn cost_above_max_has_its_own_reason_even_if_queue_is_full() {
    run_on_paused_time(async {
        let limiter = new_bounded_limiter(0, 0);
        let denied = limiter.check_async(Check::new("key").cost(2).max_wait(ms(5_000))).await;
        assert_eq!(denied.reason(), Some(Reason::CostExceedsMax));
    });
}

#[test]
fn wait_ends_with_maximum_wait_of_call() {
    run_on_paused_time(async {
        let limiter = new_bounded_limiter(10, 10);
        assert!(limiter.check("key").is_allowed());
        let wait = |max_wait| limiter.wait_async(Check::new("key").max_wait(ms(max_wait)));
        assert_eq!(wait(400).await.unwrap_err().retry_after(), Some(ms(1_000)));
        assert!(wait(1_000).await.is_ok_and(|decision| decision.waited() == ms(1_000)));

        let policy = Policy::from_yaml("rules: [{ name: all, limits: [1/s] }]").unwrap();
        let gate = Gate::new(policy, MemoryStore::with_clock(TokioClock::new(), 1_000));
        let request =
            |max_wait| Request::new("default", Descriptor::new([])).with_max_wait(ms(max_wait));
        assert!(gate.wait_async(&request(0)).await.is_ok());
        assert!(gate.wait_async(&request(900)).await.is_err());
    });
}

//! Waiting calls over a store that takes a round trip, and that other instances share.

use slidegate::{Check, Limiter};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::wait::fixture::{RemoteStore, TokioClock, exact, ms, run_on_paused_time};

#[test]
fn waiting_makes_few_store_calls() {
    run_on_paused_time(async {
        let store = RemoteStore::new(TokioClock::new());
        let limiter = Limiter::with_store("limiter", exact(&["1/s"]), store.clone()).unwrap();
        for _ in 0..5 {
            assert!(limiter.wait_async("key").await.is_ok());
        }
        // One call that is denied, and one that is admitted.
        assert_eq!(store.calls(), 1 + 4 * 2);
    });
}

#[test]
fn queue_over_remote_store_keeps_order_of_arrival() {
    run_on_paused_time(async {
        let store = RemoteStore::new(TokioClock::new());
        let limiter = Limiter::with_store("limiter", exact(&["2/s"]), store.clone()).unwrap();
        let call = async |nth: u64| {
            sleep(ms(10 * nth)).await;
            assert!(limiter.check_async(Check::new("key").max_wait(ms(60_000))).await.is_allowed());
            nth
        };
        let calls = tokio::join!(call(0), call(1), call(2), call(3), call(4), call(5));
        assert_eq!(calls, (0, 1, 2, 3, 4, 5));
        // Each waiting call peeks once if it arrives behind another one, and makes at most two further calls.
        assert!(store.calls() <= 6 * 3, "{}", store.calls());
        assert_eq!(limiter.wait_stats().admitted, 4);
    });
}

#[test]
fn other_instances_delay_the_first_call() {
    run_on_paused_time(async {
        let clock = TokioClock::new();
        let store = RemoteStore::new(clock);
        let instance = || Limiter::with_store("limiter", exact(&["1/s"]), store.clone()).unwrap();
        let (first, second) = (instance(), instance());
        let admitted = async |limiter: &Limiter<RemoteStore>, at| {
            sleep(ms(at)).await;
            let decision = limiter.check_async(Check::new("key").max_wait(ms(10_000))).await;
            assert!(decision.is_allowed());
            clock.elapsed_ms()
        };
        let (a, b, c, d) = tokio::join!(
            admitted(&first, 0),
            admitted(&first, 100),
            admitted(&second, 150),
            admitted(&second, 200)
        );
        let mut times = [a, b, c, d];
        assert!(c < d, "in order within an instance");
        times.sort_unstable();
        for pair in times.windows(2) {
            assert!((1_000..1_010).contains(&(pair[1] - pair[0])), "{times:?}");
        }
        assert!(store.calls() < 30, "{}", store.calls());
    });
}

/// The futures can be spawned on a runtime with several threads, and dropped at any time.
#[test]
fn dropped_calls_on_several_threads_leave_no_waiter() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(4).enable_time().build().unwrap();
    runtime.block_on(async {
        let limiter: &'static _ =
            Box::leak(Box::new(Limiter::new(["20/10ms", "200/100ms"]).unwrap()));
        let mut calls = JoinSet::new();
        for nth in 0..600_u64 {
            calls.spawn(async move {
                let key = nth % 3;
                match nth % 4 {
                    0 => {
                        let dropped = limiter.wait_async(Check::new(&key).cost(5));
                        let _ = tokio::time::timeout(ms(nth % 17), dropped).await;
                    }
                    1 => drop(
                        limiter.check_async(Check::new(&key).cost(2).max_wait(ms(nth % 30))).await,
                    ),
                    _ => drop(limiter.wait_async(&key).await.unwrap()),
                }
            });
        }
        calls.join_all().await;
        assert_eq!(limiter.wait_stats().waiting, 0);
    });
}

//! Calls that share some of their limits.

use slidegate::{Descriptor, Gate, MemoryStore, Policy, Request};
use tokio::time::sleep;

use crate::wait::fixture::{TokioClock, ms, run_on_paused_time};

const POLICY: &str = "
defaults: { algorithm: sliding_log }
rules:
  - { name: global, limits: [3/s] }
  - { name: per-tenant, per: [tenant], limits: [1/400ms] }
";

struct Fixture {
    clock: TokioClock,
    gate: Gate<MemoryStore<TokioClock>>,
}

impl Fixture {
    fn new(policy: &str) -> Self {
        let clock = TokioClock::new();
        let policy = Policy::from_yaml(policy).unwrap();
        Self { clock, gate: Gate::new(policy, MemoryStore::with_clock(clock, 1_000)) }
    }

    /// Waits for a request of a tenant that arrives at `at`. Returns the time of its admission, or `None`.
    async fn admission_ms(&self, tenant: &str, at: u64, max_wait: u64) -> Option<u64> {
        sleep(ms(at)).await;
        let request = Request::new("default", Descriptor::new([("tenant", tenant)]));
        let decision = self.gate.check_async(&request.clone().with_max_wait(ms(max_wait))).await;
        decision.is_allowed().then(|| self.clock.elapsed_ms())
    }
}

#[test]
fn call_waits_only_for_calls_of_denying_limit() {
    run_on_paused_time(async {
        let fixture = Fixture::new(POLICY);
        // The second call of `a` waits for its tenant's limit, and does not delay `b`, with which it shares `global`.
        let (first, second, other) = tokio::join!(
            fixture.admission_ms("a", 0, 0),
            fixture.admission_ms("a", 1, 2_000),
            fixture.admission_ms("b", 2, 2_000),
        );
        assert_eq!((first, second, other), (Some(0), Some(400), Some(2)));
    });
}

#[test]
fn calls_of_shared_limit_are_admitted_in_order_of_arrival() {
    run_on_paused_time(async {
        let fixture = Fixture::new(POLICY);
        let admissions = tokio::join!(
            fixture.admission_ms("a", 0, 0),
            fixture.admission_ms("b", 10, 0),
            fixture.admission_ms("c", 20, 0),
            fixture.admission_ms("d", 30, 5_000),
            fixture.admission_ms("e", 40, 5_000),
            fixture.admission_ms("d", 50, 5_000),
        );
        let expected = (Some(0), Some(10), Some(20), Some(1_000), Some(1_010), Some(1_400));
        assert_eq!(admissions, expected);
    });
}

#[test]
fn call_keeps_its_turn_when_another_limit_denies_it() {
    run_on_paused_time(async {
        let fixture = Fixture::new(POLICY);
        // At 400, the second call of `a` fits its tenant's limit, but `global` is used up until 1000. The third call of
        // `a` arrives later, and `e` before it.
        let admissions = tokio::join!(
            fixture.admission_ms("a", 0, 0),
            fixture.admission_ms("a", 100, 5_000),
            fixture.admission_ms("b", 200, 0),
            fixture.admission_ms("c", 300, 0),
            fixture.admission_ms("e", 500, 5_000),
            fixture.admission_ms("a", 600, 5_000),
        );
        let expected = (Some(0), Some(1_000), Some(200), Some(300), Some(1_200), Some(1_400));
        assert_eq!(admissions, expected);
        assert_eq!(fixture.gate.stats().waits.waiting, 0);
    });
}

#[test]
fn joint_limits_wait_for_first_that_fits() {
    run_on_paused_time(async {
        let fixture = Fixture::new(
            "
defaults: { algorithm: sliding_log }
rules:
  - { name: slow, limits: [1/s], mode: jointly }
  - { name: fast, limits: [1/300ms], mode: jointly }
",
        );
        let admissions = tokio::join!(
            fixture.admission_ms("a", 0, 0),
            fixture.admission_ms("a", 10, 5_000),
            fixture.admission_ms("a", 20, 5_000),
        );
        assert_eq!(admissions, (Some(0), Some(300), Some(600)));
    });
}

//! Tests of settling, which corrects the estimated charge of a request to its actual cost.

use proptest::prelude::*;
use slidegate::testkit::faulty::{Faults, FaultyStore};
use slidegate::{
    Check, Decision, Descriptor, Gate, Limiter, ManualClock, MemoryStore, Policy, Request, Store,
};

const SETTLE_POLICY: &str = "
rules:
  - { name: tokens, per: [user], limits: [100/min, 1000/h] }
  - { name: watched, per: [user], limits: [10/min], mode: observe }
  - { name: spent, per: [user], limits: [50/min], charge: always }
";

fn new_request(user: &str, cost: u64) -> Request<'_> {
    Request::new("default", Descriptor::new([("user", user)]).cost(cost))
}

/// Charges `estimate` units to a user, settles the charge to `actual` units, and returns the remaining units of each
/// limit.
async fn remaining_units_after_settlement<S: Store>(
    gate: &Gate<S>,
    user: &str,
    estimate: u64,
    actual: u64,
) -> Vec<u64> {
    let request = new_request(user, estimate);
    let decision = gate.check_async(&request).await;
    gate.settle_async(&decision, actual).await.unwrap();
    remaining_units(gate, user).await
}

async fn remaining_units<S: Store>(gate: &Gate<S>, user: &str) -> Vec<u64> {
    let decision = gate.peek_async(&new_request(user, 0)).await;
    decision.limits().map(|status| status.remaining()).collect()
}

fn new_policy() -> Policy {
    Policy::from_yaml(SETTLE_POLICY).unwrap()
}

fn new_runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

#[tokio::test]
async fn settlement_reverts_excess_and_charges_shortfall() {
    let clock = ManualClock::default();
    let store = FaultyStore::new(&clock, 1, Faults::default(), 1);
    let gate = Gate::new(new_policy(), store);
    assert_eq!(remaining_units_after_settlement(&gate, "equal", 8, 8).await, [92, 992, 2, 42]);
    assert_eq!(remaining_units_after_settlement(&gate, "less", 8, 3).await, [97, 997, 7, 47]);
    assert_eq!(remaining_units_after_settlement(&gate, "nothing", 8, 0).await, [100, 1000, 10, 50]);
    assert_eq!(remaining_units_after_settlement(&gate, "more", 8, 9).await, [91, 991, 1, 41]);
    assert_eq!(remaining_units_after_settlement(&gate, "a debt", 8, 300).await, [0, 700, 0, 0]);
    assert!(!gate.check_async(&new_request("a debt", 1)).await.is_allowed());
    // A rule in observe mode counts the requests that it would have admitted.
    assert_eq!(remaining_units_after_settlement(&gate, "watched", 20, 21).await, [79, 979, 10, 29]);
    assert_eq!(
        remaining_units_after_settlement(&gate, "estimate of 0", 0, 7).await,
        [93, 993, 3, 43]
    );
}

#[tokio::test]
async fn settlement_of_denied_request_charges_nothing() {
    let gate = Gate::new(new_policy(), MemoryStore::new());
    // Only the rule with `charge: always` is charged.
    assert_eq!(remaining_units_after_settlement(&gate, "ann", 101, 500).await, [100, 1000, 10, 0]);
}

#[tokio::test]
async fn outage_charge_is_settled_in_local_counts() {
    let down = Faults { unavailable: 100, ..Faults::default() };
    let gate = Gate::new(new_policy(), FaultyStore::new(&ManualClock::default(), 1, down, 1));
    assert_eq!(remaining_units_after_settlement(&gate, "ann", 8, 3).await, [97, 997, 7, 47]);
    assert_eq!(remaining_units_after_settlement(&gate, "bob", 8, 300).await, [0, 700, 0, 0]);
}

proptest! {
    #[test]
    fn settled_charge_equals_charge_of_actual_cost(estimate in 0_u64..200, actual in 0_u64..300) {
        let limiter = Limiter::with_store("limiter", ["200/min", "250/h"], MemoryStore::with_clock(ManualClock::default(), 100)).unwrap();
        let known = limiter.check(Check::new("known").cost(actual));
        let estimated = limiter.check(Check::new("estimated").cost(estimate));
        limiter.settle(&estimated, actual);
        let outcomes = |decision: &Decision<'_>| decision.limits().map(|status| status.outcome()).collect::<Vec<_>>();
        let peek = |key| outcomes(&limiter.peek(Check::new(key).cost(0)));
        if known.is_allowed() {
            prop_assert_eq!(peek("estimated"), peek("known"));
        } else {
            let remaining = peek("estimated").iter().map(|outcome| outcome.remaining()).min();
            prop_assert_eq!(remaining, Some(0));
        }
        let settled = new_runtime().block_on(async {
            let decision = limiter.check_async(Check::new("estimated").cost(estimate)).await;
            limiter.settle_async(&decision, actual).await.unwrap();
            limiter.peek_async(Check::new("estimated").cost(0)).await
        });
        prop_assert_eq!(outcomes(&settled), peek("estimated"));
    }
}

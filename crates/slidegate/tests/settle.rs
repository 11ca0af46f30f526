//! What a request has cost is what it was charged, whatever was charged at first.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

use proptest::prelude::*;
use slidegate::testkit::faulty::{Faults, FaultyStore};
use slidegate::{
    Decision, Descriptor, Gate, Limiter, ManualClock, MemoryStore, Policy, Request, Store,
};

const POLICY: &str = "
rules:
  - { name: tokens, per: [user], limits: [100/min, 1000/h] }
  - { name: watched, per: [user], limits: [10/min], mode: observe }
  - { name: spent, per: [user], limits: [50/min], charge: always }
";

fn request(user: &str, cost: u64) -> Request<'_> {
    Request::new("default", Descriptor::new([("user", user)]).cost(cost))
}

/// Units left in each limit, of one who has asked for `asked` units and then spent `spent`.
async fn left<S: Store>(gate: &Gate<S>, user: &str, asked: u64, spent: u64) -> Vec<u64> {
    let request = request(user, asked);
    let ruling = gate.check(&request).await;
    gate.settle(&request, ruling.decision(), spent).await.unwrap();
    remaining(gate, user).await
}

async fn remaining<S: Store>(gate: &Gate<S>, user: &str) -> Vec<u64> {
    let ruling = gate.peek(&request(user, 0)).await;
    ruling.decision().outcomes().iter().map(|outcome| outcome.remaining()).collect()
}

fn policy() -> Policy {
    Policy::from_yaml(POLICY).unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

#[tokio::test]
async fn what_was_too_much_is_given_back_and_what_lacks_is_charged_even_beyond_max() {
    let clock = ManualClock::default();
    let store = FaultyStore::new(&clock, 1, Faults::default(), 1);
    let gate = Gate::new(policy(), store);
    assert_eq!(left(&gate, "as much", 8, 8).await, [92, 992, 2, 42]);
    assert_eq!(left(&gate, "less", 8, 3).await, [97, 997, 7, 47]);
    assert_eq!(left(&gate, "nothing", 8, 0).await, [100, 1000, 10, 50]);
    assert_eq!(left(&gate, "more", 8, 9).await, [91, 991, 1, 41]);
    assert_eq!(left(&gate, "a debt", 8, 300).await, [0, 700, 0, 0]);
    assert!(!gate.check(&request("a debt", 1)).await.decision().is_allowed());
    // A rule that watches counts whom it would have admitted.
    assert_eq!(left(&gate, "watched", 20, 21).await, [79, 979, 10, 29]);
    assert_eq!(left(&gate, "asked only", 0, 7).await, [93, 993, 3, 43]);
}

#[tokio::test]
async fn what_was_denied_has_cost_nothing() {
    let gate = Gate::new(policy(), MemoryStore::new());
    // The overdraft is charged: it said so itself.
    assert_eq!(left(&gate, "ann", 101, 500).await, [100, 1000, 10, 0]);
}

#[tokio::test]
async fn what_was_charged_without_the_store_is_settled_where_it_was_charged() {
    let lost = Faults { unavailable: 100, ..Faults::default() };
    let gate = Gate::new(policy(), FaultyStore::new(&ManualClock::default(), 1, lost, 1));
    assert_eq!(left(&gate, "ann", 8, 3).await, [97, 997, 7, 47]);
    assert_eq!(left(&gate, "bob", 8, 300).await, [0, 700, 0, 0]);
}

proptest! {
    #[test]
    fn it_is_as_if_the_true_cost_had_been_known(asked in 0_u64..200, spent in 0_u64..300) {
        let limiter = Limiter::with_store(["200/min", "250/h"], MemoryStore::with_clock(ManualClock::default(), 100)).unwrap();
        let known = limiter.check_cost("known", spent);
        let guessed = limiter.check_cost("guessed", asked);
        limiter.settle("guessed", guessed.decision(), spent);
        let left = |key| limiter.peek(key, 0).decision().outcomes().to_vec();
        if known.is_allowed() {
            prop_assert_eq!(left("guessed"), left("known"));
        } else {
            prop_assert_eq!(left("guessed").iter().map(|one| one.remaining()).min(), Some(0));
        }
        let written: Decision = runtime().block_on(async {
            let decision: Decision = limiter.try_check("guessed", asked).await.unwrap().into();
            limiter.try_settle("guessed", &decision, spent).await.unwrap();
            limiter.try_peek("guessed", 0).await.unwrap().into()
        });
        prop_assert_eq!(written.outcomes(), left("guessed"));
    }
}

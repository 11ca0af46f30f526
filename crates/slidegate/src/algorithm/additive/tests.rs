use proptest::prelude::*;

use super::*;
use crate::algorithm::AnyAdditive;
use crate::limit::Limit;

/// Adds two states: in the returned state, each time bucket has the sum of the units that this bucket has in `left`
/// and in `right`.
fn sum_states<C: AdditiveCounter>(counter: C, left: &C::State, right: &C::State) -> C::State {
    let last = counter.last_charged_at(left).max(counter.last_charged_at(right));
    counter.state_from_buckets(last, |bucket| {
        counter.units(left, bucket) + counter.units(right, bucket)
    })
}

/// Checks that the sum of two states equals a single state with the same charges. Every step makes the same charge
/// in the single state and in one of the two other states. Times never decrease, since a time before the last
/// charge of a state counts as the time of that charge.
fn assert_sum_of_two_states_equals_one_state<C: AdditiveCounter>(
    counter: C,
    steps: &[(u64, u64, bool)],
) {
    let (mut all, mut parts) = (C::State::default(), [C::State::default(), C::State::default()]);
    let mut now_us = 1_700_000_000_000_000;
    for &(elapsed_us, cost, is_second) in steps {
        now_us += elapsed_us;
        let now = Timestamp::from_micros(now_us);
        counter.charge(&mut all, now, cost);
        counter.charge(&mut parts[usize::from(is_second)], now, cost);
        let sum = sum_states(counter, &parts[0], &parts[1]);
        assert_eq!(counter.used(&sum, now), counter.used(&all, now));
        for cost in [1, 3] {
            assert_eq!(counter.peek(&sum, now, cost), counter.peek(&all, now, cost));
        }
        let later = now.after_us(elapsed_us);
        assert_eq!(counter.peek(&sum, later, 1), counter.peek(&all, later, 1));
        assert_eq!(counter.units(&all, counter.layout().bucket(now) + 1), 0, "future bucket");
    }
}

proptest! {
    #[test]
    fn sum_of_two_states_equals_one_state_with_all_charges(
        steps in prop::collection::vec((0..400_000_u64, 1..5_u64, any::<bool>()), 1..80),
    ) {
        let quota = "10/s".parse().unwrap();
        for algorithm in crate::Algorithm::ALL {
            match Limit::new(quota, algorithm).unwrap().additive() {
                Some(AnyAdditive::SlidingCounter(counter)) => {
                    assert_sum_of_two_states_equals_one_state(counter, &steps);
                }
                Some(AnyAdditive::SlidingBuckets(counter)) => {
                    assert_sum_of_two_states_equals_one_state(counter, &steps);
                }
                Some(AnyAdditive::FixedWindow(counter)) => {
                    assert_sum_of_two_states_equals_one_state(counter, &steps);
                }
                None => prop_assert!(matches!(algorithm.name(), "sliding_log" | "token_bucket")),
            }
        }
    }
}

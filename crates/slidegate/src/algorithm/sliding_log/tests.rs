use proptest::prelude::*;

use super::*;

fn remove_oldest_units_from_list(list: &mut Vec<(u64, u32)>, units: u64) {
    for _ in 0..units {
        match list.first_mut() {
            Some((_, cost)) if *cost > 1 => *cost -= 1,
            Some(_) => drop(list.remove(0)),
            None => {}
        }
    }
}

proptest! {
    #[test]
    fn decision_in_place_keeps_capacity(
        steps in prop::collection::vec((prop_oneof![4 => 0..2_u64, 1 => 0..900_000_u64], 1..5_u64), 1..300),
    ) {
        let counter = SlidingLog::new(&"40/s".parse().unwrap());
        let (mut state, mut now_us, mut in_place) = (State::default(), 1_700_000_000_000_000, 0);
        for (step_us, cost) in steps {
            now_us += step_us;
            let now = Timestamp::from_micros(now_us);
            let (mut expected, before) = (state.clone(), state.clone());
            let outcome = counter.peek(&state, now, cost);
            let result = counter.charge_in_place_if_fits(&mut state, now, cost);
            match result {
                Some(Ok(effect)) => {
                    prop_assert_eq!(effect, counter.charge(&mut expected, now, cost));
                    prop_assert_eq!(state.heap_bytes(), before.heap_bytes());
                    in_place += 1;
                }
                Some(Err(denied)) => prop_assert_eq!(denied, outcome),
                None => {
                    prop_assert!(outcome.fits() && state == before);
                    counter.charge(&mut expected, now, cost);
                    state = expected.clone();
                }
            }
            prop_assert!(state == expected);
        }
        prop_assert!(in_place > 0 || state.words.len() < 20);
    }

    /// Applies the same pushes and removals to a log and to a plain list of ticks and costs, and compares both.
    #[test]
    fn sliding_log_behaves_like_list_of_charges(steps in prop::collection::vec((0..6, 1..50_u64, 1..4_u32), 1..400)) {
        let (mut state, mut list) = (State { last: 1 << 33, ..State::default() }, Vec::new());
        for (operation, ticks, cost) in steps {
            match operation {
                4 => {
                    state.remove_oldest_units(ticks / 4);
                    remove_oldest_units_from_list(&mut list, ticks / 4);
                }
                0 => {
                    let start = list.first().map_or(0, |&(tick, _)| tick + ticks * 20);
                    state.remove_charges_before(start);
                    list.retain(|&(tick, _)| tick >= start);
                }
                1 => {
                    let newest = state.pop_newest_charge();
                    prop_assert_eq!(newest, list.pop());
                }
                _ => {
                    state.last += ticks;
                    let tick = state.last + 1;
                    state.push_charge(tick, cost, usize::MAX);
                    list.push((tick, cost));
                }
            }
            prop_assert_eq!(state.total, list.iter().map(|&(_, cost)| u64::from(cost)).sum::<u64>());
            prop_assert_eq!(state.tick_of_newest_charge(), list.last().map(|&(tick, _)| tick));
            let mut units = 0;
            for &(tick, cost) in &list {
                prop_assert_eq!(state.sum_charges_before(tick).1, units);
                units += u64::from(cost);
                prop_assert_eq!(state.tick_of_last_charge_that_must_expire(0, units), tick);
            }
        }
    }
}

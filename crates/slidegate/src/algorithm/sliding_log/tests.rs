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

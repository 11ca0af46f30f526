use proptest::prelude::*;

use super::*;
use crate::layout::HeapSize;

const START_US: u64 = 1_700_000_000_000_000;

/// An operation on a state, some time after the operation before it.
#[derive(Clone, Copy, Debug)]
enum Operation {
    ChargeIfFits(u64),
    Charge(u64),
    /// Reverts the charge with this index, modulo the number of charges.
    Revert(usize),
    /// Charges units by a clock that is behind by this number of microseconds.
    ChargeBehind(u64, u64),
}

fn operations(max_step_us: u64) -> impl Strategy<Value = Vec<(u64, Operation)>> {
    let operation = prop_oneof![
        8 => (1..4_u64).prop_map(Operation::ChargeIfFits),
        1 => (1..200_u64).prop_map(Operation::ChargeIfFits),
        1 => (1..40_u64).prop_map(Operation::Charge),
        3 => any::<usize>().prop_map(Operation::Revert),
        1 => (1..4_u64, 0..max_step_us).prop_map(|(cost, us)| Operation::ChargeBehind(cost, us)),
    ];
    let step = prop_oneof![2 => Just(0), 6 => 0..max_step_us, 1 => 0..40 * max_step_us];
    prop::collection::vec((step, operation), 1..600)
}

/// The charges of a key, each with its time, the time at which it is counted, and its units.
#[derive(Default)]
struct Charges(Vec<(u64, Timestamp, u64)>);

impl Charges {
    /// Returns the units that were charged after `start_us`.
    fn units_after(&self, start_us: u64) -> u64 {
        self.0.iter().filter(|(at, ..)| *at > start_us).map(|(.., units)| units).sum()
    }
}

fn used_units(counter: &SlidingWindow, state: &State, now: Timestamp) -> u64 {
    state.total_units() - state.entries_expired_before(counter.window_start_tick(now)).units
}

/// The operations so far that weaken the promises.
#[derive(Clone, Copy, Default)]
struct Exceptions {
    /// More than max units were counted. There may be more entries.
    was_above_max: bool,
    /// Units above twice max were charged. More of them may be counted too long.
    has_debts: bool,
    /// A charge was reverted. The newest units of an entry may be missing, so all of its units may be counted too long.
    has_reverts: bool,
}

/// Checks a state against all charges: no unit leaves before its window is over, and none later than allowed.
fn assert_units_are_counted_for_a_window(
    counter: &SlidingWindow,
    state: &State,
    charges: &Charges,
    now_us: u64,
    exceptions: Exceptions,
) {
    let used = used_units(counter, state, Timestamp::from_micros(now_us));
    let window_us = counter.quota().window_us();
    let exact = charges.units_after(now_us - window_us);
    assert!(used >= exact, "{used} units counted, {exact} charged in the window");
    let tick_us = counter.tick_resolution.tick_us();
    let late_us = window_us.div_ceil(counter.resolution.into()) + 2 * tick_us;
    let longest = charges.units_after(now_us - window_us - late_us);
    assert!(used <= longest, "{used} units counted, {longest} charged until {late_us} us ago");
    if !exceptions.has_debts {
        let newest_units = u64::from(!exceptions.has_reverts);
        let late_units = counter.max_entry_units().saturating_sub(newest_units);
        assert!(used <= charges.units_after(now_us - window_us - tick_us) + late_units);
    }
}

/// Checks that a hit of `cost` units fits after exactly `retry_after`.
fn assert_retry_after_is_exact(counter: &SlidingWindow, state: &State, now: Timestamp, cost: u64) {
    let outcome = counter.peek(state, now, cost);
    let retry_after_us = outcome.retry_after_us();
    if outcome.fits() || cost > counter.max() {
        assert_eq!(retry_after_us, if outcome.fits() { 0 } else { u64::MAX });
        return;
    }
    assert!(counter.peek(state, now.after_us(retry_after_us), cost).fits());
    assert!(!counter.peek(state, now.after_us(retry_after_us - 1), cost).fits());
}

fn run_operations(counter: &SlidingWindow, operations: &[(u64, Operation)]) {
    let (mut state, mut charges, mut now_us) = (State::default(), Charges::default(), START_US);
    let mut exceptions = Exceptions::default();
    for &(step_us, operation) in operations {
        now_us += step_us;
        let now = Timestamp::from_micros(now_us);
        match operation {
            Operation::ChargeIfFits(cost) => {
                let before = state.clone();
                let outcome = counter.peek(&before, now, cost);
                match counter.charge_if_fits(&mut state, now, cost) {
                    Ok(effect) => {
                        let mut charged = before;
                        assert!(outcome.fits());
                        assert_eq!(counter.charge(&mut charged, now, cost), effect);
                        assert_eq!(charged, state);
                        charges.0.push((now_us, effect.charged_at, cost));
                    }
                    Err(denied) => assert_eq!((denied, &before), (outcome, &state)),
                }
            }
            Operation::Charge(cost) => {
                let effect = counter.charge(&mut state, now, cost);
                charges.0.push((now_us, effect.charged_at, cost));
                let used = used_units(counter, &state, now);
                exceptions.was_above_max |= used > counter.max();
                exceptions.has_debts |= used > 2 * counter.max();
            }
            Operation::ChargeBehind(cost, behind_us) => {
                let behind = Timestamp::from_micros(now_us - behind_us);
                let effect = counter.charge(&mut state, behind, cost);
                // Counted at the time of the newest charge, if that is later.
                charges.0.push((
                    effect.charged_at.as_micros().min(now_us),
                    effect.charged_at,
                    cost,
                ));
                // Units that have left the window by now are still in use by the clock that is behind.
                let used = used_units(counter, &state, behind);
                exceptions.was_above_max |= used > counter.max();
                exceptions.has_debts |= used > 2 * counter.max();
            }
            Operation::Revert(nth) if !charges.0.is_empty() => {
                let (at_us, charged_at, units) = charges.0.swap_remove(nth % charges.0.len());
                let before = used_units(counter, &state, now);
                counter.revert(&mut state, charged_at, units);
                exceptions.has_reverts = true;
                let is_in_window = at_us > now_us - counter.quota().window_us();
                let freed = before - used_units(counter, &state, now);
                assert!(freed <= units, "{freed} of {units} units freed");
                assert!(freed == units || !is_in_window, "{freed} of {units}");
            }
            Operation::Revert(_) => {}
        }
        assert_units_are_counted_for_a_window(counter, &state, &charges, now_us, exceptions);
        for cost in [1, 2, counter.max()] {
            assert_retry_after_is_exact(counter, &state, now, cost);
        }
        let factor = if exceptions.was_above_max { 6 } else { 4 };
        let resolution = usize::from(counter.resolution);
        let bound = factor * resolution + 3 + resolution / MERGE_ATTEMPTS_PER_RESOLUTION;
        assert!(state.len() <= bound, "{} entries", state.len());
        assert!(state.heap_bytes() <= counter.max_heap_bytes());
    }
}

fn new_counter(quota: &str, resolution: u16) -> SlidingWindow {
    SlidingWindow::new(&quota.parse().unwrap(), resolution)
}

proptest! {
    #[test]
    fn units_are_counted_for_a_window_and_little_longer(
        operations in operations(40_000),
        max in 1..400_u64,
        resolution in 8..40_u16,
    ) {
        run_operations(&new_counter(&format!("{max}/s"), resolution), &operations);
    }

    #[test]
    fn units_are_counted_for_a_window_with_coarse_ticks(
        operations in operations(86_400_000_000 / 50),
        max in 1..400_u64,
    ) {
        run_operations(&new_counter(&format!("{max}/d"), 32), &operations);
    }

    /// With a resolution of 8, these windows have the most ticks that the bits of an entry allow.
    #[test]
    fn units_are_counted_for_a_window_with_most_ticks(
        operations in operations(33_000_000 / 20),
        max in 1..100_u64,
    ) {
        run_operations(&new_counter(&format!("{max}/33s"), 8), &operations);
    }
}

/// Applies an operation to a state. Costs are multiplied by 2^`shift`.
fn apply(
    counter: &SlidingWindow,
    state: &mut State,
    charges: &mut Vec<(Timestamp, u64)>,
    (now, operation): (Timestamp, Operation),
    shift: u32,
) {
    match operation {
        Operation::ChargeIfFits(cost) => {
            if let Ok(effect) = counter.charge_if_fits(state, now, cost << shift) {
                charges.push((effect.charged_at, cost));
            }
        }
        Operation::Charge(cost) => {
            charges.push((counter.charge(state, now, cost << shift).charged_at, cost));
        }
        Operation::Revert(nth) if !charges.is_empty() => {
            let (charged_at, cost) = charges.swap_remove(nth % charges.len());
            counter.revert(state, charged_at, cost << shift);
        }
        Operation::Revert(_) => {}
        Operation::ChargeBehind(cost, _) => counter.refund(state, now, cost << shift),
    }
}

proptest! {
    /// A log with more than 2^30 units has another form. With the smaller shift, logs change between the forms.
    #[test]
    fn large_log_equals_scaled_small_log(
        operations in operations(40_000),
        shift in prop_oneof![Just(28), Just(33)],
    ) {
        let (small, large) =
            (new_counter("40/s", 8), new_counter(&format!("{}/s", 40_u64 << shift), 8));
        let (mut small_state, mut large_state) = (State::default(), State::default());
        let (mut small_charges, mut large_charges) = (Vec::new(), Vec::new());
        let mut now_us = START_US;
        for (step_us, operation) in operations {
            now_us += step_us;
            let now = Timestamp::from_micros(now_us);
            apply(&small, &mut small_state, &mut small_charges, (now, operation), 0);
            apply(&large, &mut large_state, &mut large_charges, (now, operation), shift);
            let scaled = |entry: Entry| Entry { units: entry.units << shift, ..entry };
            let small_entries: Vec<_> = small_state.iter().map(scaled).collect();
            prop_assert_eq!(large_state.iter().collect::<Vec<_>>(), small_entries);
            prop_assert_eq!(large_state.oldest_entry_start_tick(), small_state.oldest_entry_start_tick());
            let span = |state: &State| state.newest().map(|newest| newest.span);
            prop_assert_eq!(span(&large_state), span(&small_state));
            let (small_outcome, large_outcome) =
                (small.peek(&small_state, now, 3), large.peek(&large_state, now, 3 << shift));
            prop_assert_eq!(large_outcome.free(), small_outcome.free() << shift);
            prop_assert_eq!(large_outcome.retry_after(), small_outcome.retry_after());
            prop_assert_eq!(large_outcome.reset_after(), small_outcome.reset_after());
            prop_assert!(large_state.heap_bytes() <= large.max_heap_bytes());
        }
    }
}

#[test]
fn entry_that_remains_alone_keeps_its_first_charge() {
    // The window has 32.4 million ticks of a millisecond. The last charge is more than 2^26 ticks after the first one.
    let counter = new_counter("1000/9h", 8);
    let (hour_us, mut state) = (3_600_000_000_f64, State::default());
    let at = |hours: f64| Timestamp::from_micros(START_US + (hours * hour_us) as u64);
    counter.charge(&mut state, at(0.0), 1);
    let second = counter.charge(&mut state, at(8.99), 1);
    counter.charge(&mut state, at(8.99 + 1.1), 1);
    let third = counter.charge(&mut state, at(8.99 + 1.1 + 8.98), 7);
    for charge in [second, third] {
        let before = used_units(&counter, &state, at(19.08));
        counter.revert(&mut state, charge.charged_at, 1);
        assert_eq!(used_units(&counter, &state, at(19.08)), before - 1);
    }
}

#[test]
fn span_of_debts_is_bounded() {
    let counter = new_counter("10/s", 8);
    let mut state = State::default();
    for nth in 0..100_000 {
        let now = Timestamp::from_micros(START_US + nth * 70_000);
        counter.charge(&mut state, now, 3);
        let newest = state.newest().unwrap();
        assert!(newest.ticks_from_first_charge(newest.entry.tick) < 125_000, "charge {nth}");
        assert!(used_units(&counter, &state, now) <= 3 * 17, "charge {nth}");
    }
}

#[test]
fn count_is_exact_if_max_is_at_most_resolution() {
    let counter = new_counter("32/s", 32);
    let mut state = State::default();
    for nth in 0..32 {
        let now = Timestamp::from_micros(START_US + nth);
        assert!(counter.charge_if_fits(&mut state, now, 1).is_ok());
    }
    // Each unit leaves exactly one window after its charge.
    for nth in 0..32 {
        let now = Timestamp::from_micros(START_US + 1_000_000 + nth);
        assert_eq!(counter.peek(&state, now, 1).remaining(), nth + 1);
    }
}

#[test]
fn entries_of_alternating_costs_are_merged() {
    // Entries close alternately by units and by time, so each has few units.
    let counter = new_counter("1000/s", 8);
    let mut state = State::default();
    let mut longest = 0;
    for nth in 0..20_000 {
        let now = Timestamp::from_micros(START_US + nth * 1_731);
        let charged_at = counter.charge(&mut state, now, if nth % 2 == 0 { 124 } else { 3 });
        // Reverts leave small entries.
        counter.revert(&mut state, charged_at.charged_at, if nth % 2 == 0 { 123 } else { 2 });
        longest = longest.max(state.len());
    }
    assert!((20..=33).contains(&longest), "{longest} entries");
}

#[test]
fn state_takes_16_bytes_and_rings_fill_their_memory_blocks() {
    assert_eq!(size_of::<State>(), 16);
    let counter = new_counter("1024/s", 32);
    let mut state = State::default();
    let mut bytes = Vec::new();
    for nth in 0..73 {
        let now = Timestamp::from_micros(START_US + nth * 10);
        counter.charge(&mut state, now, 20);
        bytes.push(state.heap_bytes());
    }
    assert_eq!([bytes[0], bytes[1], bytes[7], bytes[32]], [0, 64, 96, 272]);
}

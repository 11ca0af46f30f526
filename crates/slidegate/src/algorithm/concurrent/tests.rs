use std::time::Duration;

use proptest::prelude::*;

use super::*;

const TTL_US: u64 = 1_000;

fn new_counter(max: u64) -> Concurrent {
    Concurrent::new(&Quota::new(max, Duration::from_micros(TTL_US)).unwrap())
}

/// A permit of the oracle, which keeps all permits forever.
#[derive(Clone, Copy, Debug)]
struct OraclePermit {
    id: Timestamp,
    expires_us: u64,
    units: u64,
    is_released: bool,
}

impl OraclePermit {
    fn is_live(&self, now_us: u64) -> bool {
        !self.is_released && now_us < self.expires_us
    }
}

fn live_units(permits: &[OraclePermit], now_us: u64) -> u64 {
    permits.iter().filter(|permit| permit.is_live(now_us)).map(|permit| permit.units).sum()
}

proptest! {
    /// Compares random charges, releases and renewals with an oracle that counts all permits one by one.
    #[test]
    fn live_permits_never_exceed_max(
        max in 1..6_u64,
        steps in prop::collection::vec((0..8_u8, 0..TTL_US / 2, 0..100_usize, 1..4_u64), 1..300),
    ) {
        let (counter, mut state) = (new_counter(max), State::default());
        let mut permits: Vec<OraclePermit> = Vec::new();
        let mut now_us = 1_000_000;
        for (step, wait_us, choice, cost) in steps {
            let now = Timestamp::from_micros(now_us);
            let live = live_units(&permits, now_us);
            prop_assert!(live <= max, "{} live permits of {}", live, max);
            let outcome = counter.peek(&state, now, cost);
            prop_assert_eq!(outcome.remaining(), max - live);
            prop_assert_eq!(outcome.fits(), live + cost <= max);
            let index = choice.checked_rem(permits.len());
            match (step, index) {
                (0..=2, _) => {
                    let charged = counter.charge_if_fits(&mut state, now, cost);
                    prop_assert_eq!(charged.is_ok(), live + cost <= max);
                    if let Ok(effect) = charged {
                        let id = effect.charged_at;
                        prop_assert!(permits.iter().all(|permit| permit.id != id), "ids are unique");
                        let expires_us = now_us + TTL_US;
                        permits.push(OraclePermit { id, expires_us, units: cost, is_released: false });
                    }
                }
                (3..=4, Some(index)) => {
                    let permit = &mut permits[index];
                    let was_live = permit.is_live(now_us);
                    prop_assert_eq!(counter.release(&mut state, now, permit.id), was_live);
                    permit.is_released = true;
                }
                (5..=6, Some(index)) => {
                    let permit = &mut permits[index];
                    let was_live = permit.is_live(now_us);
                    prop_assert_eq!(counter.renew(&mut state, now, permit.id), was_live);
                    if was_live {
                        permit.expires_us = now_us + TTL_US;
                    }
                }
                _ => now_us += wait_us,
            }
        }
        let silence = Timestamp::from_micros(now_us + TTL_US);
        prop_assert_eq!(counter.peek(&state, silence, 1).remaining(), max);
        prop_assert_eq!(counter.peek(&state, silence, 1).reset_after(), Duration::ZERO);
    }

    #[test]
    fn charges_without_check_never_exceed_max(costs in prop::collection::vec(0..5_u64, 1..40)) {
        let (counter, mut state) = (new_counter(7), State::default());
        let now = Timestamp::from_micros(1_000_000);
        let mut charged = 0;
        for cost in costs {
            let units = counter.chargeable_units(&state, now, cost);
            counter.charge(&mut state, now, units);
            charged += units;
            prop_assert!(charged <= 7);
            prop_assert_eq!(counter.peek(&state, now, 1).remaining(), 7 - charged);
        }
    }
}

#[test]
fn release_frees_only_once() {
    let (counter, mut state) = (new_counter(2), State::default());
    let now = Timestamp::from_micros(1_000_000);
    let first = counter.charge(&mut state, now, 1).charged_at;
    let second = counter.charge(&mut state, now, 1).charged_at;
    assert_ne!(first, second);
    assert!(counter.release(&mut state, now, first));
    assert!(!counter.release(&mut state, now, first));
    assert_eq!(counter.peek(&state, now, 1).remaining(), 1);
    // The released id is not used again, although no time has passed.
    let third = counter.charge(&mut state, now, 1).charged_at;
    assert!(third > second);
    assert!(!counter.release(&mut state, now, first));
    assert!(counter.release(&mut state, now, third));
}

#[test]
fn expired_permit_cannot_be_renewed() {
    let (counter, mut state) = (new_counter(1), State::default());
    let at = |us| Timestamp::from_micros(1_000_000 + us);
    let id = counter.charge(&mut state, at(0), 1).charged_at;
    assert!(counter.renew(&mut state, at(TTL_US - 1), id));
    assert!(!counter.peek(&state, at(2 * TTL_US - 2), 1).fits());
    assert!(counter.peek(&state, at(2 * TTL_US - 1), 1).fits());
    assert!(!counter.renew(&mut state, at(2 * TTL_US - 1), id));
    assert!(!counter.release(&mut state, at(2 * TTL_US - 1), id));
}

#[test]
fn expired_permit_is_not_renewed_after_clock_steps_back() {
    let (counter, mut state) = (new_counter(1), State::default());
    let at = |us| Timestamp::from_micros(1_000_000 + us);
    let first = counter.charge(&mut state, at(0), 1).charged_at;
    assert!(counter.charge_if_fits(&mut state, at(TTL_US), 1).is_ok());
    assert!(!counter.renew(&mut state, at(TTL_US - 1), first));
    assert!(!counter.peek(&state, at(TTL_US - 1), 1).fits());
}

#[test]
fn renewal_never_shortens_permit() {
    let long = Concurrent::new(&Quota::new(1, Duration::from_micros(9 * TTL_US)).unwrap());
    let mut state = State::default();
    let at = |us| Timestamp::from_micros(1_000_000 + us);
    let id = long.charge(&mut state, at(0), 1).charged_at;
    assert!(new_counter(1).renew(&mut state, at(1), id));
    assert!(!long.peek(&state, at(9 * TTL_US - 1), 1).fits());
    assert!(long.peek(&state, at(9 * TTL_US), 1).fits());
}

#[test]
fn lowered_max_counts_live_permits() {
    let mut state = State::default();
    let now = Timestamp::from_micros(1_000_000);
    let ids: Vec<_> =
        (0..3).map(|_| new_counter(3).charge(&mut state, now, 1).charged_at).collect();
    let lowered = new_counter(1);
    assert!(!lowered.peek(&state, now, 0).fits());
    for id in &ids[..2] {
        assert!(!lowered.peek(&state, now, 1).fits());
        assert!(lowered.release(&mut state, now, *id));
    }
    assert!(lowered.peek(&state, now, 0).fits() && !lowered.peek(&state, now, 1).fits());
    assert!(lowered.release(&mut state, now, ids[2]));
    assert!(lowered.peek(&state, now, 1).fits());
}

#[test]
fn refund_does_not_release_permits() {
    let (counter, mut state) = (new_counter(1), State::default());
    let now = Timestamp::from_micros(1_000_000);
    counter.charge(&mut state, now, 1);
    counter.refund(&mut state, now, 1);
    assert!(!counter.peek(&state, now, 1).fits());
}

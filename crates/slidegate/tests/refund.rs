//! Descriptors that give units back.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

use std::time::Duration;

use slidegate::headers::{self, Style};
use slidegate::testkit::block_on;
use slidegate::testkit::faulty::{Faults, FaultyStore};
use slidegate::{
    Algorithm, Descriptor, Gate, JitterSample, Limit, Limiter, ManualClock, MemoryStore, Policy,
    Request, Ruling, Timestamp,
};

const UP: Faults = Faults { unavailable: 0, lost_before: 0, lost_after: 0 };
const DOWN: Faults = Faults { unavailable: 100, ..UP };

/// One policy over a store in memory and over one that is awkward.
struct Both {
    memory: Gate<MemoryStore<ManualClock>>,
    faulty: Gate<FaultyStore>,
    faults: FaultyStore,
    clock: ManualClock,
}

/// A descriptor of one tenant.
fn of(tenant: &'static str, cost: u64) -> Descriptor<'static> {
    Descriptor::new([("tenant", tenant)]).cost(cost)
}

fn back(tenant: &'static str, cost: u64) -> Descriptor<'static> {
    of(tenant, cost).as_refund()
}

/// What is left of each limit, with whether it was given back to.
fn left(ruling: &Ruling) -> Vec<(bool, u64)> {
    ruling.limits().map(|one| (one.is_refund(), one.outcome.remaining())).collect()
}

impl Both {
    fn new(policy: &str) -> Self {
        let clock = ManualClock::at(Timestamp::from_secs(1_750_000_020));
        let policy = || Policy::from_yaml(policy).unwrap();
        let faults = FaultyStore::new(&clock, 3, UP, 1);
        Self {
            memory: Gate::new(policy(), MemoryStore::with_clock(clock.clone(), 1_000)),
            faulty: Gate::new(policy(), faults.clone()).with_local_clock(clock.clone()),
            faults,
            clock,
        }
    }

    fn check<const N: usize>(&self, descriptors: [Descriptor<'static>; N]) -> Ruling {
        let request = Request::of_descriptors("default", descriptors);
        let ruling = block_on(self.faulty.check(&request));
        assert_eq!(left(&ruling), left(&self.memory.check_now(&request)));
        ruling
    }

    fn peek<const N: usize>(&self, descriptors: [Descriptor<'static>; N]) -> Ruling {
        let request = Request::of_descriptors("default", descriptors);
        let ruling = block_on(self.faulty.peek(&request));
        assert_eq!(left(&ruling), left(&self.memory.peek_now(&request)));
        ruling
    }

    fn down(&self) {
        self.faults.set_faults(DOWN);
    }
}

const PER_TENANT: &str =
    "rules: [{ name: a, per: [tenant], limits: [10/h, 100/d], algorithm: sliding_log }]";

#[test]
fn what_is_given_back_is_there_again_and_no_more_than_was_spent() {
    let both = Both::new(PER_TENANT);
    assert_eq!(left(&both.check([of("acme", 10)])), [(false, 0), (false, 90)]);
    let given = both.check([back("acme", 4)]);
    assert!(given.decision().is_allowed() && given.decision().receipt().is_empty());
    assert_eq!(left(&given), [(true, 4), (true, 94)]);
    assert!(
        given.limits().all(|one| one.outcome.fits() && !one.is_observed() && !one.is_denying())
    );
    assert_eq!(left(&both.check([back("acme", u64::MAX)])), [(true, 10), (true, 100)]);
    assert_eq!(left(&both.check([back("acme", 0)])), [(true, 10), (true, 100)]);
    assert_eq!(left(&both.check([of("acme", 10)])), [(false, 0), (false, 90)]);
}

#[test]
fn what_has_left_the_window_is_not_given_back() {
    let both = Both::new(PER_TENANT);
    both.check([of("acme", 6)]);
    both.clock.advance(Duration::from_secs(1_800));
    both.check([of("acme", 4)]);
    both.clock.advance(Duration::from_secs(1_800));
    assert_eq!(
        left(&both.check([back("acme", 3)])),
        [(true, 9), (true, 93)],
        "of an hour and a day"
    );
}

#[test]
fn whoever_gives_back_does_so_first_and_even_if_the_request_is_denied() {
    let both = Both::new(PER_TENANT);
    both.check([of("acme", 10), of("other", 10)]);
    let denied = both.check([back("acme", 4), of("other", 1), of("third", 1)]);
    assert!(!denied.decision().is_allowed());
    assert_eq!(denied.binding().unwrap().descriptor(), 1);
    let stand = [(true, 4), (true, 94), (false, 0), (false, 90), (false, 10), (false, 100)];
    assert_eq!(left(&denied), stand);
    let allowed = both.check([of("third", 1), back("other", 3), of("acme", 2), of("other", 2)]);
    assert!(allowed.decision().is_allowed(), "other gave back before it was asked for");
    let stand = [(false, 9), (false, 99), (true, 3), (true, 93), (false, 2), (false, 92)];
    assert_eq!(left(&allowed)[..6], stand);
    assert_eq!(left(&allowed)[6..], [(false, 1), (false, 91)]);
    assert_eq!(allowed.decision().receipt().charges.len(), 6, "of three descriptors");
}

#[test]
fn a_decision_hangs_on_nothing_that_is_given_back() {
    let both = Both::new(PER_TENANT);
    both.check([of("acme", 10)]);
    let given = both.check([back("acme", 1)]);
    assert!(given.binding().is_none());
    assert_eq!(headers::write(Style::Ietf, &given, Timestamp::default(), JitterSample::NONE), []);
    let allowed = both.check([back("acme", 1), of("other", 1)]);
    assert_eq!(allowed.binding().unwrap().descriptor(), 1, "though acme has less left");
    assert_eq!(allowed.decision().remaining(), 9);
}

#[test]
fn a_look_gives_nothing_back() {
    let both = Both::new(PER_TENANT);
    both.check([of("acme", 10)]);
    for _ in 0..2 {
        let seen = both.peek([back("acme", 5), of("other", 1)]);
        assert_eq!(left(&seen), [(true, 0), (true, 90), (false, 10), (false, 100)]);
        assert!(seen.decision().is_allowed());
        assert_eq!(seen.binding().unwrap().descriptor(), 1);
    }
    assert!(!both.check([of("acme", 1)]).decision().is_allowed());
}

#[test]
fn who_was_never_seen_stays_unseen() {
    for algorithm in slidegate::Algorithm::ALL {
        let both = Both::new(&format!(
            "rules: [{{ name: a, per: [tenant], limits: [10/h], algorithm: {algorithm} }}]"
        ));
        assert_eq!(left(&both.check([back("acme", 5)])), [(true, 10)]);
        assert_eq!(both.memory.store().keys(), 0, "{algorithm}");
    }
}

#[test]
fn rules_that_only_watch_and_debts_are_given_back_to_and_rules_that_are_off_are_not() {
    let both = Both::new(
        "
rules:
  - { name: watched, per: [tenant], limits: [10/h], mode: observe }
  - { name: debt, per: [tenant], limits: [10/h], charge: always }
  - { name: 'off', per: [tenant], limits: [10/h], mode: 'off' }
  - { name: open, per: [tenant], limits: unlimited }
",
    );
    assert_eq!(left(&both.check([of("acme", 8)])), [(false, 2), (false, 2)]);
    assert_eq!(left(&both.check([of("acme", 8)])), [(false, 2), (false, 0)], "a debt of six");
    assert_eq!(left(&both.check([back("acme", 7)])), [(true, 9), (true, 1)]);
}

#[test]
fn who_lacks_an_attribute_is_not_denied_for_giving_back() {
    let both = Both::new("rules: [{ name: a, per: [key], when_missing: deny, limits: [10/h] }]");
    assert!(!both.check([of("acme", 1)]).decision().is_allowed());
    assert!(both.check([back("acme", 1)]).decision().is_allowed());
}

#[test]
fn without_the_store_what_is_counted_here_is_given_back() {
    let both = Both::new(
        "
rules:
  - { name: here, per: [tenant], limits: [10/h] }
  - { name: open, per: [tenant], limits: [5/h], on_store_error: allow }
",
    );
    both.check([of("acme", 5)]);
    both.down();
    let alone = |descriptors: &[Descriptor<'static>]| {
        let request = Request::of_descriptors("default", descriptors.iter().cloned());
        let ruling = block_on(both.faulty.check(&request));
        assert!(ruling.decision().is_degraded());
        (ruling.decision().is_allowed(), left(&ruling))
    };
    assert_eq!(alone(&[back("acme", 5)]), (true, vec![(true, 10)]), "nothing was spent here");
    assert_eq!(alone(&[of("acme", 10)]), (true, vec![(false, 0)]));
    assert_eq!(alone(&[back("acme", 3)]), (true, vec![(true, 3)]));
    let both_kinds = [of("acme", 2), back("acme", 1)];
    assert_eq!(alone(&both_kinds), (true, vec![(false, 2), (true, 4)]));
    both.faults.set_faults(UP);
    let acme = Request::new("default", of("acme", 1));
    let seen = block_on(both.faulty.peek(&acme));
    assert_eq!(left(&seen), [(false, 5), (false, 0)], "the store has not heard of it");
}

#[test]
fn a_store_that_does_not_answer_refuses_nobody_who_only_gives_back() {
    let both = Both::new(
        "
rules:
  - { name: strict, when: { tenant: strict }, per: [tenant], limits: [10/h], on_store_error: deny }
  - { name: here, when: { tenant: here }, per: [tenant], limits: [10/h] }
",
    );
    both.down();
    let check = |descriptors: &[Descriptor<'static>]| {
        let request = Request::of_descriptors("default", descriptors.iter().cloned());
        block_on(both.faulty.check(&request))
    };
    assert!(check(&[back("strict", 1)]).decision().is_allowed());
    assert!(check(&[of("here", 10)]).decision().is_allowed());
    let refused = check(&[of("strict", 1), back("here", 4)]);
    assert!(refused.decision().is_refused());
    assert_eq!(left(&check(&[of("here", 1)])), [(false, 3)], "given back all the same");
}

/// Units of a count cannot be told apart, so the receipt of refunded units frees other units, but never more than it says.
/// So the excess in a window is at most the number of units that were both refunded and reverted.
#[test]
fn a_receipt_of_refunded_units_frees_no_more_than_it_says() {
    for algorithm in Algorithm::ALL {
        let clock = ManualClock::at(Timestamp::from_secs(1_750_000_020));
        let store = MemoryStore::with_clock(clock.clone(), 1_000);
        let limit = Limit::new("10/min".parse().unwrap(), algorithm).unwrap();
        let limiter = Limiter::with_store([limit], store).unwrap();
        let first = limiter.check_cost("acme", 6);
        assert!(first.is_allowed());
        clock.advance(Duration::from_millis(1));
        limiter.refund("acme", 6);
        assert!(limiter.check_cost("acme", 10).is_allowed());
        limiter.revert(first.decision().receipt());
        let left = limiter.peek("acme", 1).decision().remaining();
        assert!(left <= 6, "{algorithm}: {left}");
        if algorithm == Algorithm::SlidingLog {
            assert_eq!(left, 0, "a log knows that the units are gone");
        }
        // However often it is reverted, a key never has more units than its limit.
        limiter.revert(first.decision().receipt());
        assert!(limiter.peek("acme", 1).decision().remaining() <= 10);
    }
}

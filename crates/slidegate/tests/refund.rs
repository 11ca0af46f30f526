//! Tests of descriptors that refund units instead of charging them.

use std::time::Duration;

use slidegate::headers::{self, Style};
use slidegate::store::LocalCountsOptions;
use slidegate::testkit::block_on;
use slidegate::testkit::faulty::{Faults, FaultyStore};
use slidegate::wait::JitterSample;
use slidegate::{
    Algorithm, Check, Decision, Descriptor, Gate, Limit, Limiter, ManualClock, MemoryStore, Policy,
    Reason, Request, Timestamp,
};

const NO_FAULTS: Faults = Faults { unavailable: 0, lost_before: 0, lost_after: 0 };
const ALWAYS_UNAVAILABLE: Faults = Faults { unavailable: 100, ..NO_FAULTS };

/// Two gates with the same policy: one over a memory store, and one over a faulty store with three slots.
struct MemoryAndFaultyGates {
    memory: Gate<MemoryStore<ManualClock>>,
    faulty: Gate<FaultyStore>,
    faulty_store: FaultyStore,
    clock: ManualClock,
}

/// Returns a descriptor that charges `cost` units to a tenant.
fn charge_descriptor(tenant: &'static str, cost: u64) -> Descriptor<'static> {
    Descriptor::new([("tenant", tenant)]).cost(cost)
}

/// Returns a descriptor that refunds `cost` units to a tenant.
fn refund_descriptor(tenant: &'static str, cost: u64) -> Descriptor<'static> {
    charge_descriptor(tenant, cost).as_refund()
}

/// Returns, for each limit of a decision, `true` if the limit was refunded, and the remaining units of the limit.
fn refund_flags_and_remaining_units(decision: &Decision<'_>) -> Vec<(bool, u64)> {
    decision.limits().map(|status| (status.is_refund(), status.remaining())).collect()
}

impl MemoryAndFaultyGates {
    fn new(policy: &str) -> Self {
        let clock = ManualClock::at(Timestamp::from_secs(1_750_000_020));
        let policy = || Policy::from_yaml(policy).unwrap();
        let faulty_store = FaultyStore::new(&clock, 3, NO_FAULTS, 1);
        Self {
            memory: Gate::new(policy(), MemoryStore::with_clock(clock.clone(), 1_000)),
            faulty: Gate::new(policy(), faulty_store.clone())
                .with_local_counts(LocalCountsOptions::with_clock(clock.clone())),
            faulty_store,
            clock,
        }
    }

    fn check_with_both_gates<const N: usize>(
        &self,
        descriptors: [Descriptor<'static>; N],
    ) -> Decision<'static> {
        let request = Request::with_descriptors("default", descriptors);
        let decision = block_on(self.faulty.check_async(&request));
        assert_eq!(
            refund_flags_and_remaining_units(&decision),
            refund_flags_and_remaining_units(&self.memory.check(&request))
        );
        decision
    }

    fn peek_with_both_gates<const N: usize>(
        &self,
        descriptors: [Descriptor<'static>; N],
    ) -> Decision<'static> {
        let request = Request::with_descriptors("default", descriptors);
        let decision = block_on(self.faulty.peek_async(&request));
        assert_eq!(
            refund_flags_and_remaining_units(&decision),
            refund_flags_and_remaining_units(&self.memory.peek(&request))
        );
        decision
    }

    fn fail_store(&self) {
        self.faulty_store.set_faults(ALWAYS_UNAVAILABLE);
    }
}

const PER_TENANT_POLICY: &str =
    "rules: [{ name: a, per: [tenant], limits: [10/h, 100/d], algorithm: sliding_log }]";

#[test]
fn refund_frees_at_most_charged_units() {
    let gates = MemoryAndFaultyGates::new(PER_TENANT_POLICY);
    assert_eq!(
        refund_flags_and_remaining_units(
            &gates.check_with_both_gates([charge_descriptor("acme", 10)])
        ),
        [(false, 0), (false, 90)]
    );
    let refunded = gates.check_with_both_gates([refund_descriptor("acme", 4)]);
    assert!(refunded.is_allowed() && refunded.receipt().is_empty());
    assert_eq!(refund_flags_and_remaining_units(&refunded), [(true, 4), (true, 94)]);
    assert!(
        refunded
            .limits()
            .all(|status| status.fits() && !status.is_observed() && !status.is_denying())
    );
    assert_eq!(
        refund_flags_and_remaining_units(
            &gates.check_with_both_gates([refund_descriptor("acme", u64::MAX)])
        ),
        [(true, 10), (true, 100)]
    );
    assert_eq!(
        refund_flags_and_remaining_units(
            &gates.check_with_both_gates([refund_descriptor("acme", 0)])
        ),
        [(true, 10), (true, 100)]
    );
    assert_eq!(
        refund_flags_and_remaining_units(
            &gates.check_with_both_gates([charge_descriptor("acme", 10)])
        ),
        [(false, 0), (false, 90)]
    );
}

#[test]
fn expired_units_are_not_refunded() {
    let gates = MemoryAndFaultyGates::new(PER_TENANT_POLICY);
    let _ = gates.check_with_both_gates([charge_descriptor("acme", 6)]);
    gates.clock.advance(Duration::from_secs(1_800));
    let _ = gates.check_with_both_gates([charge_descriptor("acme", 4)]);
    gates.clock.advance(Duration::from_secs(1_800));
    assert_eq!(
        refund_flags_and_remaining_units(
            &gates.check_with_both_gates([refund_descriptor("acme", 3)])
        ),
        [(true, 9), (true, 93)],
        "per hour and per day"
    );
}

#[test]
fn refund_precedes_charges_even_of_denied_request() {
    let gates = MemoryAndFaultyGates::new(PER_TENANT_POLICY);
    let _ = gates
        .check_with_both_gates([charge_descriptor("acme", 10), charge_descriptor("other", 10)]);
    let denied = gates.check_with_both_gates([
        refund_descriptor("acme", 4),
        charge_descriptor("other", 1),
        charge_descriptor("third", 1),
    ]);
    assert!(!denied.is_allowed());
    assert_eq!(denied.binding().unwrap().descriptor(), 1);
    let expected = [(true, 4), (true, 94), (false, 0), (false, 90), (false, 10), (false, 100)];
    assert_eq!(refund_flags_and_remaining_units(&denied), expected);
    let allowed = gates.check_with_both_gates([
        charge_descriptor("third", 1),
        refund_descriptor("other", 3),
        charge_descriptor("acme", 2),
        charge_descriptor("other", 2),
    ]);
    assert!(allowed.is_allowed(), "the refund precedes the charge");
    let expected = [(false, 9), (false, 99), (true, 3), (true, 93), (false, 2), (false, 92)];
    assert_eq!(refund_flags_and_remaining_units(&allowed)[..6], expected);
    assert_eq!(refund_flags_and_remaining_units(&allowed)[6..], [(false, 1), (false, 91)]);
    assert_eq!(allowed.receipt().charges().len(), 6, "two charges for each of three descriptors");
}

#[test]
fn refunded_limit_is_never_binding() {
    let gates = MemoryAndFaultyGates::new(PER_TENANT_POLICY);
    let _ = gates.check_with_both_gates([charge_descriptor("acme", 10)]);
    let refunded = gates.check_with_both_gates([refund_descriptor("acme", 1)]);
    assert!(refunded.binding().is_none());
    assert_eq!(
        headers::write(Style::Ietf, &refunded, Timestamp::default(), JitterSample::NONE),
        []
    );
    let allowed =
        gates.check_with_both_gates([refund_descriptor("acme", 1), charge_descriptor("other", 1)]);
    assert_eq!(allowed.binding().unwrap().descriptor(), 1, "although acme has fewer units left");
    assert_eq!(allowed.remaining(), 9);
}

#[test]
fn peek_refunds_nothing() {
    let gates = MemoryAndFaultyGates::new(PER_TENANT_POLICY);
    let _ = gates.check_with_both_gates([charge_descriptor("acme", 10)]);
    for _ in 0..2 {
        let peeked = gates
            .peek_with_both_gates([refund_descriptor("acme", 5), charge_descriptor("other", 1)]);
        assert_eq!(
            refund_flags_and_remaining_units(&peeked),
            [(true, 0), (true, 90), (false, 10), (false, 100)]
        );
        assert!(peeked.is_allowed());
        assert_eq!(peeked.binding().unwrap().descriptor(), 1);
    }
    assert!(!gates.check_with_both_gates([charge_descriptor("acme", 1)]).is_allowed());
}

#[test]
fn refund_creates_no_counter() {
    for algorithm in slidegate::Algorithm::ALL {
        let gates = MemoryAndFaultyGates::new(&format!(
            "rules: [{{ name: a, per: [tenant], limits: [10/h], algorithm: {algorithm} }}]"
        ));
        assert_eq!(
            refund_flags_and_remaining_units(
                &gates.check_with_both_gates([refund_descriptor("acme", 5)])
            ),
            [(true, 10)]
        );
        assert_eq!(gates.memory.store().keys(), 0, "{algorithm}");
    }
}

#[test]
fn refund_applies_to_observed_rules_and_debts() {
    let gates = MemoryAndFaultyGates::new(
        "
rules:
  - { name: watched, per: [tenant], limits: [10/h], mode: observe }
  - { name: debt, per: [tenant], limits: [10/h], charge: always }
  - { name: 'off', per: [tenant], limits: [10/h], mode: 'off' }
  - { name: open, per: [tenant], limits: unlimited }
",
    );
    assert_eq!(
        refund_flags_and_remaining_units(
            &gates.check_with_both_gates([charge_descriptor("acme", 8)])
        ),
        [(false, 2), (false, 2)]
    );
    assert_eq!(
        refund_flags_and_remaining_units(
            &gates.check_with_both_gates([charge_descriptor("acme", 8)])
        ),
        [(false, 2), (false, 0)],
        "a debt of six"
    );
    assert_eq!(
        refund_flags_and_remaining_units(
            &gates.check_with_both_gates([refund_descriptor("acme", 7)])
        ),
        [(true, 9), (true, 1)]
    );
}

#[test]
fn refund_without_required_attribute_is_allowed() {
    let gates = MemoryAndFaultyGates::new(
        "rules: [{ name: a, per: [key], when_missing: deny, limits: [10/h] }]",
    );
    assert!(!gates.check_with_both_gates([charge_descriptor("acme", 1)]).is_allowed());
    assert!(gates.check_with_both_gates([refund_descriptor("acme", 1)]).is_allowed());
}

#[test]
fn refund_during_outage_applies_to_local_counts() {
    let gates = MemoryAndFaultyGates::new(
        "
rules:
  - { name: here, per: [tenant], limits: [10/h] }
  - { name: open, per: [tenant], limits: [5/h], on_store_error: allow }
",
    );
    let _ = gates.check_with_both_gates([charge_descriptor("acme", 5)]);
    gates.fail_store();
    let check_degraded = |descriptors: &[Descriptor<'static>]| {
        let request = Request::with_descriptors("default", descriptors.iter().cloned());
        let decision = block_on(gates.faulty.check_async(&request));
        assert!(decision.is_degraded());
        (decision.is_allowed(), refund_flags_and_remaining_units(&decision))
    };
    assert_eq!(
        check_degraded(&[refund_descriptor("acme", 5)]),
        (true, vec![(true, 10)]),
        "no units are counted locally"
    );
    assert_eq!(check_degraded(&[charge_descriptor("acme", 10)]), (true, vec![(false, 0)]));
    assert_eq!(check_degraded(&[refund_descriptor("acme", 3)]), (true, vec![(true, 3)]));
    let charge_and_refund = [charge_descriptor("acme", 2), refund_descriptor("acme", 1)];
    assert_eq!(check_degraded(&charge_and_refund), (true, vec![(false, 2), (true, 4)]));
    gates.faulty_store.set_faults(NO_FAULTS);
    let acme = Request::new("default", charge_descriptor("acme", 1));
    let peeked = block_on(gates.faulty.peek_async(&acme));
    assert_eq!(
        refund_flags_and_remaining_units(&peeked),
        [(false, 5), (false, 0)],
        "the store is unchanged"
    );
}

#[test]
fn refund_with_unavailable_store_is_allowed() {
    let gates = MemoryAndFaultyGates::new(
        "
rules:
  - { name: strict, when: { tenant: strict }, per: [tenant], limits: [10/h], on_store_error: deny }
  - { name: here, when: { tenant: here }, per: [tenant], limits: [10/h] }
",
    );
    gates.fail_store();
    let check = |descriptors: &[Descriptor<'static>]| {
        let request = Request::with_descriptors("default", descriptors.iter().cloned());
        block_on(gates.faulty.check_async(&request))
    };
    assert!(check(&[refund_descriptor("strict", 1)]).is_allowed());
    assert!(check(&[charge_descriptor("here", 10)]).is_allowed());
    let denied = check(&[charge_descriptor("strict", 1), refund_descriptor("here", 4)]);
    assert_eq!(denied.reason(), Some(Reason::StoreUnavailable));
    assert_eq!(
        refund_flags_and_remaining_units(&check(&[charge_descriptor("here", 1)])),
        [(false, 3)],
        "the refund is applied although the request is denied"
    );
}

/// Checks that reverting a receipt frees at most as many units as the receipt contains, even if these units were
/// already refunded. The units of a counter are indistinguishable, so the revert then frees other units. Therefore the
/// excess in a window is at most the number of units that were both refunded and reverted.
#[test]
fn revert_after_refund_frees_at_most_receipt_units() {
    for algorithm in Algorithm::ALL {
        let clock = ManualClock::at(Timestamp::from_secs(1_750_000_020));
        let store = MemoryStore::with_clock(clock.clone(), 1_000);
        let limit = Limit::new("10/min".parse().unwrap(), algorithm).unwrap();
        let limiter = Limiter::with_store("limiter", [limit], store).unwrap();
        let first = limiter.check(Check::new("acme").cost(6));
        assert!(first.is_allowed());
        clock.advance(Duration::from_millis(1));
        limiter.refund("acme", 6);
        assert!(limiter.check(Check::new("acme").cost(10)).is_allowed());
        limiter.revert(&first);
        let remaining = limiter.peek("acme").remaining();
        assert!(remaining <= 6, "{algorithm}: {remaining}");
        if algorithm == Algorithm::SlidingLog {
            assert_eq!(remaining, 0, "a log distinguishes units by their time");
        }
        // Repeated reverts never leave a key with more units than its limit.
        limiter.revert(&first);
        assert!(limiter.peek("acme").remaining() <= 10);
    }
}

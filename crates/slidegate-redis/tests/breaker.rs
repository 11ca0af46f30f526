//! Tests of the circuit breaker: opening, probing and closing.

use std::time::Duration;

use proptest::prelude::*;
use slidegate::clock::Clock;
use slidegate::{ManualClock, Timestamp};
use slidegate_redis::breaker::{
    Breaker, BreakerCallPass, BreakerDecision, BreakerSettings, BreakerStateChange, OpenReason,
};

const MILLISECOND: Duration = Duration::from_millis(1);

/// A breaker with a manual clock.
struct BreakerFixture {
    breaker: Breaker,
    clock: ManualClock,
}

impl BreakerFixture {
    fn new(settings: BreakerSettings) -> Self {
        let clock = ManualClock::at(Timestamp::from_secs(1_750_000_020));
        Self { breaker: Breaker::new(settings), clock }
    }

    fn admit(&self) -> BreakerDecision {
        self.breaker.admit(self.clock.now())
    }

    fn admit_call(&self) -> BreakerCallPass {
        let BreakerDecision::Call(pass) = self.admit() else { panic!("the breaker is open") };
        pass
    }

    fn record_success(&self, pass: BreakerCallPass) -> Option<BreakerStateChange> {
        self.breaker.record_success(pass, self.clock.now())
    }

    fn record_failure(&self, pass: BreakerCallPass) -> Option<BreakerStateChange> {
        self.breaker.record_failure(pass, self.clock.now())
    }

    fn report_result(&self, pass: BreakerCallPass, ok: bool) -> Option<BreakerStateChange> {
        if ok { self.record_success(pass) } else { self.record_failure(pass) }
    }

    /// Reports failures until the breaker opens.
    fn fail_calls_until_open(&self) {
        while !self.breaker.is_open() {
            self.record_failure(self.admit_call());
        }
    }

    /// Advances the clock in steps of milliseconds until a probe is allowed. Returns the pass of the probe and the
    /// elapsed time.
    fn advance_clock_until_probe(&self) -> (BreakerCallPass, Duration) {
        let began = self.clock.now().as_micros();
        loop {
            match self.admit() {
                BreakerDecision::Reject => self.clock.advance(MILLISECOND),
                BreakerDecision::Call(_) => panic!("the breaker is closed"),
                BreakerDecision::Probe(pass) => {
                    let waited = self.clock.now().as_micros() - began;
                    return (pass, Duration::from_micros(waited));
                }
            }
        }
    }
}

fn new_default_breaker_fixture() -> BreakerFixture {
    BreakerFixture::new(BreakerSettings::default())
}

#[test]
fn breaker_opens_once_after_five_consecutive_failures() {
    let bench = new_default_breaker_fixture();
    let calls: Vec<BreakerCallPass> = (0..8).map(|_| bench.admit_call()).collect();
    let changes: Vec<Option<BreakerStateChange>> =
        calls.into_iter().map(|call| bench.record_failure(call)).collect();
    let opened = Some(BreakerStateChange::Opened(OpenReason::ConsecutiveFailures(5)));
    assert_eq!(changes, [None, None, None, None, opened, None, None, None]);
    assert_eq!(bench.admit(), BreakerDecision::Reject);
}

#[test]
fn allow_probe_resets_backoff() {
    let bench = new_default_breaker_fixture();
    bench.fail_calls_until_open();
    for _ in 0..6 {
        let (probe, _) = bench.advance_clock_until_probe();
        bench.record_failure(probe);
    }
    assert_eq!(bench.admit(), BreakerDecision::Reject);
    bench.breaker.allow_probe(bench.clock.now());
    let (probe, waited) = bench.advance_clock_until_probe();
    assert_eq!(waited, Duration::ZERO);
    assert_eq!(bench.admit(), BreakerDecision::Reject, "only one probe");
    // The probe fails: the backoff starts from its initial value.
    bench.record_failure(probe);
    let (probe, waited) = bench.advance_clock_until_probe();
    assert!(waited <= Duration::from_secs(1), "{waited:?}");
    assert!(matches!(bench.record_success(probe), Some(BreakerStateChange::Closed { .. })));
    bench.breaker.allow_probe(bench.clock.now());
    assert!(!bench.breaker.is_open());
    bench.admit_call();
}

/// The connection of a probe is lost, and the next connection is open before the probe has failed.
#[test]
fn failure_of_probe_before_allow_probe_is_ignored() {
    let bench = new_default_breaker_fixture();
    bench.fail_calls_until_open();
    let (lost, _) = bench.advance_clock_until_probe();
    bench.breaker.allow_probe(bench.clock.now());
    assert_eq!(bench.record_failure(lost), None);
    let (probe, waited) = bench.advance_clock_until_probe();
    assert_eq!(waited, Duration::ZERO);
    assert!(matches!(bench.record_success(probe), Some(BreakerStateChange::Closed { .. })));
}

#[test]
fn success_resets_consecutive_failure_count() {
    let bench = new_default_breaker_fixture();
    for _ in 0..4 {
        // Each round is in its own window, so that the failure rate does not count.
        bench.clock.advance(Duration::from_secs(1));
        (0..4).for_each(|_| assert_eq!(bench.record_failure(bench.admit_call()), None));
        assert_eq!(bench.record_success(bench.admit_call()), None);
    }
    assert!(!bench.breaker.is_open());
}

#[test]
fn breaker_opens_when_at_least_half_fail() {
    // One in `period` calls succeeds.
    for period in [2, 3, 4] {
        let bench = new_default_breaker_fixture();
        let change =
            (0..40).find_map(|nth| bench.report_result(bench.admit_call(), nth % period == 0));
        assert!(
            matches!(
                change,
                Some(BreakerStateChange::Opened(OpenReason::FailureRate { calls: 20.., .. }))
            ),
            "{change:?}"
        );
        assert!(bench.breaker.is_open());
    }
    let third = new_default_breaker_fixture();
    let change = (0..300).find_map(|nth| third.report_result(third.admit_call(), nth % 3 > 0));
    assert_eq!(change, None, "a third is less than half");
    let slow = new_default_breaker_fixture();
    let change = (0..300).find_map(|nth| {
        slow.clock.advance(100 * MILLISECOND);
        slow.report_result(slow.admit_call(), nth % 2 > 0)
    });
    assert_eq!(change, None, "ten calls per second are too few");
}

#[test]
fn backoff_doubles_up_to_maximum() {
    for _ in 0..200 {
        let bench = new_default_breaker_fixture();
        bench.fail_calls_until_open();
        let mut longest = Duration::from_millis(500);
        for _ in 0..8 {
            let (probe, waited) = bench.advance_clock_until_probe();
            assert!(waited >= longest / 2 && waited <= longest + MILLISECOND, "{waited:?}");
            assert_eq!(bench.record_failure(probe), None, "the breaker stays open");
            longest = (2 * longest).min(Duration::from_secs(5));
        }
    }
}

#[test]
fn backoff_differs_between_instances() {
    let waits: std::collections::HashSet<Duration> = (0..20)
        .map(|_| {
            let bench = new_default_breaker_fixture();
            bench.fail_calls_until_open();
            bench.advance_clock_until_probe().1
        })
        .collect();
    assert!(waits.len() > 5, "{waits:?}");
}

#[test]
fn successful_probe_closes_breaker_and_resets_backoff() {
    let bench = new_default_breaker_fixture();
    for _ in 0..3 {
        bench.fail_calls_until_open();
        let began = bench.clock.now().as_micros();
        let (probe, first) = bench.advance_clock_until_probe();
        assert!(first <= Duration::from_millis(501), "the backoff starts from its initial value");
        bench.record_failure(probe);
        let (probe, _) = bench.advance_clock_until_probe();
        let after = Duration::from_micros(bench.clock.now().as_micros() - began);
        assert_eq!(bench.record_success(probe), Some(BreakerStateChange::Closed { after }));
        assert!(!bench.breaker.is_open());
        let changes: Vec<_> = (0..4).map(|_| bench.record_failure(bench.admit_call())).collect();
        assert_eq!(changes, [None; 4], "earlier failures do not count");
    }
}

#[test]
fn second_concurrent_probe_is_rejected() {
    let bench = new_default_breaker_fixture();
    bench.fail_calls_until_open();
    let (probe, _) = bench.advance_clock_until_probe();
    assert_eq!(bench.admit(), BreakerDecision::Reject);
    bench.clock.advance(900 * MILLISECOND);
    assert_eq!(bench.admit(), BreakerDecision::Reject);
    assert!(bench.record_success(probe).is_some());
    bench.admit_call();
}

#[test]
fn probe_without_result_times_out() {
    let bench = new_default_breaker_fixture();
    bench.fail_calls_until_open();
    let (lost, _) = bench.advance_clock_until_probe();
    let (probe, waited) = bench.advance_clock_until_probe();
    assert_eq!(waited, Duration::from_secs(1));
    assert_eq!(bench.record_success(lost), None, "the probe has timed out");
    assert!(bench.breaker.is_open());
    assert!(bench.record_success(probe).is_some());
}

#[test]
fn late_probe_success_closes_breaker() {
    let bench = new_default_breaker_fixture();
    bench.fail_calls_until_open();
    let (late, _) = bench.advance_clock_until_probe();
    bench.clock.advance(Duration::from_secs(60));
    assert!(bench.record_success(late).is_some());
}

#[test]
fn results_of_calls_before_breaker_opens_are_ignored() {
    let bench = new_default_breaker_fixture();
    let mut early: Vec<BreakerCallPass> = (0..40).map(|_| bench.admit_call()).collect();
    bench.fail_calls_until_open();
    assert_eq!(bench.record_success(early.pop().unwrap()), None);
    assert_eq!(bench.record_failure(early.pop().unwrap()), None);
    assert!(bench.breaker.is_open());
    let (probe, _) = bench.advance_clock_until_probe();
    assert_eq!(bench.record_success(early.pop().unwrap()), None);
    assert_eq!(bench.record_failure(early.pop().unwrap()), None);
    assert_eq!(bench.admit(), BreakerDecision::Reject, "the probe is in flight");
    assert!(bench.record_success(probe).is_some());
    assert!(early.into_iter().all(|call| bench.record_failure(call).is_none()));
    assert!(!bench.breaker.is_open());
    assert_eq!(bench.record_failure(bench.admit_call()), None);
}

#[test]
fn state_change_text_contains_reason() {
    let opened = |cause| BreakerStateChange::Opened(cause).to_string();
    let opened_text = "circuit breaker opened after";
    assert_eq!(
        opened(OpenReason::ConsecutiveFailures(5)),
        format!("{opened_text} 5 consecutive failed calls")
    );
    let share = OpenReason::FailureRate { failed: 12, calls: 23 };
    assert_eq!(opened(share), format!("{opened_text} 12 of 23 calls within a second failed"));
    let closed = BreakerStateChange::Closed { after: Duration::from_millis(1_490) };
    assert_eq!(closed.to_string(), "circuit breaker closed after 1.5 s");
}

/// A step of a randomized test of the circuit breaker.
#[derive(Clone, Copy, Debug)]
enum BreakerTestStep {
    Advance {
        micros: u64,
    },
    BeginCall,
    /// The result of one of the calls in flight is reported.
    Report {
        call: prop::sample::Index,
        ok: bool,
    },
}

fn random_breaker_test_step() -> impl Strategy<Value = BreakerTestStep> {
    let pass = prop_oneof![0..2_000_u64, 0..300_000_u64, 0..6_000_000_u64];
    prop_oneof![
        1 => pass.prop_map(|micros| BreakerTestStep::Advance { micros }),
        6 => Just(BreakerTestStep::BeginCall),
        // Mostly failures: otherwise the breaker seldom opens.
        5 => (any::<prop::sample::Index>(), prop::bool::weighted(0.3))
            .prop_map(|(call, ok)| BreakerTestStep::Report { call, ok }),
    ]
}

/// A simple model of a circuit breaker, which the real breaker is compared with.
#[derive(Default)]
struct BreakerModel {
    /// Number of the current state. Each opening, probe, failed probe and closing begins a new state.
    epoch: u64,
    open: bool,
    /// Two times that bound the next probe while the breaker is open. No probe is allowed before the first time, and a
    /// probe must be allowed from the second time on.
    probe_window: (u64, u64),
    backoff_us: u64,
    /// The results that were reported in the current state: the time, and whether the call succeeded.
    reports: Vec<(u64, bool)>,
}

impl BreakerModel {
    fn must_open_after_last_result(&self) -> bool {
        let failed_last = self.reports.iter().rev().take_while(|(_, ok)| !ok).count();
        let Some(&(last, false)) = self.reports.last() else { return false };
        let second = |at: u64| at / 1_000_000;
        let recent = self.reports.iter().filter(|(at, _)| second(*at) == second(last));
        let (calls, failed) =
            recent.fold((0, 0), |(calls, failed), (_, ok)| (calls + 1, failed + u32::from(!ok)));
        failed_last >= 5 || (calls >= 20 && 2 * failed >= calls)
    }

    fn start_backoff(&mut self, now: u64, bound: u64) {
        self.backoff_us = bound.min(5_000_000);
        self.probe_window = (now + self.backoff_us / 2, now + self.backoff_us);
        self.epoch += 1;
    }

    /// Records a result. Returns `Some(true)` if the result opens the breaker, `Some(false)` if the result closes it,
    /// otherwise `None`.
    fn report_result(&mut self, epoch: u64, now: u64, ok: bool) -> Option<bool> {
        if epoch != self.epoch {
            return None;
        }
        match (self.open, ok) {
            (true, true) => {
                *self = Self { epoch: self.epoch + 1, ..Self::default() };
                return Some(false);
            }
            (true, false) => self.start_backoff(now, 2 * self.backoff_us),
            (false, _) => {
                self.reports.push((now, ok));
                if self.must_open_after_last_result() {
                    self.open = true;
                    self.start_backoff(now, 500_000);
                    return Some(true);
                }
            }
        }
        None
    }

    /// Checks a decision of the breaker against the model. Returns the number of the state after the decision.
    fn assert_decision_matches_model(
        &mut self,
        now: u64,
        admit: &BreakerDecision,
    ) -> Result<u64, TestCaseError> {
        let (allowed_from, required_from) = self.probe_window;
        match admit {
            BreakerDecision::Call(_) => prop_assert!(!self.open),
            BreakerDecision::Reject => prop_assert!(self.open && now < required_from),
            BreakerDecision::Probe(_) => {
                prop_assert!(self.open && now >= allowed_from);
                self.probe_window = (now + 1_000_000, now + 1_000_000);
                self.epoch += 1;
            }
        }
        Ok(self.epoch)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn breaker_matches_model_in_random_steps(
        steps in prop::collection::vec(random_breaker_test_step(), 1..400),
    ) {
        let bench = new_default_breaker_fixture();
        let mut model = BreakerModel::default();
        let mut in_flight: Vec<(u64, BreakerCallPass)> = Vec::new();
        for step in steps {
            let now = bench.clock.now().as_micros();
            match step {
                BreakerTestStep::Advance { micros } => bench.clock.advance(Duration::from_micros(micros)),
                BreakerTestStep::BeginCall => {
                    let admit = bench.admit();
                    let epoch = model.assert_decision_matches_model(now, &admit)?;
                    if let BreakerDecision::Call(pass) | BreakerDecision::Probe(pass) = admit {
                        in_flight.push((epoch, pass));
                    }
                }
                BreakerTestStep::Report { call, ok } if !in_flight.is_empty() => {
                    let (epoch, pass) = in_flight.swap_remove(call.index(in_flight.len()));
                    let change = bench.report_result(pass, ok);
                    let opened = change.map(|change| matches!(change, BreakerStateChange::Opened(_)));
                    prop_assert_eq!(opened, model.report_result(epoch, now, ok));
                }
                BreakerTestStep::Report { .. } => {}
            }
            prop_assert_eq!(bench.breaker.is_open(), model.open);
        }
    }
}

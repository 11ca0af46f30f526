//! When the breaker opens, probes and closes.

#![cfg(not(shuttle))]
#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

use std::time::Duration;

use proptest::prelude::*;
use slidegate::{Clock, ManualClock, Timestamp};
use slidegate_redis::breaker::{
    Breaker, BreakerDecision, CallPass, OpenReason, Settings, StateChange,
};

const MILLI: Duration = Duration::from_millis(1);

/// A breaker on a clock.
struct Bench {
    breaker: Breaker,
    clock: ManualClock,
}

impl Bench {
    fn new(settings: Settings) -> Self {
        let clock = ManualClock::at(Timestamp::from_secs(1_750_000_020));
        Self { breaker: Breaker::new(settings), clock }
    }

    fn admit(&self) -> BreakerDecision {
        self.breaker.admit(self.clock.now())
    }

    fn call(&self) -> CallPass {
        let BreakerDecision::Call(pass) = self.admit() else { panic!("it is open") };
        pass
    }

    fn succeeds(&self, pass: CallPass) -> Option<StateChange> {
        self.breaker.record_success(pass, self.clock.now())
    }

    fn fails(&self, pass: CallPass) -> Option<StateChange> {
        self.breaker.record_failure(pass, self.clock.now())
    }

    fn report(&self, pass: CallPass, ok: bool) -> Option<StateChange> {
        if ok { self.succeeds(pass) } else { self.fails(pass) }
    }

    /// As many failures as it takes.
    fn open(&self) {
        while !self.breaker.is_open() {
            self.fails(self.call());
        }
    }

    /// Asks every millisecond until a probe may go; how long that took.
    fn until_probe(&self) -> (CallPass, Duration) {
        let began = self.clock.now().as_micros();
        loop {
            match self.admit() {
                BreakerDecision::Reject => self.clock.advance(MILLI),
                BreakerDecision::Call(_) => panic!("it is closed"),
                BreakerDecision::Probe(pass) => {
                    let waited = self.clock.now().as_micros() - began;
                    return (pass, Duration::from_micros(waited));
                }
            }
        }
    }
}

fn bench() -> Bench {
    Bench::new(Settings::default())
}

#[test]
fn it_opens_after_five_failures_in_a_row_and_says_so_once() {
    let bench = bench();
    let calls: Vec<CallPass> = (0..8).map(|_| bench.call()).collect();
    let told: Vec<Option<StateChange>> = calls.into_iter().map(|call| bench.fails(call)).collect();
    let opened = Some(StateChange::Opened(OpenReason::ConsecutiveFailures(5)));
    assert_eq!(told, [None, None, None, None, opened, None, None, None]);
    assert_eq!(bench.admit(), BreakerDecision::Reject);
}

#[test]
fn once_the_store_can_be_reached_again_somebody_probes_without_a_wait() {
    let bench = bench();
    bench.open();
    for _ in 0..6 {
        let (probe, _) = bench.until_probe();
        bench.fails(probe);
    }
    assert_eq!(bench.admit(), BreakerDecision::Reject);
    bench.breaker.probe_soon(bench.clock.now());
    let (probe, waited) = bench.until_probe();
    assert_eq!(waited, Duration::ZERO);
    assert_eq!(bench.admit(), BreakerDecision::Reject, "nobody else");
    // It fails all the same: waits begin to grow anew.
    bench.fails(probe);
    let (probe, waited) = bench.until_probe();
    assert!(waited <= Duration::from_secs(1), "{waited:?}");
    assert!(matches!(bench.succeeds(probe), Some(StateChange::Closed { .. })));
    bench.breaker.probe_soon(bench.clock.now());
    assert!(!bench.breaker.is_open());
    bench.call();
}

#[test]
fn a_success_between_failures_begins_the_row_anew() {
    let bench = bench();
    for _ in 0..4 {
        // Windows of their own, so that the share has no say.
        bench.clock.advance(Duration::from_secs(1));
        (0..4).for_each(|_| assert_eq!(bench.fails(bench.call()), None));
        assert_eq!(bench.succeeds(bench.call()), None);
    }
    assert!(!bench.breaker.is_open());
}

#[test]
fn it_opens_when_half_of_at_least_twenty_calls_within_a_second_fail() {
    // One in so many calls succeeds.
    for one_in in [2, 3, 4] {
        let bench = bench();
        let told = (0..40).find_map(|nth| bench.report(bench.call(), nth % one_in == 0));
        assert!(
            matches!(told, Some(StateChange::Opened(OpenReason::FailureRate { calls: 20.., .. }))),
            "{told:?}"
        );
        assert!(bench.breaker.is_open());
    }
    let third = bench();
    let told = (0..300).find_map(|nth| third.report(third.call(), nth % 3 > 0));
    assert_eq!(told, None, "a third is no half");
    let slow = bench();
    let told = (0..300).find_map(|nth| {
        slow.clock.advance(100 * MILLI);
        slow.report(slow.call(), nth % 2 > 0)
    });
    assert_eq!(told, None, "ten a second are too few to judge");
}

#[test]
fn the_first_probe_goes_within_a_second_and_later_ones_within_five() {
    for _ in 0..200 {
        let bench = bench();
        bench.open();
        let mut longest = Duration::from_millis(500);
        for _ in 0..8 {
            let (probe, waited) = bench.until_probe();
            assert!(waited >= longest / 2 && waited <= longest + MILLI, "{waited:?}");
            assert_eq!(bench.fails(probe), None, "it was open, and is");
            longest = (2 * longest).min(Duration::from_secs(5));
        }
    }
}

#[test]
fn waits_differ_from_instance_to_instance() {
    let waits: std::collections::HashSet<Duration> = (0..20)
        .map(|_| {
            let bench = bench();
            bench.open();
            bench.until_probe().1
        })
        .collect();
    assert!(waits.len() > 5, "{waits:?}");
}

#[test]
fn a_probe_that_succeeds_closes_it_and_the_next_outage_begins_anew() {
    let bench = bench();
    for _ in 0..3 {
        bench.open();
        let began = bench.clock.now().as_micros();
        let (probe, first) = bench.until_probe();
        assert!(first <= Duration::from_millis(501), "no longer than after the first outage");
        bench.fails(probe);
        let (probe, _) = bench.until_probe();
        let after = Duration::from_micros(bench.clock.now().as_micros() - began);
        assert_eq!(bench.succeeds(probe), Some(StateChange::Closed { after }));
        assert!(!bench.breaker.is_open());
        let told: Vec<_> = (0..4).map(|_| bench.fails(bench.call())).collect();
        assert_eq!(told, [None; 4], "what failed before is forgotten");
    }
}

#[test]
fn one_probe_goes_at_a_time() {
    let bench = bench();
    bench.open();
    let (probe, _) = bench.until_probe();
    assert_eq!(bench.admit(), BreakerDecision::Reject);
    bench.clock.advance(900 * MILLI);
    assert_eq!(bench.admit(), BreakerDecision::Reject);
    assert!(bench.succeeds(probe).is_some());
    bench.call();
}

#[test]
fn a_probe_that_is_never_reported_makes_room_for_another() {
    let bench = bench();
    bench.open();
    let (lost, _) = bench.until_probe();
    let (probe, waited) = bench.until_probe();
    assert_eq!(waited, Duration::from_secs(1));
    assert_eq!(bench.succeeds(lost), None, "it is too late");
    assert!(bench.breaker.is_open());
    assert!(bench.succeeds(probe).is_some());
}

#[test]
fn a_probe_that_is_late_counts_while_no_other_has_gone() {
    let bench = bench();
    bench.open();
    let (late, _) = bench.until_probe();
    bench.clock.advance(Duration::from_secs(60));
    assert!(bench.succeeds(late).is_some());
}

#[test]
fn calls_begun_before_it_opened_neither_close_it_nor_open_it_again() {
    let bench = bench();
    let mut early: Vec<CallPass> = (0..40).map(|_| bench.call()).collect();
    bench.open();
    assert_eq!(bench.succeeds(early.pop().unwrap()), None);
    assert_eq!(bench.fails(early.pop().unwrap()), None);
    assert!(bench.breaker.is_open());
    let (probe, _) = bench.until_probe();
    assert_eq!(bench.succeeds(early.pop().unwrap()), None);
    assert_eq!(bench.fails(early.pop().unwrap()), None);
    assert_eq!(bench.admit(), BreakerDecision::Reject, "the probe is still on its way");
    assert!(bench.succeeds(probe).is_some());
    assert!(early.into_iter().all(|call| bench.fails(call).is_none()));
    assert!(!bench.breaker.is_open());
    assert_eq!(bench.fails(bench.call()), None);
}

#[test]
fn a_change_is_told_in_words() {
    let opened = |cause| StateChange::Opened(cause).to_string();
    let opened_text = "circuit breaker opened:";
    assert_eq!(
        opened(OpenReason::ConsecutiveFailures(5)),
        format!("{opened_text} 5 consecutive calls failed")
    );
    let share = OpenReason::FailureRate { failed: 12, calls: 23 };
    assert_eq!(opened(share), format!("{opened_text} 12 of 23 calls within a second failed"));
    let closed = StateChange::Closed { after: Duration::from_millis(1_490) };
    assert_eq!(closed.to_string(), "circuit breaker closed after 1.5 s");
}

/// What may happen to a breaker.
#[derive(Clone, Copy, Debug)]
enum Step {
    Pass {
        micros: u64,
    },
    Ask,
    /// One of the calls on their way is reported on.
    Report {
        which: prop::sample::Index,
        ok: bool,
    },
}

fn any_step() -> impl Strategy<Value = Step> {
    let pass = prop_oneof![0..2_000_u64, 0..300_000_u64, 0..6_000_000_u64];
    prop_oneof![
        1 => pass.prop_map(|micros| Step::Pass { micros }),
        6 => Just(Step::Ask),
        // Mostly failures: otherwise it seldom opens.
        5 => (any::<prop::sample::Index>(), prop::bool::weighted(0.3))
            .prop_map(|(which, ok)| Step::Report { which, ok }),
    ]
}

/// What a breaker has to do, written down without sparing anything.
#[derive(Default)]
struct Model {
    /// Counts the states: each opening, probe, failed probe and closing begins one.
    era: u64,
    open: bool,
    /// While open: no probe may go before the first, and one has to from the second on.
    probe_between: (u64, u64),
    wait: u64,
    /// Every report of the era: when, and whether it was a success.
    reports: Vec<(u64, bool)>,
}

impl Model {
    fn should_open(&self) -> bool {
        let failed_last = self.reports.iter().rev().take_while(|(_, ok)| !ok).count();
        let Some(&(last, false)) = self.reports.last() else { return false };
        let second = |at: u64| at / 1_000_000;
        let recent = self.reports.iter().filter(|(at, _)| second(*at) == second(last));
        let (calls, failed) =
            recent.fold((0, 0), |(calls, failed), (_, ok)| (calls + 1, failed + u32::from(!ok)));
        failed_last >= 5 || (calls >= 20 && 2 * failed >= calls)
    }

    fn wait(&mut self, now: u64, most: u64) {
        self.wait = most.min(5_000_000);
        self.probe_between = (now + self.wait / 2, now + self.wait);
        self.era += 1;
    }

    /// What a report has to change: the state it leads to, if any is told.
    fn report(&mut self, era: u64, now: u64, ok: bool) -> Option<bool> {
        if era != self.era {
            return None;
        }
        match (self.open, ok) {
            (true, true) => {
                *self = Self { era: self.era + 1, ..Self::default() };
                return Some(false);
            }
            (true, false) => self.wait(now, 2 * self.wait),
            (false, _) => {
                self.reports.push((now, ok));
                if self.should_open() {
                    self.open = true;
                    self.wait(now, 500_000);
                    return Some(true);
                }
            }
        }
        None
    }

    /// Holds what it was told against what it has to be told; the era of the ticket.
    fn admit(&mut self, now: u64, admit: &BreakerDecision) -> Result<u64, TestCaseError> {
        let (may, must) = self.probe_between;
        match admit {
            BreakerDecision::Call(_) => prop_assert!(!self.open),
            BreakerDecision::Reject => prop_assert!(self.open && now < must),
            BreakerDecision::Probe(_) => {
                prop_assert!(self.open && now >= may);
                self.probe_between = (now + 1_000_000, now + 1_000_000);
                self.era += 1;
            }
        }
        Ok(self.era)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_it_does_as_the_model_does(
        steps in prop::collection::vec(any_step(), 1..400),
    ) {
        let bench = bench();
        let mut model = Model::default();
        let mut under_way: Vec<(u64, CallPass)> = Vec::new();
        for step in steps {
            let now = bench.clock.now().as_micros();
            match step {
                Step::Pass { micros } => bench.clock.advance(Duration::from_micros(micros)),
                Step::Ask => {
                    let admit = bench.admit();
                    let era = model.admit(now, &admit)?;
                    if let BreakerDecision::Call(pass) | BreakerDecision::Probe(pass) = admit {
                        under_way.push((era, pass));
                    }
                }
                Step::Report { which, ok } if !under_way.is_empty() => {
                    let (era, pass) = under_way.swap_remove(which.index(under_way.len()));
                    let told = bench.report(pass, ok);
                    let opened = told.map(|change| matches!(change, StateChange::Opened(_)));
                    prop_assert_eq!(opened, model.report(era, now, ok));
                }
                Step::Report { .. } => {}
            }
            prop_assert_eq!(bench.breaker.is_open(), model.open);
        }
    }
}

//! What a gate does while its store does not answer, and when it answers again.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

use std::num::NonZeroU32;
use std::time::Duration;

use proptest::prelude::*;
use slidegate::headers::{self, Style};
use slidegate::testkit::block_on;
use slidegate::testkit::faulty::{Faults, FaultyStore};
use slidegate::{
    Descriptor, Gate, JitterSample, ManualClock, Policy, Request, Ruling, Store, Timestamp,
};

const UP: Faults = Faults { unavailable: 0, lost_before: 0, lost_after: 0 };
const DOWN: Faults = Faults { unavailable: 100, ..UP };

const DAY: Duration = Duration::from_secs(86_400);

/// Instances that share a store, on a clock.
struct Fleet {
    clock: ManualClock,
    store: FaultyStore,
    instances: Vec<Gate<FaultyStore>>,
}

impl Fleet {
    fn new(instances: u32, policy: &str) -> Self {
        let clock = ManualClock::at(Timestamp::from_secs(1_750_000_020));
        let store = FaultyStore::new(&clock, 1, UP, 1);
        let gate = |_| {
            Gate::new(Policy::from_yaml(policy).unwrap(), store.clone())
                .with_local_clock(clock.clone())
                .expecting_instances(NonZeroU32::new(instances).unwrap())
        };
        Self { instances: (0..instances).map(gate).collect(), store, clock }
    }

    /// Instances that enforce one limit per tenant.
    fn of_limit(instances: u32, limit: &str, algorithm: &str) -> Self {
        let rule = format!("name: a, per: [tenant], limits: [{limit}], algorithm: {algorithm}");
        Self::new(instances, &format!("rules: [{{ {rule} }}]"))
    }

    fn down(&self) {
        self.store.set_faults(DOWN);
    }

    fn up(&self) {
        self.store.set_faults(UP);
        self.clock.advance(Duration::from_secs(1));
    }

    /// The store is available again, and the windows of all local counts pass.
    fn up_for_two_days(&self) {
        self.store.set_faults(UP);
        self.clock.advance(2 * DAY);
    }

    fn check(&self, nth: usize) -> Ruling {
        block_on(self.instances[nth].check(&request()))
    }

    /// How many requests each instance lets pass before it denies one.
    fn allowed(&self) -> Vec<u64> {
        let pass = |nth| (0..).take_while(|_| self.check(nth).decision().is_allowed()).count();
        (0..self.instances.len()).map(|nth| pass(nth) as u64).collect()
    }
}

fn request() -> Request<'static> {
    Request::new("default", Descriptor::new([("tenant", "acme")]))
}

fn limit_header(ruling: &Ruling) -> String {
    headers::write(Style::X, ruling, Timestamp::default(), JitterSample::NONE)[0].1.clone()
}

#[test]
fn without_the_store_each_instance_enforces_its_part_and_says_so() {
    let fleet = Fleet::of_limit(4, "10/h", "sliding_log");
    let answered = fleet.check(0);
    assert!(!answered.decision().is_degraded());
    assert_eq!(limit_header(&answered), "10", "the store enforces all of it");
    fleet.down();
    let degraded = fleet.check(0);
    assert!(degraded.decision().is_degraded());
    assert_eq!(degraded.decision().remaining(), 1);
    assert_eq!(limit_header(&degraded), "2", "what is shown is what is enforced");
    assert_eq!(degraded.binding().unwrap().limit.limit().to_string(), "2/1h sliding_log");
    assert_eq!(fleet.allowed(), [1, 2, 2, 2]);
    let denied = fleet.check(0);
    assert_eq!((denied.decision().remaining(), limit_header(&denied)), (0, "2".to_owned()));
    assert_eq!(
        fleet.instances[0].policy().rules()[0].settings().limits()[0].limit().capacity(),
        10
    );
}

#[test]
fn at_least_one_unit_passes_unless_none_may() {
    let small = Fleet::of_limit(4, "3/h", "sliding_log");
    small.down();
    assert_eq!(small.allowed(), [1, 1, 1, 1]);
    let none = Fleet::of_limit(4, "0/h", "sliding_log");
    none.down();
    assert_eq!(none.allowed(), [0, 0, 0, 0]);
}

#[test]
fn a_burst_is_divided_as_its_rate_is() {
    let limit = "{ max: 3600, window: 1h, burst: 20 }";
    let fleet = Fleet::of_limit(2, limit, "token_bucket");
    fleet.down();
    assert_eq!(fleet.allowed(), [10, 10]);
    fleet.clock.advance(Duration::from_secs(4));
    assert_eq!(fleet.allowed(), [2, 2], "half of four units");
}

#[test]
fn overrides_and_bans_hold_without_the_store() {
    let policy = "
rules:
  - name: a
    per: [tenant]
    when_missing: deny
    limits: [10/h]
    overrides:
      - { when: { plan: pro }, limits: [100/h] }
      - { when: { tenant: evil }, limits: denied }
";
    let fleet = Fleet::new(2, policy);
    fleet.down();
    let allowed = |attributes: &[(&str, &str)]| {
        let attributes = attributes.iter().copied();
        let request = Request::new("default", Descriptor::new(attributes));
        (0..200)
            .take_while(|_| {
                let ruling = block_on(fleet.instances[0].check(&request));
                assert!(ruling.decision().is_degraded());
                ruling.decision().is_allowed()
            })
            .count()
    };
    assert_eq!(allowed(&[("tenant", "acme")]), 5);
    assert_eq!(allowed(&[("tenant", "rich"), ("plan", "pro")]), 50);
    assert_eq!(allowed(&[("tenant", "evil")]), 0);
    assert_eq!(allowed(&[]), 0, "who lacks what the rule counts per");
}

#[test]
fn local_counts_stay_until_their_window_has_passed() {
    let fleet = Fleet::of_limit(1, "2/d", "sliding_log");
    fleet.down();
    assert_eq!(fleet.allowed(), [2]);
    assert_eq!(fleet.allowed(), [0], "they last as long as the outage");
    fleet.up();
    assert_eq!(fleet.allowed(), [2], "the store was charged nothing meanwhile");
    fleet.clock.advance(DAY / 2);
    fleet.check(0);
    fleet.down();
    assert_eq!(fleet.allowed(), [0], "the next outage begins with the counts of the last");
    fleet.up();
    fleet.clock.advance(DAY / 2);
    fleet.check(0);
    assert_eq!(fleet.instances[0].local_keys(), 0);
    fleet.down();
    assert_eq!(fleet.allowed(), [2]);
}

#[test]
fn local_counts_stay_below_local_max_memory() {
    const MIB: usize = 1 << 20;
    let fleet = Fleet::of_limit(1, "2/d", "sliding_log");
    fleet.down();
    let [gate] = <[Gate<FaultyStore>; 1]>::try_from(fleet.instances).ok().unwrap();
    let gate = gate.with_local_max_memory(MIB);
    let mut most = 0;
    for tenant in 0..20_000 {
        let tenant = tenant.to_string();
        let request = Request::new("default", Descriptor::new([("tenant", tenant.as_str())]));
        assert!(block_on(gate.check(&request)).decision().is_allowed());
        most = most.max(gate.local_memory_bytes());
    }
    assert!((MIB / 2..=MIB + MIB / 8).contains(&most), "{most}");
    assert!(gate.local_keys() < 15_000, "{}", gate.local_keys());
}

#[test]
fn a_store_that_answers_now_and_then_has_not_recovered() {
    let fleet = Fleet::of_limit(1, "2/d", "sliding_log");
    fleet.down();
    assert_eq!(fleet.allowed(), [2]);
    for _ in 0..10 {
        fleet.store.set_faults(UP);
        fleet.clock.advance(Duration::from_millis(900));
        fleet.check(0);
        fleet.down();
        assert_eq!(fleet.allowed(), [0], "whom the store fails does not find the counts empty");
    }
}

#[test]
fn any_answer_of_the_store_drops_counts_that_are_over() {
    let fleet = Fleet::of_limit(1, "2/d", "sliding_log");
    let gate = &fleet.instances[0];
    let charged = fleet.check(0);
    let answers: [&dyn Fn(); 3] =
        [&|| drop(block_on(gate.peek(&request()))), &|| drop(fleet.check(0)), &|| {
            block_on(gate.revert(charged.decision())).unwrap()
        }];
    for answer in answers {
        fleet.down();
        assert_eq!(fleet.allowed(), [2]);
        fleet.up_for_two_days();
        assert_eq!(gate.local_keys(), 1);
        answer();
        assert_eq!(gate.local_keys(), 0);
    }
}

#[test]
fn a_denial_by_the_store_is_an_answer() {
    let fleet = Fleet::of_limit(1, "1/d", "sliding_log");
    fleet.down();
    assert_eq!(fleet.allowed(), [1]);
    fleet.up();
    fleet.clock.advance(DAY / 2);
    assert_eq!(fleet.allowed(), [1]);
    fleet.clock.advance(DAY / 2);
    assert_eq!(fleet.instances[0].local_keys(), 1);
    assert_eq!(fleet.allowed(), [0]);
    assert_eq!(fleet.instances[0].local_keys(), 0);
}

#[test]
fn what_was_charged_in_memory_is_given_back_there_and_only_there() {
    for faults in [DOWN, Faults { lost_before: 100, ..UP }] {
        let fleet = Fleet::of_limit(1, "2/d", "sliding_log");
        fleet.store.set_faults(faults);
        let revert = |ruling: &Ruling| {
            block_on(fleet.instances[0].revert(ruling.decision())).unwrap();
        };
        let first = fleet.check(0);
        assert_eq!(fleet.allowed(), [1]);
        revert(&first);
        assert_eq!(fleet.allowed(), [1], "given back where it was charged");
        fleet.up_for_two_days();
        assert_eq!(fleet.allowed(), [2]);
        revert(&first);
        assert_eq!(fleet.allowed(), [0], "the store never charged it");
        fleet.store.set_faults(faults);
        assert_eq!(fleet.allowed(), [2]);
        revert(&first);
        assert_eq!(fleet.allowed(), [0], "nor did the counts of this outage");
    }
}

#[test]
fn a_call_that_timed_out_is_not_made_again() {
    let fleet = Fleet::of_limit(1, "5/d", "sliding_log");
    fleet.store.set_faults(Faults { lost_after: 100, ..UP });
    for _ in 0..3 {
        assert!(fleet.check(0).decision().is_degraded());
    }
    fleet.up();
    let gate = &fleet.instances[0];
    let left = block_on(gate.peek(&request())).decision().remaining();
    assert_eq!(left, 2, "each was charged once where it may have been, and nothing repeats it");
    let policy = gate.policy();
    let (request, store) = (request(), gate.store());
    let applied = policy.apply(&request);
    block_on(store.reset(&applied.hits())).unwrap();
    assert_eq!(fleet.allowed(), [5]);
}

/// Steps of a pause in microseconds and a number of requests, and whether the store is unavailable.
fn any_outages() -> impl Strategy<Value = (u32, u64, Vec<(u64, usize, bool)>)> {
    // An outage lasts several steps.
    let span = (prop::collection::vec((0..1_500_000_u64, 0..8_usize), 1..6), any::<bool>());
    let steps = prop::collection::vec(span, 1..16).prop_map(|spans| {
        let of_span = |(steps, is_down): (Vec<(u64, usize)>, bool)| {
            steps.into_iter().map(move |(pause, burst)| (pause, burst, is_down))
        };
        spans.into_iter().flat_map(of_span).collect()
    });
    (1..6_u32, 0..20_u64, steps)
        .prop_map(|(instances, above, steps)| (instances, u64::from(instances) + above, steps))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn across_any_number_of_outages_no_window_sees_more_than_twice_max(
        (instances, max, steps) in any_outages(),
        buckets in any::<bool>(),
    ) {
        let algorithm = if buckets { "sliding_buckets" } else { "sliding_log" };
        let fleet = Fleet::of_limit(instances, &format!("{max}/10s"), algorithm);
        let mut passed = Vec::new();
        for (nth, &(pause, burst, is_down)) in steps.iter().enumerate() {
            fleet.store.set_faults(if is_down { DOWN } else { UP });
            fleet.clock.advance(Duration::from_micros(pause));
            let now = slidegate::Clock::now(&fleet.clock).as_micros();
            for request in 0..burst * instances as usize {
                let ruling = fleet.check((nth + request) % instances as usize);
                if ruling.decision().is_allowed() {
                    passed.push(now);
                }
            }
        }
        for (nth, last) in passed.iter().enumerate() {
            let in_window = passed[..=nth].iter().filter(|at| **at + 10_000_000 > *last).count();
            prop_assert!(in_window as u64 <= 2 * max, "{in_window} of {max}");
        }
    }
}

/// A stall of half a second every 3.5 seconds. When each outage began with empty counts, 20 per minute admitted 202
/// requests in 40 seconds.
#[test]
fn a_flapping_store_adds_max_once() {
    let fleet = Fleet::of_limit(1, "20/min", "sliding_log");
    let mut passed = 0;
    for _ in 0..12 {
        fleet.down();
        passed += fleet.allowed()[0];
        fleet.clock.advance(Duration::from_millis(500));
        fleet.up();
        passed += fleet.allowed()[0];
        fleet.clock.advance(Duration::from_secs(2));
    }
    assert_eq!(passed, 40);
}

#[test]
fn across_an_outage_twice_max_do_pass() {
    let fleet = Fleet::of_limit(3, "9/h", "sliding_log");
    assert_eq!(fleet.allowed(), [9, 0, 0]);
    fleet.down();
    assert_eq!(fleet.allowed(), [3, 3, 3], "the bound is tight");
    fleet.up();
    assert_eq!(fleet.allowed(), [0, 0, 0]);
}

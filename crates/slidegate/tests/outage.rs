//! Outages: the decisions of a gate while its store is unavailable, and after it is available again.

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

/// Instances that share a store and a clock.
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
                .with_instances(NonZeroU32::new(instances).unwrap())
        };
        Self { instances: (0..instances).map(gate).collect(), store, clock }
    }

    /// Creates instances that enforce one limit per tenant.
    fn with_limit(instances: u32, limit: &str, algorithm: &str) -> Self {
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

    fn check(&self, instance: usize) -> Ruling {
        block_on(self.instances[instance].check(&request()))
    }

    /// Returns for each instance the number of requests that it allows before it denies one.
    fn allowed(&self) -> Vec<u64> {
        let count =
            |instance| (0..).take_while(|_| self.check(instance).decision().is_allowed()).count();
        (0..self.instances.len()).map(|instance| count(instance) as u64).collect()
    }
}

fn request() -> Request<'static> {
    Request::new("default", Descriptor::new([("tenant", "acme")]))
}

fn limit_header(ruling: &Ruling) -> String {
    headers::write(Style::X, ruling, Timestamp::default(), JitterSample::NONE)[0].1.clone()
}

#[test]
fn instance_enforces_its_share_during_outage() {
    let fleet = Fleet::with_limit(4, "10/h", "sliding_log");
    let normal = fleet.check(0);
    assert!(!normal.decision().is_degraded());
    assert_eq!(limit_header(&normal), "10", "the store enforces the whole limit");
    fleet.down();
    let degraded = fleet.check(0);
    assert!(degraded.decision().is_degraded());
    assert_eq!(degraded.decision().remaining(), 1);
    assert_eq!(limit_header(&degraded), "2", "headers show the enforced limit");
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
fn share_is_at_least_one_unit() {
    let small = Fleet::with_limit(4, "3/h", "sliding_log");
    small.down();
    assert_eq!(small.allowed(), [1, 1, 1, 1]);
    let none = Fleet::with_limit(4, "0/h", "sliding_log");
    none.down();
    assert_eq!(none.allowed(), [0, 0, 0, 0]);
}

#[test]
fn burst_is_divided_like_its_rate() {
    let limit = "{ max: 3600, window: 1h, burst: 20 }";
    let fleet = Fleet::with_limit(2, limit, "token_bucket");
    fleet.down();
    assert_eq!(fleet.allowed(), [10, 10]);
    fleet.clock.advance(Duration::from_secs(4));
    assert_eq!(fleet.allowed(), [2, 2], "half of four units");
}

#[test]
fn overrides_and_bans_apply_during_outage() {
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
    assert_eq!(allowed(&[]), 0, "without the attribute that the rule counts by");
}

#[test]
fn local_counts_are_kept_for_their_window() {
    let fleet = Fleet::with_limit(1, "2/d", "sliding_log");
    fleet.down();
    assert_eq!(fleet.allowed(), [2]);
    assert_eq!(fleet.allowed(), [0], "local counts are kept during the outage");
    fleet.up();
    assert_eq!(fleet.allowed(), [2], "the store was not charged during the outage");
    fleet.clock.advance(DAY / 2);
    fleet.check(0);
    fleet.down();
    assert_eq!(fleet.allowed(), [0], "the next outage continues with the same counts");
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
    let fleet = Fleet::with_limit(1, "2/d", "sliding_log");
    fleet.down();
    let [gate] = <[Gate<FaultyStore>; 1]>::try_from(fleet.instances).ok().unwrap();
    let gate = gate.with_local_max_memory(MIB);
    let mut max_bytes = 0;
    for tenant in 0..20_000 {
        let tenant = tenant.to_string();
        let request = Request::new("default", Descriptor::new([("tenant", tenant.as_str())]));
        assert!(block_on(gate.check(&request)).decision().is_allowed());
        max_bytes = max_bytes.max(gate.local_memory_bytes());
    }
    assert!((MIB / 2..=MIB + MIB / 8).contains(&max_bytes), "{max_bytes}");
    assert!(gate.local_keys() < 15_000, "{}", gate.local_keys());
}

#[test]
fn intermittent_success_keeps_local_counts() {
    let fleet = Fleet::with_limit(1, "2/d", "sliding_log");
    fleet.down();
    assert_eq!(fleet.allowed(), [2]);
    for _ in 0..10 {
        fleet.store.set_faults(UP);
        fleet.clock.advance(Duration::from_millis(900));
        fleet.check(0);
        fleet.down();
        assert_eq!(fleet.allowed(), [0], "the local counts are not empty");
    }
}

#[test]
fn any_store_success_drops_expired_counts() {
    let fleet = Fleet::with_limit(1, "2/d", "sliding_log");
    let gate = &fleet.instances[0];
    let charged = fleet.check(0);
    let calls: [&dyn Fn(); 3] =
        [&|| drop(block_on(gate.peek(&request()))), &|| drop(fleet.check(0)), &|| {
            block_on(gate.revert(charged.decision())).unwrap()
        }];
    for call in calls {
        fleet.down();
        assert_eq!(fleet.allowed(), [2]);
        fleet.up_for_two_days();
        assert_eq!(gate.local_keys(), 1);
        call();
        assert_eq!(gate.local_keys(), 0);
    }
}

#[test]
fn denial_by_store_counts_as_success() {
    let fleet = Fleet::with_limit(1, "1/d", "sliding_log");
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
fn local_charge_is_reverted_only_locally() {
    for faults in [DOWN, Faults { lost_before: 100, ..UP }] {
        let fleet = Fleet::with_limit(1, "2/d", "sliding_log");
        fleet.store.set_faults(faults);
        let revert = |ruling: &Ruling| {
            block_on(fleet.instances[0].revert(ruling.decision())).unwrap();
        };
        let first = fleet.check(0);
        assert_eq!(fleet.allowed(), [1]);
        revert(&first);
        assert_eq!(fleet.allowed(), [1], "reverted in the local counts");
        fleet.up_for_two_days();
        assert_eq!(fleet.allowed(), [2]);
        revert(&first);
        assert_eq!(fleet.allowed(), [0], "the store did not charge it");
        fleet.store.set_faults(faults);
        assert_eq!(fleet.allowed(), [2]);
        revert(&first);
        assert_eq!(fleet.allowed(), [0], "the counts of this outage did not charge it");
    }
}

#[test]
fn timed_out_call_is_not_retried() {
    let fleet = Fleet::with_limit(1, "5/d", "sliding_log");
    fleet.store.set_faults(Faults { lost_after: 100, ..UP });
    for _ in 0..3 {
        assert!(fleet.check(0).decision().is_degraded());
    }
    fleet.up();
    let gate = &fleet.instances[0];
    let remaining = block_on(gate.peek(&request())).decision().remaining();
    assert_eq!(remaining, 2, "each call was charged once in the store");
    let policy = gate.policy();
    let (request, store) = (request(), gate.store());
    let matched = policy.apply(&request);
    block_on(store.reset(&matched.hits())).unwrap();
    assert_eq!(fleet.allowed(), [5]);
}

/// Generates the number of instances, a max, and steps: a pause in microseconds, a number of requests, and whether the
/// store is unavailable.
fn any_outages() -> impl Strategy<Value = (u32, u64, Vec<(u64, usize, bool)>)> {
    // An outage lasts several steps.
    let span = (prop::collection::vec((0..1_500_000_u64, 0..8_usize), 1..6), any::<bool>());
    let steps = prop::collection::vec(span, 1..16).prop_map(|spans| {
        let flatten = |(steps, is_down): (Vec<(u64, usize)>, bool)| {
            steps.into_iter().map(move |(pause, burst)| (pause, burst, is_down))
        };
        spans.into_iter().flat_map(flatten).collect()
    });
    (1..6_u32, 0..20_u64, steps)
        .prop_map(|(instances, above, steps)| (instances, u64::from(instances) + above, steps))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn outages_admit_at_most_twice_max_per_window(
        (instances, max, steps) in any_outages(),
        buckets in any::<bool>(),
    ) {
        let algorithm = if buckets { "sliding_buckets" } else { "sliding_log" };
        let fleet = Fleet::with_limit(instances, &format!("{max}/10s"), algorithm);
        let mut allowed = Vec::new();
        for (index, &(pause, burst, is_down)) in steps.iter().enumerate() {
            fleet.store.set_faults(if is_down { DOWN } else { UP });
            fleet.clock.advance(Duration::from_micros(pause));
            let now = slidegate::Clock::now(&fleet.clock).as_micros();
            for request in 0..burst * instances as usize {
                let ruling = fleet.check((index + request) % instances as usize);
                if ruling.decision().is_allowed() {
                    allowed.push(now);
                }
            }
        }
        for (index, last) in allowed.iter().enumerate() {
            let in_window = allowed[..=index].iter().filter(|at| **at + 10_000_000 > *last).count();
            prop_assert!(in_window as u64 <= 2 * max, "{in_window} of {max}");
        }
    }
}

/// A stall of half a second every 3.5 seconds. When each outage began with empty counts, 20 per minute admitted 202
/// requests in 40 seconds.
#[test]
fn flapping_store_adds_max_once() {
    let fleet = Fleet::with_limit(1, "20/min", "sliding_log");
    let mut allowed = 0;
    for _ in 0..12 {
        fleet.down();
        allowed += fleet.allowed()[0];
        fleet.clock.advance(Duration::from_millis(500));
        fleet.up();
        allowed += fleet.allowed()[0];
        fleet.clock.advance(Duration::from_secs(2));
    }
    assert_eq!(allowed, 40);
}

#[test]
fn outage_bound_of_twice_max_is_tight() {
    let fleet = Fleet::with_limit(3, "9/h", "sliding_log");
    assert_eq!(fleet.allowed(), [9, 0, 0]);
    fleet.down();
    assert_eq!(fleet.allowed(), [3, 3, 3], "the bound is tight");
    fleet.up();
    assert_eq!(fleet.allowed(), [0, 0, 0]);
}

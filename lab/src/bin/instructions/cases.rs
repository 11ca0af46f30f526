//! Defines the kinds of decisions whose instructions are counted. Before the count, each kind of decision is repeated
//! with the same keys until all decisions execute the same code path.

use std::error::Error;

use lab::block_limiters::{charge_in_store, new_tenant_scope};
use lab::policies::{SHAPES, Workload};
use lab::simulated_node::SimulatedNode;
use slidegate::{
    Algorithm, Decision, Hit, Key, Limit, Limiter, ManualClock, MemoryStore, Store, Timestamp,
};

const BATCH_SIZE: usize = 16;

/// The number of keys: a multiple of the batch size. It is so high that the instruction counts hardly depend on the
/// distribution of the keys over the shards and blocks of the store.
const KEY_COUNT: usize = 32 * BATCH_SIZE;

/// The maximum number of units per key and window in the cases in which requests are denied.
const MAX_UNITS_PER_KEY: usize = 100;

/// The number of decisions before the counted decisions. In a case with denied requests, every key has then reached its
/// limit. In a case with allowed requests, requests have then been sent for more than a minute of the manual clock.
const WARM_UP_DECISIONS: usize = KEY_COUNT * MAX_UNITS_PER_KEY;

/// The number of decisions whose instructions are counted.
pub const DECISIONS: usize = 10_000;

/// The time of the first decision, in microseconds. A case lasts a few minutes after this time. During a case, a
/// calendar window ends only if its length is at most a minute.
const FIRST_DECISION_TIME_US: u64 = 1_700_000_000_000_000;

/// A kind of decision whose instructions are counted.
pub struct Case {
    pub name: String,
    limits: Vec<Limit>,
    /// The time between two decisions, in microseconds.
    step_us: u64,
    /// Whether decisions after the warm-up are allowed. If not, they are denied.
    is_allowed: bool,
    decision_call: DecisionCall,
}

/// The API call that makes the decisions of a case.
enum DecisionCall {
    TextKey,
    NumberKey,
    Batch,
    /// A call of a gate. Its policy has this number of rules, each for a different route.
    Gate(usize),
    /// A call of a store, through the trait that all stores implement.
    Store(StoreKind),
}

/// The store of a case that calls a store.
#[derive(Clone, Copy)]
enum StoreKind {
    Memory,
    ClusterOfOne,
    /// The other nodes have acknowledged all flushes.
    ClusterOfThree,
}

/// Returns all cases, in the order of the file with the expected counts.
pub fn all_cases() -> Result<Vec<Case>, Box<dyn Error>> {
    let mut cases = sliding_window_cases()?;
    let other = |algorithm: &Algorithm| !matches!(algorithm, Algorithm::SlidingWindow { .. });
    for algorithm in Algorithm::ALL.into_iter().filter(other) {
        let text = algorithm.name();
        let quota = match algorithm {
            // With a fast refill it evicts a key that is requested once a second.
            Algorithm::TokenBucket { .. } => "1000/w",
            _ => "100/min",
        };
        cases.push(Case::new_case_with_allowed_requests(
            text,
            vec![new_limit(quota, algorithm)?],
            DecisionCall::TextKey,
        ));
        cases.push(Case::new_case_with_denied_requests(text, vec![new_limit("100/w", algorithm)?]));
    }
    let window = |quota| new_limit(quota, Algorithm::SlidingCounter);
    let three = vec![window("100/min")?, window("10000/h")?, window("200000/d")?];
    cases.push(Case::new_case_with_allowed_requests("three_limits", three, DecisionCall::TextKey));
    cases.push(Case::new_case_with_allowed_requests(
        "check_many",
        vec![window("100/min")?],
        DecisionCall::Batch,
    ));
    cases.push(Case::new_case_with_allowed_requests(
        "u64_key",
        vec![window("100/min")?],
        DecisionCall::NumberKey,
    ));
    for rules in [3, 1_000] {
        cases.push(Case::new_case_with_allowed_requests(
            &format!("gate_{rules}_rules"),
            vec![],
            DecisionCall::Gate(rules),
        ));
    }
    for (name, store) in [
        ("store.memory", StoreKind::Memory),
        ("store.cluster_of_one", StoreKind::ClusterOfOne),
        ("store.cluster_of_three", StoreKind::ClusterOfThree),
    ] {
        let limits = |quota| Ok::<_, Box<dyn Error>>(vec![new_limit(quota, Algorithm::default())?]);
        let call = DecisionCall::Store(store);
        cases.push(Case::new_case_with_allowed_requests(name, limits("1000000/w")?, call));
        let denied = Case::new_case_with_denied_requests(name, limits("100/w")?);
        cases.push(Case { decision_call: DecisionCall::Store(store), ..denied });
    }
    Ok(cases)
}

/// Returns the cases of `sliding_window`, whose instructions depend on the number of entries.
fn sliding_window_cases() -> Result<Vec<Case>, Box<dyn Error>> {
    let limits = |quota| Ok::<_, Box<dyn Error>>(vec![new_limit(quota, Algorithm::default())?]);
    let [one, many] = ["sliding_window.one_entry", "sliding_window.many_entries"];
    let text = || DecisionCall::TextKey;
    Ok(vec![
        // An entry has up to 31,250 units of five hours.
        Case::new_case_with_allowed_requests(one, limits("1000000/w")?, text()),
        // All charges of a key have the same tick.
        Case::new_case_with_denied_requests(one, limits("100/w")?),
        // An entry has the two charges of less than 60/32 seconds. The oldest of 30 entries expires every two seconds.
        Case::new_case_with_allowed_requests(many, limits("100/min")?, text()),
        // 32 entries of three units, none of which expires during the case.
        Case {
            is_allowed: false,
            name: format!("{many}.denied"),
            ..Case::new_case_with_allowed_requests(many, limits("96/3min")?, text())
        },
    ])
}

fn new_limit(quota: &str, algorithm: Algorithm) -> Result<Limit, Box<dyn Error>> {
    Ok(Limit::new(quota.parse()?, algorithm)?)
}

impl Case {
    /// Creates a case in which each key is requested once a second, and every request is allowed.
    fn new_case_with_allowed_requests(
        name: &str,
        limits: Vec<Limit>,
        decision_call: DecisionCall,
    ) -> Self {
        let step_us = 1_000_000 / KEY_COUNT as u64;
        Self { name: format!("{name}.allowed"), limits, step_us, is_allowed: true, decision_call }
    }

    /// Creates a case in which time hardly advances. Keys that have reached their limit therefore stay denied.
    fn new_case_with_denied_requests(name: &str, limits: Vec<Limit>) -> Self {
        Self {
            name: format!("{name}.denied"),
            limits,
            step_us: 1,
            is_allowed: false,
            decision_call: DecisionCall::TextKey,
        }
    }

    /// Makes the decisions of the warm-up, and then the counted decisions.
    ///
    /// # Errors
    /// If a counted decision is not allowed or denied as the case expects.
    pub fn run(self) -> Result<(), Box<dyn Error>> {
        let clock = ManualClock::at(Timestamp::from_micros(FIRST_DECISION_TIME_US));
        let store = MemoryStore::with_clock(clock.clone(), 10 * KEY_COUNT);
        let pass_time = |nth: usize| {
            clock.set(Timestamp::from_micros(FIRST_DECISION_TIME_US + nth as u64 * self.step_us))
        };
        if let DecisionCall::Gate(rules) = self.decision_call {
            let workload = Workload::with_store(SHAPES[0], rules, store)?;
            return self.warm_up_and_check_decisions(&|nth| {
                pass_time(nth);
                workload.check(nth).is_allowed() == self.is_allowed
            });
        }
        let texts: Vec<String> = (0..KEY_COUNT).map(|nth| format!("tenant:{nth:013}")).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        if let DecisionCall::Store(kind) = self.decision_call {
            let new_node = || SimulatedNode::with_clock(clock.clone(), 1, 10 * KEY_COUNT);
            return match kind {
                StoreKind::Memory => self.check_store_decisions(&store, &texts, &pass_time),
                StoreKind::ClusterOfOne => {
                    self.check_store_decisions(new_node().store(), &texts, &pass_time)
                }
                StoreKind::ClusterOfThree => {
                    let node = new_node();
                    node.acknowledge_updates_up_to(u64::MAX);
                    self.check_store_decisions(node.store(), &texts, &pass_time)
                }
            };
        }
        let limiter = Limiter::with_store(self.limits.clone(), store)?;

        let is_as_expected = |decision: &Decision<'_>| decision.is_allowed() == self.is_allowed;
        self.warm_up_and_check_decisions(&|nth| {
            pass_time(nth);
            match self.decision_call {
                DecisionCall::TextKey => is_as_expected(&limiter.check(texts[nth % KEY_COUNT])),
                DecisionCall::NumberKey => {
                    is_as_expected(&limiter.check(&((nth % KEY_COUNT) as u64)))
                }
                DecisionCall::Batch if nth.is_multiple_of(BATCH_SIZE) => {
                    let keys = &texts[nth % KEY_COUNT..][..BATCH_SIZE];
                    limiter.check_many(keys).iter().all(is_as_expected)
                }
                DecisionCall::Batch | DecisionCall::Gate(_) | DecisionCall::Store(_) => true,
            }
        })
    }

    /// Makes the decisions with hits of the store, one for each key in turn.
    fn check_store_decisions(
        &self,
        store: &impl Store,
        texts: &[&str],
        pass_time: &dyn Fn(usize),
    ) -> Result<(), Box<dyn Error>> {
        let (scope, limit) = (new_tenant_scope(), self.limits[0]);
        self.warm_up_and_check_decisions(&|nth| {
            pass_time(nth);
            let value = [texts[nth % KEY_COUNT].into()];
            let hit = Hit::new(Key::new(&scope, &value), &limit, 1);
            charge_in_store(store, &[hit]) == self.is_allowed
        })
    }

    /// Makes the decisions of the warm-up, and then the counted decisions. `decide` makes the decision with this
    /// number, and returns `true` if its result is as expected.
    fn warm_up_and_check_decisions(
        &self,
        decide: &dyn Fn(usize) -> bool,
    ) -> Result<(), Box<dyn Error>> {
        (0..WARM_UP_DECISIONS).for_each(|nth| {
            decide(nth);
        });
        match run_counted_decisions(decide) {
            0 => Ok(()),
            unexpected => Err(format!("{unexpected} decisions are not {}", self.name).into()),
        }
    }
}

/// Makes the counted decisions and returns the number of unexpected results. Callgrind finds this function by its name
/// and counts only the instructions within it. The instructions of the warm-up, which differ slightly between
/// processes, are not counted.
#[inline(never)]
fn run_counted_decisions(decide: &dyn Fn(usize) -> bool) -> usize {
    (WARM_UP_DECISIONS..WARM_UP_DECISIONS + DECISIONS).filter(|&nth| !decide(nth)).count()
}

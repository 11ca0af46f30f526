//! Decisions to count instructions for, in a steady state over a set of keys.

use std::error::Error;

use lab::policies::{SHAPES, Workload};
use slidegate::{Algorithm, Limit, Limiter, ManualClock, MemoryStore, Timestamp, Verdict};

const BATCH: usize = 16;

/// A multiple of the batch size, high enough that the distribution over shards and blocks hardly matters.
const KEYS: usize = 32 * BATCH;

/// The limit of a key.
const MAX: usize = 100;

/// The number of decisions before the counted ones. Afterwards every key is full, or has been requested for more than
/// a window.
const WARM_UP: usize = KEYS * MAX;

/// The number of counted decisions.
pub const DECISIONS: usize = 10_000;

/// The start time. No calendar window longer than a minute ends within the minutes of a case from here.
const START_US: u64 = 1_700_000_000_000_000;

/// A kind of decision.
pub struct Case {
    pub name: String,
    limits: Vec<Limit>,
    /// The time between decisions.
    step_us: u64,
    /// Whether the decisions are allowed after the warm-up.
    is_allowed: bool,
    check_kind: CheckKind,
}

/// The call that makes the decision.
enum CheckKind {
    TextKey,
    NumberKey,
    Batch,
    /// Through a gate with a policy of this number of rules, each for a route.
    Gate(usize),
}

/// Returns all cases, in the order of the file.
pub fn all_cases() -> Result<Vec<Case>, Box<dyn Error>> {
    let mut cases = Vec::new();
    for algorithm in Algorithm::ALL {
        let text = algorithm.name();
        let quota = match algorithm {
            // With a fast refill it evicts a key that is requested once a second.
            Algorithm::TokenBucket { .. } => "1000/w",
            _ => "100/min",
        };
        cases.push(Case::new_allowed(text, vec![limit(quota, algorithm)?], CheckKind::TextKey));
        cases.push(Case::new_denied(text, vec![limit("100/w", algorithm)?]));
    }
    let window = |quota| limit(quota, Algorithm::SlidingWindow);
    let three = vec![window("100/min")?, window("10000/h")?, window("200000/d")?];
    cases.push(Case::new_allowed("three_limits", three, CheckKind::TextKey));
    cases.push(Case::new_allowed("check_many", vec![window("100/min")?], CheckKind::Batch));
    cases.push(Case::new_allowed("u64_key", vec![window("100/min")?], CheckKind::NumberKey));
    for rules in [3, 1_000] {
        cases.push(Case::new_allowed(
            &format!("gate_{rules}_rules"),
            vec![],
            CheckKind::Gate(rules),
        ));
    }
    Ok(cases)
}

fn limit(quota: &str, algorithm: Algorithm) -> Result<Limit, Box<dyn Error>> {
    Ok(Limit::new(quota.parse()?, algorithm)?)
}

impl Case {
    /// Creates a case in which each key is requested once a second and allowed.
    fn new_allowed(name: &str, limits: Vec<Limit>, check_kind: CheckKind) -> Self {
        let step_us = 1_000_000 / KEYS as u64;
        Self { name: format!("{name}.allowed"), limits, step_us, is_allowed: true, check_kind }
    }

    /// Creates a case in which time hardly advances, so full keys stay denied.
    fn new_denied(name: &str, limits: Vec<Limit>) -> Self {
        Self {
            name: format!("{name}.denied"),
            limits,
            step_us: 1,
            is_allowed: false,
            check_kind: CheckKind::TextKey,
        }
    }

    /// Warms up, and then makes the counted decisions.
    pub fn run(self) -> Result<(), Box<dyn Error>> {
        let clock = ManualClock::at(Timestamp::from_micros(START_US));
        let store = MemoryStore::with_clock(clock.clone(), 10 * KEYS);
        let pass_time =
            |nth: usize| clock.set(Timestamp::from_micros(START_US + nth as u64 * self.step_us));
        if let CheckKind::Gate(rules) = self.check_kind {
            let workload = Workload::with_store(SHAPES[0], rules, store)?;
            return self.warm_up_and_count(&|nth| {
                pass_time(nth);
                workload.check(nth).decision().is_allowed() == self.is_allowed
            });
        }
        let limiter = Limiter::with_store(self.limits.clone(), store)?;
        let texts: Vec<String> = (0..KEYS).map(|nth| format!("tenant:{nth:013}")).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();

        let is_as_expected = |verdict: &Verdict| verdict.is_allowed() == self.is_allowed;
        self.warm_up_and_count(&|nth| {
            pass_time(nth);
            match self.check_kind {
                CheckKind::TextKey => is_as_expected(&limiter.check(texts[nth % KEYS])),
                CheckKind::NumberKey => is_as_expected(&limiter.check(&((nth % KEYS) as u64))),
                CheckKind::Batch if nth.is_multiple_of(BATCH) => {
                    let keys = &texts[nth % KEYS..][..BATCH];
                    limiter.check_many(keys).iter().all(is_as_expected)
                }
                CheckKind::Batch | CheckKind::Gate(_) => true,
            }
        })
    }

    /// Makes the decisions of the warm-up, and then the counted ones.
    fn warm_up_and_count(&self, decide: &dyn Fn(usize) -> bool) -> Result<(), Box<dyn Error>> {
        (0..WARM_UP).for_each(|nth| {
            decide(nth);
        });
        match run_counted_decisions(decide) {
            0 => Ok(()),
            unexpected => Err(format!("{unexpected} decisions are not {}", self.name).into()),
        }
    }
}

/// Makes the counted decisions and returns the number of unexpected results. Callgrind finds this function by its
/// name, so the warm-up is not counted, which differs slightly between processes.
#[inline(never)]
fn run_counted_decisions(decide: &dyn Fn(usize) -> bool) -> usize {
    (WARM_UP..WARM_UP + DECISIONS).filter(|&nth| !decide(nth)).count()
}

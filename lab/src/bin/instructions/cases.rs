//! Decisions whose instructions are counted, each over some keys in a steady state.

use std::error::Error;

use lab::policies::{SHAPES, Workload};
use slidegate::{Algorithm, Limit, Limiter, ManualClock, MemoryStore, Timestamp, Verdict};

const BATCH: usize = 16;

/// Enough that it hardly matters which of them meet in a shard or block, and whole batches.
const KEYS: usize = 32 * BATCH;

/// Units that a key may have.
const MAX: usize = 100;

/// Decisions before those that are counted: every key is then full, or has had its turn for a window
/// and more.
const WARM_UP: usize = KEYS * MAX;

/// Decisions that are counted.
pub const DECISIONS: usize = 10_000;

/// No calendar window longer than a minute ends within the minutes that a case takes from here.
const START_US: u64 = 1_700_000_000_000_000;

/// One kind of decision.
pub struct Case {
    pub name: String,
    limits: Vec<Limit>,
    /// The time from one decision to the next.
    step_us: u64,
    /// Whether the decisions are allowed, once warmed up.
    allowed: bool,
    ask: Ask,
}

/// How the limiter is asked.
enum Ask {
    ByText,
    ByNumber,
    InBatches,
    /// Through a gate, under a policy of so many rules, each for a route.
    ByGate(usize),
}

/// Every case, in the order of the file.
pub fn all() -> Result<Vec<Case>, Box<dyn Error>> {
    let mut cases = Vec::new();
    for algorithm in Algorithm::ALL {
        let text = algorithm.name();
        let quota = match algorithm {
            // It forgets a key that it allows once a second, unless it refills slowly.
            Algorithm::TokenBucket { .. } => "1000/w",
            _ => "100/min",
        };
        cases.push(Case::allowed(text, vec![limit(quota, algorithm)?], Ask::ByText));
        cases.push(Case::denied(text, vec![limit("100/w", algorithm)?]));
    }
    let window = |quota| limit(quota, Algorithm::SlidingWindow);
    let three = vec![window("100/min")?, window("10000/h")?, window("200000/d")?];
    cases.push(Case::allowed("three_limits", three, Ask::ByText));
    cases.push(Case::allowed("check_many", vec![window("100/min")?], Ask::InBatches));
    cases.push(Case::allowed("u64_key", vec![window("100/min")?], Ask::ByNumber));
    for rules in [3, 1_000] {
        cases.push(Case::allowed(&format!("gate_{rules}_rules"), vec![], Ask::ByGate(rules)));
    }
    Ok(cases)
}

fn limit(quota: &str, algorithm: Algorithm) -> Result<Limit, Box<dyn Error>> {
    Ok(Limit::new(quota.parse()?, algorithm)?)
}

impl Case {
    /// Each key is asked once a second.
    fn allowed(name: &str, limits: Vec<Limit>, ask: Ask) -> Self {
        let step_us = 1_000_000 / KEYS as u64;
        Self { name: format!("{name}.allowed"), limits, step_us, allowed: true, ask }
    }

    /// The time hardly passes, so that no full key has room again.
    fn denied(name: &str, limits: Vec<Limit>) -> Self {
        Self {
            name: format!("{name}.denied"),
            limits,
            step_us: 1,
            allowed: false,
            ask: Ask::ByText,
        }
    }

    /// Warms up, and then makes the decisions that are counted.
    pub fn run(self) -> Result<(), Box<dyn Error>> {
        let clock = ManualClock::at(Timestamp::from_micros(START_US));
        let store = MemoryStore::with_clock(clock.clone(), 10 * KEYS);
        let pass_time =
            |nth: usize| clock.set(Timestamp::from_micros(START_US + nth as u64 * self.step_us));
        if let Ask::ByGate(rules) = self.ask {
            let workload = Workload::with(SHAPES[0], rules, store)?;
            return self.count(&|nth| {
                pass_time(nth);
                workload.check(nth).decision().is_allowed() == self.allowed
            });
        }
        let limiter = Limiter::with_store(self.limits.clone(), store)?;
        let texts: Vec<String> = (0..KEYS).map(|nth| format!("tenant:{nth:013}")).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();

        let is_as_expected = |verdict: &Verdict| verdict.is_allowed() == self.allowed;
        self.count(&|nth| {
            pass_time(nth);
            match self.ask {
                Ask::ByText => is_as_expected(&limiter.check(texts[nth % KEYS])),
                Ask::ByNumber => is_as_expected(&limiter.check(&((nth % KEYS) as u64))),
                Ask::InBatches if nth.is_multiple_of(BATCH) => {
                    let keys = &texts[nth % KEYS..][..BATCH];
                    limiter.check_many(keys).iter().all(is_as_expected)
                }
                Ask::InBatches | Ask::ByGate(_) => true,
            }
        })
    }

    /// Decides until all is warm, and then what is counted.
    fn count(&self, decide: &dyn Fn(usize) -> bool) -> Result<(), Box<dyn Error>> {
        (0..WARM_UP).for_each(|nth| {
            decide(nth);
        });
        match count_instructions(decide) {
            0 => Ok(()),
            unexpected => Err(format!("{unexpected} decisions are not {}", self.name).into()),
        }
    }
}

/// Makes the decisions that are counted; how many were not as expected. Callgrind knows this function
/// by its name, so that the warm-up, which no two processes do quite alike, is not counted.
#[inline(never)]
fn count_instructions(decide: &dyn Fn(usize) -> bool) -> usize {
    (WARM_UP..WARM_UP + DECISIONS).filter(|&nth| !decide(nth)).count()
}

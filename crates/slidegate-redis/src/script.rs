//! The scripts: the files in `lua/`, joined.

use std::fmt::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use slidegate::Algorithm;
use tokio::sync::Mutex;

const BASE: &str = include_str!("../lua/base.lua");
const SLOTS: &str = include_str!("../lua/slots.lua");
const ONE_SLOT: &str = include_str!("../lua/one_slot.lua");
const ONE_OWN: &str = include_str!("../lua/one_own.lua");
const GROUP: &str = include_str!("../lua/group.lua");
const BATCH: &str = include_str!("../lua/batch.lua");
const GIVE_BACK: &str = include_str!("../lua/revert.lua");
const REFUND: &str = include_str!("../lua/refund.lua");
const RESET: &str = include_str!("../lua/reset.lua");

/// How many sets of algorithms there are.
const SETS: usize = 1 << Algorithm::ALL.len();

/// The files of an algorithm.
struct Twin {
    file: &'static str,
    revert: &'static str,
    refund: &'static str,
    /// Its state is a slot of a value that is shared, and not a key of its own.
    is_slot: bool,
}

fn twin(algorithm: &Algorithm) -> Twin {
    macro_rules! twin {
        ($name:literal, $is_slot:literal) => {
            Twin {
                file: include_str!(concat!("../lua/", $name, ".lua")),
                revert: include_str!(concat!("../lua/revert/", $name, ".lua")),
                refund: include_str!(concat!("../lua/refund/", $name, ".lua")),
                is_slot: $is_slot,
            }
        };
    }
    match algorithm {
        Algorithm::SlidingLog => twin!("sliding_log", false),
        Algorithm::SlidingBuckets { .. } => twin!("sliding_buckets", false),
        Algorithm::SlidingWindow => twin!("sliding_window", true),
        Algorithm::FixedWindow { .. } => twin!("fixed_window", true),
        Algorithm::TokenBucket { .. } => twin!("token_bucket", true),
    }
}

/// Whether the state of an algorithm is a slot of a value that several limits share.
pub fn is_slot(algorithm: &Algorithm) -> bool {
    twin(algorithm).is_slot
}

/// The number of an algorithm in scripts: its place in [`Algorithm::ALL`], from 1.
pub fn number(algorithm: &Algorithm) -> u8 {
    match algorithm {
        Algorithm::SlidingLog => 1,
        Algorithm::SlidingBuckets { .. } => 2,
        Algorithm::SlidingWindow => 3,
        Algorithm::FixedWindow { .. } => 4,
        Algorithm::TokenBucket { .. } => 5,
    }
}

/// A set of algorithms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Set(u8);

impl Set {
    pub fn with(self, algorithm: &Algorithm) -> Self {
        Self(self.0 | 1 << (number(algorithm) - 1))
    }

    fn all(self) -> impl Iterator<Item = Algorithm> {
        Algorithm::ALL.into_iter().filter(move |algorithm| self.with(algorithm) == self)
    }
}

/// A script, and what is known of it at the server.
#[derive(Debug)]
pub struct Script {
    pub text: String,
    pub sha: String,
    /// How often it has been sent as a whole.
    pub loads: AtomicU64,
    /// Held by who sends it as a whole.
    pub loading: Mutex<()>,
}

impl Script {
    fn new(text: String) -> Self {
        let sha = sha1_smol::Sha1::from(&text).hexdigest();
        Self { text, sha, loads: AtomicU64::new(0), loading: Mutex::const_new(()) }
    }

    pub fn loads(&self) -> u64 {
        self.loads.load(Ordering::Acquire)
    }
}

/// All scripts; each is made when it is first needed.
#[derive(Debug)]
pub struct Scripts {
    one: [OnceLock<Script>; Algorithm::ALL.len()],
    group: [OnceLock<Script>; SETS],
    batch: [OnceLock<Script>; SETS],
    revert: [OnceLock<Script>; SETS],
    refund: [OnceLock<Script>; SETS],
    reset: OnceLock<Script>,
}

impl Scripts {
    pub fn new() -> Self {
        Self {
            one: [const { OnceLock::new() }; Algorithm::ALL.len()],
            group: [const { OnceLock::new() }; SETS],
            batch: [const { OnceLock::new() }; SETS],
            revert: [const { OnceLock::new() }; SETS],
            refund: [const { OnceLock::new() }; SETS],
            reset: OnceLock::new(),
        }
    }

    /// Decides one hit under an algorithm.
    pub fn one(&self, algorithm: &Algorithm) -> &Script {
        self.one[usize::from(number(algorithm)) - 1].get_or_init(|| {
            let Twin { file, is_slot, .. } = twin(algorithm);
            Script::new([BASE, file, if is_slot { ONE_SLOT } else { ONE_OWN }].join("\n"))
        })
    }

    /// Decides several hits whose states share one value, under these algorithms.
    pub fn group(&self, set: Set) -> &Script {
        self.group[usize::from(set.0)].get_or_init(|| over(set, Deed::Decide, GROUP))
    }

    /// Decides any requests under these algorithms, one after another.
    pub fn batch(&self, set: Set) -> &Script {
        self.batch[usize::from(set.0)].get_or_init(|| over(set, Deed::Decide, BATCH))
    }

    /// Gives back what was charged under these algorithms.
    pub fn revert(&self, set: Set) -> &Script {
        self.revert[usize::from(set.0)].get_or_init(|| over(set, Deed::Revert, GIVE_BACK))
    }

    /// Takes units off counters of these algorithms.
    pub fn refund(&self, set: Set) -> &Script {
        self.refund[usize::from(set.0)].get_or_init(|| over(set, Deed::Refund, REFUND))
    }

    /// Forgets counters.
    pub fn reset(&self) -> &Script {
        self.reset.get_or_init(|| Script::new([BASE, SLOTS, RESET].join("\n")))
    }
}

/// What a script does with an algorithm.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Deed {
    Decide,
    Revert,
    Refund,
}

/// A script that finds each algorithm's function by its number.
fn over(set: Set, deed: Deed, driver: &str) -> Script {
    let mut text = [BASE, SLOTS, "local own, slot = {}, {}\n"].join("\n");
    if deed == Deed::Refund {
        text.push_str("local refunds = {}\n");
    }
    for algorithm in set.all() {
        let (twin, number) = (twin(&algorithm), number(&algorithm));
        let family = if twin.is_slot { "slot" } else { "own" };
        text.push_str(twin.file);
        // Writing into a string cannot fail.
        let _ = match deed {
            Deed::Decide => writeln!(text, "{family}[{number}] = decide"),
            Deed::Revert => writeln!(text, "{}{family}[{number}] = revert", twin.revert),
            Deed::Refund => writeln!(
                text,
                "{family}[{number}] = decide\n{}refunds[{number}] = refund",
                twin.refund
            ),
        };
    }
    text.push_str(driver);
    Script::new(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_places() {
        for (place, algorithm) in (1..).zip(&Algorithm::ALL) {
            assert_eq!(number(algorithm), place);
        }
    }
}

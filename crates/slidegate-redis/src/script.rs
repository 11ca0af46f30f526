//! The scripts of a server, and the algorithms as scripts know them: their numbers, and sets and sequences of them.

mod compose;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use slidegate::Algorithm;
use tokio::sync::Mutex;

/// A Lua script, and the number of times that it was sent to one server.
#[derive(Debug)]
pub struct Script {
    /// The source text.
    pub text: String,
    /// The SHA-1 of the text, in hexadecimal.
    pub sha: String,
    /// Number of times that the text has been sent to the server.
    pub load_count: AtomicU64,
    /// A lock that is held while the text is sent to the server.
    pub loading: Mutex<()>,
}

impl Script {
    fn new(text: String) -> Self {
        let sha = sha1_smol::Sha1::from(&text).hexdigest();
        Self { text, sha, load_count: AtomicU64::new(0), loading: Mutex::const_new(()) }
    }

    /// Returns the number of times that the text has been sent to the server.
    pub fn load_count(&self) -> u64 {
        self.load_count.load(Ordering::Acquire)
    }
}

/// All scripts of a server, each composed on first use.
#[derive(Debug)]
pub struct Scripts {
    decide_single_hit: [OnceLock<Script>; ALGORITHM_COUNT],
    decide_same_limits: [OnceLock<Script>; AlgorithmSequence::COUNT],
    decide_same_limits_batch: [OnceLock<Script>; AlgorithmSequence::COUNT],
    decide_batch: [OnceLock<Script>; ALGORITHM_SET_COUNT],
    revert: [OnceLock<Script>; ALGORITHM_SET_COUNT],
    refund: [OnceLock<Script>; ALGORITHM_SET_COUNT],
    reset: OnceLock<Script>,
    decide_once_single: [OnceLock<Script>; ALGORITHM_COUNT],
    decide_once_batch: [OnceLock<Script>; ALGORITHM_SET_COUNT],
    decide_once_group: [OnceLock<Script>; AlgorithmSequence::COUNT],
    settle: [OnceLock<Script>; ALGORITHM_SET_COUNT],
    settle_single: [OnceLock<Script>; ALGORITHM_COUNT],
    change_call_record: OnceLock<Script>,
    change_permit: OnceLock<Script>,
    probe: OnceLock<Script>,
}

impl Scripts {
    pub fn new() -> Self {
        Self {
            decide_single_hit: [const { OnceLock::new() }; ALGORITHM_COUNT],
            decide_same_limits: [const { OnceLock::new() }; AlgorithmSequence::COUNT],
            decide_same_limits_batch: [const { OnceLock::new() }; AlgorithmSequence::COUNT],
            decide_batch: [const { OnceLock::new() }; ALGORITHM_SET_COUNT],
            revert: [const { OnceLock::new() }; ALGORITHM_SET_COUNT],
            refund: [const { OnceLock::new() }; ALGORITHM_SET_COUNT],
            reset: OnceLock::new(),
            decide_once_single: [const { OnceLock::new() }; ALGORITHM_COUNT],
            decide_once_batch: [const { OnceLock::new() }; ALGORITHM_SET_COUNT],
            decide_once_group: [const { OnceLock::new() }; AlgorithmSequence::COUNT],
            settle: [const { OnceLock::new() }; ALGORITHM_SET_COUNT],
            settle_single: [const { OnceLock::new() }; ALGORITHM_COUNT],
            change_call_record: OnceLock::new(),
            change_permit: OnceLock::new(),
            probe: OnceLock::new(),
        }
    }

    /// Returns the script that decides one hit.
    pub fn decide_single_hit(&self, algorithm: &Algorithm) -> &Script {
        self.decide_single_hit[usize::from(algorithm_number(algorithm)) - 1]
            .get_or_init(|| Script::new(compose::decide_single_hit(algorithm)))
    }

    /// Returns the script that decides one hit of a call with an id.
    pub fn decide_once_single(&self, algorithm: &Algorithm) -> &Script {
        self.decide_once_single[usize::from(algorithm_number(algorithm)) - 1]
            .get_or_init(|| Script::new(compose::decide_once_single(algorithm)))
    }

    /// Returns the script that decides one request, whose hits have these algorithms and share one Redis value.
    pub fn decide_same_limits(&self, algorithms: AlgorithmSequence) -> &Script {
        self.decide_same_limits[algorithms.index()]
            .get_or_init(|| Script::new(compose::decide_same_limits(algorithms)))
    }

    /// Returns the script that decides several requests with the same limits. The hits of a request have these
    /// algorithms and share one Redis value.
    pub fn decide_same_limits_batch(&self, algorithms: AlgorithmSequence) -> &Script {
        self.decide_same_limits_batch[algorithms.index()]
            .get_or_init(|| Script::new(compose::decide_same_limits_batch(algorithms)))
    }

    /// Returns the script that decides a call with an id, whose hits have these algorithms and share one Redis value.
    pub fn decide_once_group(&self, algorithms: AlgorithmSequence) -> &Script {
        self.decide_once_group[algorithms.index()]
            .get_or_init(|| Script::new(compose::decide_once_group(algorithms)))
    }

    /// Returns the script that decides several requests of any kind, one after another.
    pub fn decide_batch(&self, set: AlgorithmSet) -> &Script {
        self.decide_batch[set.index()].get_or_init(|| Script::new(compose::decide_batch(set)))
    }

    /// Returns the script that decides any hits of a call with an id.
    pub fn decide_once_batch(&self, set: AlgorithmSet) -> &Script {
        self.decide_once_batch[set.index()]
            .get_or_init(|| Script::new(compose::decide_once_batch(set)))
    }

    /// Returns the script that corrects the charges of a call once.
    pub fn settle(&self, set: AlgorithmSet) -> &Script {
        self.settle[set.index()].get_or_init(|| Script::new(compose::settle(set)))
    }

    /// Returns the script that corrects the charges of a call once, all with this algorithm, and adds units to at most
    /// one counter.
    pub fn settle_single(&self, algorithm: &Algorithm) -> &Script {
        self.settle_single[usize::from(algorithm_number(algorithm)) - 1]
            .get_or_init(|| Script::new(compose::settle_single(algorithm)))
    }

    /// Returns the script that reverts charges.
    pub fn revert(&self, set: AlgorithmSet) -> &Script {
        self.revert[set.index()].get_or_init(|| Script::new(compose::revert(set)))
    }

    /// Returns the script that subtracts units from counters.
    pub fn refund(&self, set: AlgorithmSet) -> &Script {
        self.refund[set.index()].get_or_init(|| Script::new(compose::refund(set)))
    }

    /// Returns the script that deletes counters.
    pub fn reset(&self) -> &Script {
        self.reset.get_or_init(|| Script::new(compose::reset()))
    }

    /// Returns the script that changes the record of a call.
    pub fn change_call_record(&self) -> &Script {
        self.change_call_record.get_or_init(|| Script::new(compose::change_call_record()))
    }

    /// Returns the script that releases or renews a permit.
    pub fn change_permit(&self) -> &Script {
        self.change_permit.get_or_init(|| Script::new(compose::change_permit()))
    }

    /// Returns the script that tests whether a server executes scripts.
    pub fn probe(&self) -> &Script {
        self.probe.get_or_init(|| Script::new(compose::probe()))
    }
}

/// All algorithms, in the order of their numbers.
const ALGORITHMS: [Algorithm; ALGORITHM_COUNT] = {
    // `Algorithm::ALL` has only the algorithms that limit rates. `concurrent`, which limits requests in flight, is the
    // last one here.
    let mut algorithms = [Algorithm::Concurrent; ALGORITHM_COUNT];
    let mut index = 0;
    while index < Algorithm::ALL.len() {
        algorithms[index] = Algorithm::ALL[index];
        index += 1;
    }
    algorithms
};

/// Number of algorithms.
pub const ALGORITHM_COUNT: usize = Algorithm::ALL.len() + 1;

/// Number of possible sets of algorithms.
pub const ALGORITHM_SET_COUNT: usize = 1 << ALGORITHM_COUNT;

/// The place of a counter's state in Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatePlace {
    /// The state has its own key.
    OwnKey = 0,
    /// The state of a limit is a fixed number of bytes in a value of Redis, which has the states of several limits.
    Slot = 1,
    /// The state of a limit is a log of variable size, in a value of Redis that has the states of several limits.
    Log = 2,
}

/// Returns the place of the state of a counter with this algorithm.
pub const fn state_place(algorithm: &Algorithm) -> StatePlace {
    match algorithm {
        Algorithm::SlidingLog | Algorithm::SlidingBuckets { .. } | Algorithm::Concurrent => {
            StatePlace::OwnKey
        }
        Algorithm::SlidingCounter
        | Algorithm::FixedWindow { .. }
        | Algorithm::TokenBucket { .. } => StatePlace::Slot,
        Algorithm::SlidingWindow { .. } => StatePlace::Log,
    }
}

/// Returns the number that identifies an algorithm in scripts: its position in `ALGORITHMS`, from 1.
pub const fn algorithm_number(algorithm: &Algorithm) -> u8 {
    match algorithm {
        Algorithm::SlidingLog => 1,
        Algorithm::SlidingBuckets { .. } => 2,
        Algorithm::SlidingCounter => 3,
        Algorithm::FixedWindow { .. } => 4,
        Algorithm::TokenBucket { .. } => 5,
        Algorithm::SlidingWindow { .. } => 6,
        Algorithm::Concurrent => 7,
    }
}

/// Rejects, when this crate is compiled, an algorithm that a set or a sequence of algorithms cannot represent.
const _: () = {
    assert!(ALGORITHM_COUNT <= u8::BITS as usize);
    assert!(
        AlgorithmSequence::LAST_NUMBER - AlgorithmSequence::FIRST_NUMBER
            < (1 << AlgorithmSequence::BITS) - 1
    );
    let mut index = 0;
    while index < ALGORITHM_COUNT {
        let (algorithm, number) = (&ALGORITHMS[index], algorithm_number(&ALGORITHMS[index]));
        assert!(number as usize == index + 1);
        let is_in_sequence =
            AlgorithmSequence::FIRST_NUMBER <= number && number <= AlgorithmSequence::LAST_NUMBER;
        assert!(is_in_sequence == matches!(state_place(algorithm), StatePlace::Slot));
        index += 1;
    }
};

/// A set of algorithms, as a bit mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AlgorithmSet(u8);

impl AlgorithmSet {
    /// Returns a set that also contains `algorithm`.
    pub fn with(self, algorithm: &Algorithm) -> Self {
        Self(self.0 | 1 << (algorithm_number(algorithm) - 1))
    }

    /// Returns the algorithm if the set has only one.
    pub fn single(self) -> Option<Algorithm> {
        let mut algorithms = self.algorithms();
        algorithms.next().filter(|_| algorithms.next().is_none())
    }

    /// Returns the position of the set in a list of all sets.
    pub fn index(self) -> usize {
        self.0.into()
    }

    /// Returns the algorithms in the order of their numbers.
    pub fn algorithms(self) -> impl Iterator<Item = Algorithm> {
        ALGORITHMS.into_iter().filter(move |algorithm| self.with(algorithm) == self)
    }
}

/// The algorithms of two to four limits whose states are slots of one Redis value, in the order of the limits. Each
/// algorithm is encoded in two bits of the byte, which are never both 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AlgorithmSequence(u8);

impl AlgorithmSequence {
    /// Number of possible values.
    pub const COUNT: usize = 1 << u8::BITS;

    /// Number of bits of an algorithm.
    const BITS: u32 = 2;

    /// The number of the first algorithm whose states are slots. The numbers of the others follow it.
    const FIRST_NUMBER: u8 = 3;

    /// The number of the last algorithm whose states are slots.
    const LAST_NUMBER: u8 = 5;

    /// Returns the sequence of these algorithms, or `None` if there are more than four or the state of one is not a
    /// slot.
    pub fn new(algorithms: impl IntoIterator<Item = Algorithm>) -> Option<Self> {
        algorithms.into_iter().try_fold(Self::default(), |Self(bits), algorithm| {
            let is_included =
                bits >> (u8::BITS - Self::BITS) == 0 && state_place(&algorithm) == StatePlace::Slot;
            is_included.then(|| {
                Self(bits << Self::BITS | (algorithm_number(&algorithm) + 1 - Self::FIRST_NUMBER))
            })
        })
    }

    /// Returns the position of the sequence in a list of all sequences.
    pub fn index(self) -> usize {
        self.0.into()
    }

    /// Returns the numbers of the algorithms.
    pub fn numbers(self) -> impl Iterator<Item = u8> {
        let codes = [6, 4, 2, 0].map(|shift| self.0 >> shift & 3);
        codes.into_iter().filter(|code| *code > 0).map(|code| code - 1 + Self::FIRST_NUMBER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_has_at_most_four_slot_algorithms() {
        let sequence =
            |algorithms: &[Algorithm]| AlgorithmSequence::new(algorithms.iter().copied());
        let counter = Algorithm::SlidingCounter;
        let bucket = Algorithm::TokenBucket { burst: None, max_debt: None };
        let mixed = sequence(&[counter, bucket, counter]).unwrap();
        assert_eq!(mixed.numbers().collect::<Vec<_>>(), [3, 5, 3]);
        assert!(sequence(&[counter; 4]).is_some());
        assert!(sequence(&[counter; 5]).is_none());
        assert!(sequence(&[counter, Algorithm::SlidingLog]).is_none());
    }
}

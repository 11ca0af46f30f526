//! The algorithms as scripts know them: their numbers, their Lua files, and sets and sequences of them.

use slidegate::Algorithm;

/// All algorithms, in the order of their numbers.
const ALGORITHMS: [Algorithm; ALGORITHM_COUNT] = {
    // The last one is not in the list of algorithms that limit rates.
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

/// The Lua files of an algorithm. Each file does the same as the Rust file with the same name in
/// `slidegate/src/algorithm/`.
pub struct AlgorithmLuaFiles {
    pub decide: &'static str,
    pub revert: &'static str,
    pub refund: &'static str,
    pub place: StatePlace,
}

/// The place of a counter's state in Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatePlace {
    /// The state has its own key.
    OwnKey = 0,
    /// The state is a slot of fixed size, in a value that several limits share.
    Slot = 1,
    /// The state is a log of variable size, in a value that several limits share.
    Log = 2,
}

/// Returns the Lua files of an algorithm.
pub const fn lua_files_of_algorithm(algorithm: &Algorithm) -> AlgorithmLuaFiles {
    macro_rules! scripts {
        ($name:literal, $place:ident) => {
            AlgorithmLuaFiles {
                decide: include_str!(concat!("../lua/", $name, ".lua")),
                revert: include_str!(concat!("../lua/revert/", $name, ".lua")),
                refund: include_str!(concat!("../lua/refund/", $name, ".lua")),
                place: StatePlace::$place,
            }
        };
    }
    match algorithm {
        Algorithm::SlidingLog => scripts!("sliding_log", OwnKey),
        Algorithm::SlidingBuckets { .. } => scripts!("sliding_buckets", OwnKey),
        Algorithm::SlidingCounter => scripts!("sliding_counter", Slot),
        Algorithm::FixedWindow { .. } => scripts!("fixed_window", Slot),
        Algorithm::TokenBucket { .. } => scripts!("token_bucket", Slot),
        Algorithm::SlidingWindow { .. } => scripts!("sliding_window", Log),
        Algorithm::Concurrent => scripts!("concurrent", OwnKey),
    }
}

/// Returns the Lua file that decides hits of the algorithm with this number.
pub fn decide_lua(algorithm_number: u8) -> &'static str {
    lua_files_of_algorithm(&ALGORITHMS[usize::from(algorithm_number) - 1]).decide
}

/// Returns the place of the state of a counter with this algorithm.
pub const fn state_place(algorithm: &Algorithm) -> StatePlace {
    lua_files_of_algorithm(algorithm).place
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

/// The algorithms of two to four limits whose states are slots, in the order of the limits. Each algorithm has two bits,
/// which are not 0.
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

    /// Returns the sequence of these algorithms, or `None` if there are more than four or the state of one is not a slot.
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

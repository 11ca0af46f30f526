//! Composes the Lua scripts from the files in `lua/`. A script consists of one driver and the functions of the
//! algorithms that it needs. The drivers `single_slot.lua`, `single_log.lua` and `single_key.lua` decide one hit,
//! `group.lua` and `group_batch.lua` decide the limits of one rule, and `batch.lua` decides any requests. The drivers
//! `revert.lua`, `refund.lua` and `reset.lua` are for maintenance.

use std::fmt::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use slidegate::Algorithm;
use tokio::sync::Mutex;

use crate::group::{self, AlgorithmSequence, GroupDriver};

/// The beginning of every script: constants and helper functions.
pub const COMMON_HELPERS_LUA: &str = include_str!("../lua/base.lua");
/// Functions that find the slot of a limit, and the latest expiry, in a Redis value that several limits share.
const SLOT_HELPERS_LUA: &str = include_str!("../lua/slots.lua");
/// The driver that decides one hit whose state is a slot in a Redis value that several limits share.
const DECIDE_HIT_IN_SLOT_LUA: &str = include_str!("../lua/single_slot.lua");
/// A function that finds the log of a limit in a Redis value that several limits share.
const LOG_HELPERS_LUA: &str = include_str!("../lua/logs.lua");
/// A function that reads the entries of a log, for maintenance.
const LOG_ENTRIES_LUA: &str = include_str!("../lua/log_entries.lua");
/// The driver that decides one hit whose state is a log in a Redis value that several limits share.
const DECIDE_HIT_IN_LOG_LUA: &str = include_str!("../lua/single_log.lua");
/// The driver that decides one hit whose state has its own Redis key.
const DECIDE_HIT_WITH_OWN_KEY_LUA: &str = include_str!("../lua/single_key.lua");
/// The driver that decides one or more requests with any hits.
const DECIDE_ANY_REQUESTS_LUA: &str = include_str!("../lua/batch.lua");
/// The driver that decides a call with an id.
const DECIDE_ONCE_LUA: &str = include_str!("../lua/once.lua");
/// The driver that corrects the charges of a call once.
const SETTLE_LUA: &str = include_str!("../lua/settle.lua");
/// The driver that changes the record of a call.
const CALL_RECORD_LUA: &str = include_str!("../lua/call_record.lua");
/// The driver that reverts charges.
const REVERT_LUA: &str = include_str!("../lua/revert.lua");
/// The part of the driver of settlements that reverts the only charge: a slot, by the function `revert` of its algorithm.
const SETTLE_ONE_SLOT_LUA: &str = include_str!("../lua/settle_one_slot.lua");
/// The part of the driver of settlements that reverts the only charge: a log of `sliding_window`.
const SETTLE_ONE_LOG_LUA: &str = include_str!("../lua/settle_one_log.lua");
/// The driver that subtracts units from counters.
const REFUND_LUA: &str = include_str!("../lua/refund.lua");
/// The driver that deletes counters.
const RESET_LUA: &str = include_str!("../lua/reset.lua");

/// The driver that releases or renews a permit.
const PERMIT_LUA: &str = include_str!("../lua/permit.lua");

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
const ALGORITHM_COUNT: usize = Algorithm::ALL.len() + 1;

/// Number of possible sets of algorithms.
const ALGORITHM_SET_COUNT: usize = 1 << ALGORITHM_COUNT;

/// The Lua files of an algorithm. Each file does the same as the Rust file with the same name in
/// `slidegate/src/algorithm/`.
struct AlgorithmLuaFiles {
    decide: &'static str,
    revert: &'static str,
    refund: &'static str,
    place: StatePlace,
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
fn lua_files_of_algorithm(algorithm: &Algorithm) -> AlgorithmLuaFiles {
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
pub fn state_place(algorithm: &Algorithm) -> StatePlace {
    lua_files_of_algorithm(algorithm).place
}

/// Returns the number that identifies an algorithm in scripts: its position in `ALGORITHMS`, from 1.
pub fn algorithm_number(algorithm: &Algorithm) -> u8 {
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

    /// Returns the algorithms in the order of their numbers.
    fn algorithms(self) -> impl Iterator<Item = Algorithm> {
        ALGORITHMS.into_iter().filter(move |algorithm| self.with(algorithm) == self)
    }
}

/// A Lua script, and the number of times that it was sent to one server.
#[derive(Debug)]
pub struct Script {
    /// The source text.
    pub text: String,
    /// The SHA-1 of the text, in hexadecimal.
    pub sha: String,
    /// Number of times that the text has been sent to the server.
    pub loads: AtomicU64,
    /// A lock that is held while the text is sent to the server.
    pub loading: Mutex<()>,
}

impl Script {
    fn new(text: String) -> Self {
        let sha = sha1_smol::Sha1::from(&text).hexdigest();
        Self { text, sha, loads: AtomicU64::new(0), loading: Mutex::const_new(()) }
    }

    /// Returns the number of times that the text has been sent to the server.
    pub fn loads(&self) -> u64 {
        self.loads.load(Ordering::Acquire)
    }
}

/// All scripts of a server, each composed on first use.
#[derive(Debug)]
pub struct Scripts {
    single: [OnceLock<Script>; ALGORITHM_COUNT],
    group: [OnceLock<Script>; AlgorithmSequence::COUNT],
    group_batch: [OnceLock<Script>; AlgorithmSequence::COUNT],
    batch: [OnceLock<Script>; ALGORITHM_SET_COUNT],
    revert: [OnceLock<Script>; ALGORITHM_SET_COUNT],
    refund: [OnceLock<Script>; ALGORITHM_SET_COUNT],
    reset: OnceLock<Script>,
    once_single: [OnceLock<Script>; ALGORITHM_COUNT],
    once_batch: [OnceLock<Script>; ALGORITHM_SET_COUNT],
    once_group: [OnceLock<Script>; AlgorithmSequence::COUNT],
    settle: [OnceLock<Script>; ALGORITHM_SET_COUNT],
    settle_single: [OnceLock<Script>; ALGORITHM_COUNT],
    call_record: OnceLock<Script>,
    permit: OnceLock<Script>,
}

impl Scripts {
    pub fn new() -> Self {
        Self {
            single: [const { OnceLock::new() }; ALGORITHM_COUNT],
            group: [const { OnceLock::new() }; AlgorithmSequence::COUNT],
            group_batch: [const { OnceLock::new() }; AlgorithmSequence::COUNT],
            batch: [const { OnceLock::new() }; ALGORITHM_SET_COUNT],
            revert: [const { OnceLock::new() }; ALGORITHM_SET_COUNT],
            refund: [const { OnceLock::new() }; ALGORITHM_SET_COUNT],
            reset: OnceLock::new(),
            once_single: [const { OnceLock::new() }; ALGORITHM_COUNT],
            once_batch: [const { OnceLock::new() }; ALGORITHM_SET_COUNT],
            once_group: [const { OnceLock::new() }; AlgorithmSequence::COUNT],
            settle: [const { OnceLock::new() }; ALGORITHM_SET_COUNT],
            settle_single: [const { OnceLock::new() }; ALGORITHM_COUNT],
            call_record: OnceLock::new(),
            permit: OnceLock::new(),
        }
    }

    /// Returns the script that decides one hit.
    pub fn single(&self, algorithm: &Algorithm) -> &Script {
        self.single[usize::from(algorithm_number(algorithm)) - 1].get_or_init(|| {
            let (helpers, driver) = parts_of_single_script(algorithm);
            Script::new(format!("{helpers}{driver}"))
        })
    }

    /// Returns the script that decides one hit of a call with an id.
    pub fn once_single(&self, algorithm: &Algorithm) -> &Script {
        self.once_single[usize::from(algorithm_number(algorithm)) - 1].get_or_init(|| {
            let (helpers, driver) = parts_of_single_script(algorithm);
            let decide_call = as_function("decide_call", driver);
            Script::new(format!("{helpers}{decide_call}{DECIDE_ONCE_LUA}"))
        })
    }

    /// Returns the script that decides a call with an id, whose hits have these algorithms and share one Redis value.
    pub fn once_group(&self, algorithms: AlgorithmSequence) -> &Script {
        self.once_group[algorithms.index()].get_or_init(|| {
            let (helpers, driver) = group::compose_driver(algorithms, GroupDriver::OneRequest);
            let decide_call = as_function("decide_call", &driver);
            Script::new(format!("{helpers}{decide_call}{DECIDE_ONCE_LUA}"))
        })
    }

    /// Returns the script that decides any hits of a call with an id.
    pub fn once_batch(&self, set: AlgorithmSet) -> &Script {
        self.once_batch[usize::from(set.0)]
            .get_or_init(|| compose_once_script(set, DECIDE_ANY_REQUESTS_LUA))
    }

    /// Returns the script that corrects the charges of a call once.
    pub fn settle(&self, set: AlgorithmSet) -> &Script {
        self.settle[usize::from(set.0)]
            .get_or_init(|| compose_settle_script(set, "", DECIDE_ANY_REQUESTS_LUA))
    }

    /// Returns the script that corrects the charges of a call once, all with this algorithm, and adds units to at most
    /// one counter.
    pub fn settle_single(&self, algorithm: &Algorithm) -> &Script {
        self.settle_single[usize::from(algorithm_number(algorithm)) - 1].get_or_init(|| {
            let (_, driver) = parts_of_single_script(algorithm);
            let AlgorithmLuaFiles { revert, place, .. } = lua_files_of_algorithm(algorithm);
            let revert_one = match place {
                StatePlace::OwnKey => String::new(),
                StatePlace::Slot => format!("{revert}{SETTLE_ONE_SLOT_LUA}"),
                StatePlace::Log => SETTLE_ONE_LOG_LUA.to_owned(),
            };
            let set = AlgorithmSet::default().with(algorithm);
            compose_settle_script(set, &revert_one, driver)
        })
    }

    /// Returns the script that decides one request, whose hits have these algorithms and share one Redis value.
    pub fn group(&self, algorithms: AlgorithmSequence) -> &Script {
        self.group[algorithms.index()].get_or_init(|| {
            let (helpers, driver) = group::compose_driver(algorithms, GroupDriver::OneRequest);
            Script::new(helpers + &driver)
        })
    }

    /// Returns the script that decides several requests with the same limits. The hits of a request have these algorithms
    /// and share one Redis value.
    pub fn group_batch(&self, algorithms: AlgorithmSequence) -> &Script {
        self.group_batch[algorithms.index()].get_or_init(|| {
            let (helpers, driver) = group::compose_driver(algorithms, GroupDriver::SeveralRequests);
            Script::new(helpers + &driver)
        })
    }

    /// Returns the script that decides several requests of any kind, one after another.
    pub fn batch(&self, set: AlgorithmSet) -> &Script {
        self.batch[usize::from(set.0)]
            .get_or_init(|| compose_script(set, ScriptOperation::Decide, DECIDE_ANY_REQUESTS_LUA))
    }

    /// Returns the script that reverts charges.
    pub fn revert(&self, set: AlgorithmSet) -> &Script {
        self.revert[usize::from(set.0)]
            .get_or_init(|| compose_script(set, ScriptOperation::Revert, REVERT_LUA))
    }

    /// Returns the script that subtracts units from counters.
    pub fn refund(&self, set: AlgorithmSet) -> &Script {
        self.refund[usize::from(set.0)]
            .get_or_init(|| compose_script(set, ScriptOperation::Refund, REFUND_LUA))
    }

    /// Returns the script that changes the record of a call.
    pub fn call_record(&self) -> &Script {
        self.call_record
            .get_or_init(|| Script::new([COMMON_HELPERS_LUA, CALL_RECORD_LUA].join("\n")))
    }

    /// Returns the script that releases or renews a permit.
    pub fn permit(&self) -> &Script {
        self.permit.get_or_init(|| Script::new([COMMON_HELPERS_LUA, PERMIT_LUA].join("\n")))
    }

    /// Returns the script that deletes counters.
    pub fn reset(&self) -> &Script {
        self.reset.get_or_init(|| {
            Script::new(
                [COMMON_HELPERS_LUA, SLOT_HELPERS_LUA, LOG_HELPERS_LUA, RESET_LUA].join("\n"),
            )
        })
    }
}

/// Returns the helper functions and the driver of the script that decides one hit.
fn parts_of_single_script(algorithm: &Algorithm) -> (String, &'static str) {
    let AlgorithmLuaFiles { decide, place, .. } = lua_files_of_algorithm(algorithm);
    let (helpers, driver): (&[&str], _) = match place {
        StatePlace::OwnKey => (&[COMMON_HELPERS_LUA, decide, ""], DECIDE_HIT_WITH_OWN_KEY_LUA),
        StatePlace::Slot => (&[COMMON_HELPERS_LUA, decide, ""], DECIDE_HIT_IN_SLOT_LUA),
        StatePlace::Log => {
            (&[COMMON_HELPERS_LUA, LOG_HELPERS_LUA, decide, ""], DECIDE_HIT_IN_LOG_LUA)
        }
    };
    (helpers.join("\n"), driver)
}

/// Composes the script of a call with an id from the driver of a call without an id.
fn compose_once_script(set: AlgorithmSet, driver: &str) -> Script {
    let decide_call = as_function("decide_call", driver);
    compose_script(set, ScriptOperation::Decide, &format!("{decide_call}{DECIDE_ONCE_LUA}"))
}

/// Composes the script that corrects the charges of a call. `revert_one` reverts one charge in a usual state, and `driver`
/// adds units.
fn compose_settle_script(set: AlgorithmSet, revert_one: &str, driver: &str) -> Script {
    let functions = |operation, name, driver| {
        let functions = compose_functions(set, operation);
        format!("{COMMON_HELPERS_LUA}{functions}{}", as_function(name, driver))
    };
    let revert = functions(ScriptOperation::Revert, "revert_charges", REVERT_LUA);
    let decide = functions(ScriptOperation::Decide, "decide_call", driver);
    Script::new(
        SETTLE_LUA
            .replace("-- @revert_one", revert_one)
            .replace("-- @revert_charges", &revert)
            .replace("-- @decide_call", &decide),
    )
}

/// Returns a driver as a function of its keys and its arguments, which it reads in place of the call's keys and arguments.
fn as_function(name: &str, driver: &str) -> String {
    format!("local function {name}(KEYS, ARGV)\n{driver}\nend\n")
}

/// The operation that a script performs on counters.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ScriptOperation {
    Decide,
    Revert,
    Refund,
}

/// Composes a script from the functions of a set of algorithms and a driver, which is the last part of the script.
fn compose_script(set: AlgorithmSet, operation: ScriptOperation, driver: &str) -> Script {
    let functions = compose_functions(set, operation);
    Script::new(format!("{COMMON_HELPERS_LUA}{functions}{driver}"))
}

/// Composes the functions of a set of algorithms. A driver finds them in a table by algorithm number.
fn compose_functions(set: AlgorithmSet, operation: ScriptOperation) -> String {
    let mut text = SLOT_HELPERS_LUA.to_owned();
    text.push_str("local key_functions, slot_functions, log_functions = {}, {}, {}\n");
    if set.algorithms().any(|algorithm| state_place(&algorithm) == StatePlace::Log) {
        text.push_str(LOG_HELPERS_LUA);
        if operation != ScriptOperation::Decide {
            text.push_str(LOG_ENTRIES_LUA);
        }
    }
    if operation == ScriptOperation::Refund {
        text.push_str("local refund_functions = {}\n");
    }
    for algorithm in set.algorithms() {
        let (scripts, number) = (lua_files_of_algorithm(&algorithm), algorithm_number(&algorithm));
        let table = match scripts.place {
            StatePlace::Slot => "slot_functions",
            StatePlace::OwnKey => "key_functions",
            StatePlace::Log => "log_functions",
        };
        text.push_str(scripts.decide);
        // Writing into a string cannot fail.
        let _ = match operation {
            ScriptOperation::Decide => writeln!(text, "{table}[{number}] = decide"),
            ScriptOperation::Revert => {
                writeln!(text, "{}{table}[{number}] = revert", scripts.revert)
            }
            ScriptOperation::Refund => writeln!(
                text,
                "{table}[{number}] = decide\n{}refund_functions[{number}] = refund",
                scripts.refund
            ),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn algorithm_number_is_position_in_algorithm_list() {
        for (position, algorithm) in (1..).zip(&ALGORITHMS) {
            assert_eq!(algorithm_number(algorithm), position);
        }
    }
}

//! Composes the Lua scripts from the files in `lua/`. A script consists of one driver and the functions of the
//! algorithms that it needs. The drivers `single_slot.lua`, `single_log.lua` and `single_key.lua` decide one hit,
//! `group.lua` and `group_batch.lua` decide the limits of one rule, and `batch.lua` decides any requests. The drivers
//! `revert.lua`, `refund.lua` and `reset.lua` are for maintenance.

use std::fmt::Write;

use slidegate::Algorithm;

use super::{
    ALGORITHMS, AlgorithmSequence, AlgorithmSet, StatePlace, algorithm_number, state_place,
};

/// The beginning of every script: constants and helper functions.
const COMMON_HELPERS_LUA: &str = include_str!("../../lua/base.lua");
/// Functions that find the slot of a limit, and the latest expiry, in a Redis value that several limits share.
const SLOT_HELPERS_LUA: &str = include_str!("../../lua/slots.lua");
/// The driver that decides one hit whose state is a slot in a Redis value that several limits share.
const DECIDE_HIT_IN_SLOT_LUA: &str = include_str!("../../lua/single_slot.lua");
/// A function that finds the log of a limit in a Redis value that several limits share.
const FIND_LOG_LUA: &str = include_str!("../../lua/logs.lua");
/// A function that reads the entries of a log, for maintenance.
const READ_LOG_ENTRIES_LUA: &str = include_str!("../../lua/log_entries.lua");
/// The driver that decides one hit whose state is a log in a Redis value that several limits share.
const DECIDE_HIT_IN_LOG_LUA: &str = include_str!("../../lua/single_log.lua");
/// The script that decides one hit whose state has its own Redis key. The scripts of the algorithms are inserted into
/// it.
const DECIDE_HIT_WITH_OWN_KEY_LUA: &str = include_str!("../../lua/single_key.lua");
/// The template that decides the limits of one Redis value.
const DECIDE_LIMITS_LUA: &str = include_str!("../../lua/group_limits.lua");
/// The template of the driver that decides one request, of the limits of one Redis value.
const DECIDE_ONE_REQUEST_LUA: &str = include_str!("../../lua/group.lua");
/// The template of the driver that decides several requests, each of the limits of one Redis value.
const DECIDE_SEVERAL_REQUESTS_LUA: &str = include_str!("../../lua/group_batch.lua");
/// The driver that decides one or more requests with any hits.
const DECIDE_REQUESTS_LUA: &str = include_str!("../../lua/batch.lua");
/// The driver that decides a call with an id.
const DECIDE_ONCE_LUA: &str = include_str!("../../lua/once.lua");
/// The driver that corrects the charges of a call once.
const SETTLE_LUA: &str = include_str!("../../lua/settle.lua");
/// The driver that changes the record of a call.
const CALL_RECORD_LUA: &str = include_str!("../../lua/call_record.lua");
/// The driver that reverts charges.
const REVERT_LUA: &str = include_str!("../../lua/revert.lua");
/// The part of the driver of settlements that reverts the only charge: a slot, by the function `revert` of its
/// algorithm.
const SETTLE_ONE_SLOT_LUA: &str = include_str!("../../lua/settle_one_slot.lua");
/// The part of the driver of settlements that reverts the only charge: a log of `sliding_window`.
const SETTLE_ONE_LOG_LUA: &str = include_str!("../../lua/settle_one_log.lua");
/// The driver that subtracts units from counters.
const REFUND_LUA: &str = include_str!("../../lua/refund.lua");
/// The driver that deletes counters.
const RESET_LUA: &str = include_str!("../../lua/reset.lua");
/// The driver that releases or renews a permit.
const PERMIT_LUA: &str = include_str!("../../lua/permit.lua");

/// The Lua files of an algorithm. Each file does the same as the Rust file with the same name in
/// `slidegate/src/algorithm/`.
struct AlgorithmLuaFiles {
    decide: &'static str,
    revert: &'static str,
    refund: &'static str,
}

/// Returns the Lua files of an algorithm.
const fn lua_files_of_algorithm(algorithm: &Algorithm) -> AlgorithmLuaFiles {
    macro_rules! scripts {
        ($name:literal) => {
            AlgorithmLuaFiles {
                decide: include_str!(concat!("../../lua/", $name, ".lua")),
                revert: include_str!(concat!("../../lua/revert/", $name, ".lua")),
                refund: include_str!(concat!("../../lua/refund/", $name, ".lua")),
            }
        };
    }
    match algorithm {
        Algorithm::SlidingLog => scripts!("sliding_log"),
        Algorithm::SlidingBuckets { .. } => scripts!("sliding_buckets"),
        Algorithm::SlidingCounter => scripts!("sliding_counter"),
        Algorithm::FixedWindow { .. } => scripts!("fixed_window"),
        Algorithm::TokenBucket { .. } => scripts!("token_bucket"),
        Algorithm::SlidingWindow { .. } => scripts!("sliding_window"),
        Algorithm::Concurrent => scripts!("concurrent"),
    }
}

/// Composes the script that decides one hit.
pub fn decide_single_hit(algorithm: &Algorithm) -> String {
    let (helpers, driver) = parts_of_single_script(algorithm);
    format!("{helpers}{driver}")
}

/// Composes the script that decides one hit of a call with an id.
pub fn decide_once_single(algorithm: &Algorithm) -> String {
    let (helpers, driver) = parts_of_single_script(algorithm);
    format!("{helpers}{}{DECIDE_ONCE_LUA}", wrap_as_lua_function("decide_call", driver))
}

/// Composes the script that decides one request, whose hits share one Redis value.
pub fn decide_same_limits(algorithms: AlgorithmSequence) -> String {
    let (helpers, driver) = parts_of_group_script(algorithms, DECIDE_ONE_REQUEST_LUA);
    helpers + &driver
}

/// Composes the script that decides several requests. The hits of a request share one Redis value.
pub fn decide_same_limits_batch(algorithms: AlgorithmSequence) -> String {
    let (helpers, driver) = parts_of_group_script(algorithms, DECIDE_SEVERAL_REQUESTS_LUA);
    helpers + &driver
}

/// Composes the script that decides a call with an id, whose hits share one Redis value.
pub fn decide_once_group(algorithms: AlgorithmSequence) -> String {
    let (helpers, driver) = parts_of_group_script(algorithms, DECIDE_ONE_REQUEST_LUA);
    format!("{helpers}{}{DECIDE_ONCE_LUA}", wrap_as_lua_function("decide_call", &driver))
}

/// Composes the script that decides several requests of any kind.
pub fn decide_batch(set: AlgorithmSet) -> String {
    compose_script(set, AlgorithmFunction::Decide, DECIDE_REQUESTS_LUA)
}

/// Composes the script that decides any hits of a call with an id.
pub fn decide_once_batch(set: AlgorithmSet) -> String {
    let decide_call = wrap_as_lua_function("decide_call", DECIDE_REQUESTS_LUA);
    compose_script(set, AlgorithmFunction::Decide, &format!("{decide_call}{DECIDE_ONCE_LUA}"))
}

/// Composes the script that corrects the charges of a call.
pub fn settle(set: AlgorithmSet) -> String {
    compose_settle_script(set, "", DECIDE_REQUESTS_LUA)
}

/// Composes the script that corrects the charges of a call, all with this algorithm.
pub fn settle_single(algorithm: &Algorithm) -> String {
    let (_, driver) = parts_of_single_script(algorithm);
    let revert_one = match state_place(algorithm) {
        StatePlace::OwnKey => String::new(),
        StatePlace::Slot => {
            format!("{}{SETTLE_ONE_SLOT_LUA}", lua_files_of_algorithm(algorithm).revert)
        }
        StatePlace::Log => SETTLE_ONE_LOG_LUA.to_owned(),
    };
    compose_settle_script(AlgorithmSet::default().with(algorithm), &revert_one, driver)
}

/// Composes the script that reverts charges.
pub fn revert(set: AlgorithmSet) -> String {
    compose_script(set, AlgorithmFunction::Revert, REVERT_LUA)
}

/// Composes the script that subtracts units from counters.
pub fn refund(set: AlgorithmSet) -> String {
    compose_script(set, AlgorithmFunction::Refund, REFUND_LUA)
}

/// Composes the script that deletes counters.
pub fn reset() -> String {
    [COMMON_HELPERS_LUA, SLOT_HELPERS_LUA, FIND_LOG_LUA, RESET_LUA].join("\n")
}

/// Composes the script that changes the record of a call.
pub fn change_call_record() -> String {
    [COMMON_HELPERS_LUA, CALL_RECORD_LUA].join("\n")
}

/// Composes the script that releases or renews a permit.
pub fn change_permit() -> String {
    let concurrent = lua_files_of_algorithm(&Algorithm::Concurrent).decide;
    [COMMON_HELPERS_LUA, concurrent, PERMIT_LUA].join("\n")
}

/// Returns the script that tests whether a server executes scripts.
pub fn probe() -> String {
    "return 'OK'".to_owned()
}

/// Returns the helper functions and the driver of the script that decides one hit.
fn parts_of_single_script(algorithm: &Algorithm) -> (String, &'static str) {
    let decide = lua_files_of_algorithm(algorithm).decide;
    let (helpers, driver): (&[&str], _) = match state_place(algorithm) {
        StatePlace::OwnKey => (&[COMMON_HELPERS_LUA, decide, ""], DECIDE_HIT_WITH_OWN_KEY_LUA),
        StatePlace::Slot => (&[COMMON_HELPERS_LUA, decide, ""], DECIDE_HIT_IN_SLOT_LUA),
        StatePlace::Log => (&[COMMON_HELPERS_LUA, FIND_LOG_LUA, decide, ""], DECIDE_HIT_IN_LOG_LUA),
    };
    (helpers.join("\n"), driver)
}

/// Returns the helper functions and the driver of a script for limits with these algorithms, whose states share one
/// Redis value. The driver repeats the code for each limit, because tables and loops over the limits would take a third
/// longer.
fn parts_of_group_script(algorithms: AlgorithmSequence, driver: &str) -> (String, String) {
    let mut numbers: Vec<u8> = algorithms.numbers().collect();
    let driver =
        expand_limit_template(&driver.replace("-- @decide_limits\n", DECIDE_LIMITS_LUA), &numbers);
    numbers.sort_unstable();
    numbers.dedup();
    let functions = numbers.into_iter().map(|number| {
        format!(
            "{}local decide_{number} = decide\n",
            lua_files_of_algorithm(&ALGORITHMS[usize::from(number) - 1]).decide
        )
    });
    (COMMON_HELPERS_LUA.to_owned() + &functions.collect::<String>(), driver)
}

/// Repeats each text in double braces for the limits whose algorithms have these numbers. In the text, `decide@`
/// becomes the name of the algorithm's function, and another `@` the number of the limit.
fn expand_limit_template(template: &str, algorithm_numbers: &[u8]) -> String {
    let mut parts = template.split("{{");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (repeated, rest) = part.split_once("}}").unwrap_or((part, ""));
        text.extend((1..).zip(algorithm_numbers).map(|(nth, number): (u8, _)| {
            let repeated = repeated.replace("decide@", &format!("decide_{number}"));
            repeated.replace('@', &nth.to_string())
        }));
        text.push_str(rest);
    }
    text
}

/// Composes the script that corrects the charges of a call. `revert_one` reverts one charge in a usual state, and
/// `driver` adds units.
fn compose_settle_script(set: AlgorithmSet, revert_one: &str, driver: &str) -> String {
    let functions = |function, name, driver| {
        let functions = compose_functions(set, function);
        format!("{COMMON_HELPERS_LUA}{functions}{}", wrap_as_lua_function(name, driver))
    };
    let revert = functions(AlgorithmFunction::Revert, "revert_charges", REVERT_LUA);
    let decide = functions(AlgorithmFunction::Decide, "decide_call", driver);
    SETTLE_LUA
        .replace("-- @revert_one", revert_one)
        .replace("-- @revert_charges", &revert)
        .replace("-- @decide_call", &decide)
}

/// Returns a driver as a function of its keys and its arguments, which it reads in place of the call's keys and
/// arguments.
fn wrap_as_lua_function(name: &str, driver: &str) -> String {
    format!("local function {name}(KEYS, ARGV)\n{driver}\nend\n")
}

/// The function of each algorithm that a driver calls.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AlgorithmFunction {
    Decide,
    Revert,
    Refund,
}

/// Composes a script from the functions of a set of algorithms and a driver, which is the last part of the script.
fn compose_script(set: AlgorithmSet, function: AlgorithmFunction, driver: &str) -> String {
    let functions = compose_functions(set, function);
    format!("{COMMON_HELPERS_LUA}{functions}{driver}")
}

/// Composes the functions of a set of algorithms. A driver finds them in a table by algorithm number.
fn compose_functions(set: AlgorithmSet, function: AlgorithmFunction) -> String {
    let mut text = SLOT_HELPERS_LUA.to_owned();
    text.push_str("local key_functions, slot_functions, log_functions = {}, {}, {}\n");
    if set.algorithms().any(|algorithm| state_place(&algorithm) == StatePlace::Log) {
        text.push_str(FIND_LOG_LUA);
        if function != AlgorithmFunction::Decide {
            text.push_str(READ_LOG_ENTRIES_LUA);
        }
    }
    if function == AlgorithmFunction::Refund {
        text.push_str("local refund_functions = {}\n");
    }
    for algorithm in set.algorithms() {
        let (scripts, number) = (lua_files_of_algorithm(&algorithm), algorithm_number(&algorithm));
        let table = match state_place(&algorithm) {
            StatePlace::Slot => "slot_functions",
            StatePlace::OwnKey => "key_functions",
            StatePlace::Log => "log_functions",
        };
        text.push_str(scripts.decide);
        // Writing into a string cannot fail, so the result is ignored.
        let _ = match function {
            AlgorithmFunction::Decide => writeln!(text, "{table}[{number}] = decide"),
            AlgorithmFunction::Revert => {
                writeln!(text, "{}{table}[{number}] = revert", scripts.revert)
            }
            AlgorithmFunction::Refund => writeln!(
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
    fn text_in_braces_is_repeated_for_each_limit() {
        let template = "local {{a@, }}b = f({{decide@(a@), }}1)";
        assert_eq!(
            expand_limit_template(template, &[3, 5]),
            "local a1, a2, b = f(decide_3(a1), decide_5(a2), 1)"
        );
    }
}

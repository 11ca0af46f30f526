//! Requests for the limits of one rule whose states share one Redis value. Their scripts repeat the code for each limit,
//! because tables and loops over the limits would take a third longer.

use slidegate::Algorithm;

use crate::call::{
    Keys, RedisKeyIndexes, ScriptCall, encode_cost_and_phase, encode_required_units_and_max_debt,
    push_doubles,
};
use crate::script::{
    COMMON_HELPERS_LUA, Scripts, StatePlace, algorithm_number, decide_lua, state_place,
};
use crate::script_request::{ScriptMode, ScriptRequest};

/// The template that decides the limits of one Redis value.
const DECIDE_LIMITS_LUA: &str = include_str!("../lua/group_limits.lua");
/// The template of the driver for one request.
const DECIDE_ONE_REQUEST_LUA: &str = include_str!("../lua/group.lua");
/// The template of the driver for several requests.
const DECIDE_SEVERAL_REQUESTS_LUA: &str = include_str!("../lua/group_batch.lua");

/// A driver of the scripts for the limits of one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupDriver {
    OneRequest,
    SeveralRequests,
}

/// The algorithms of two to four limits whose states are slots, in the order of the limits. Each algorithm has two bits,
/// which are not 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AlgorithmSequence(u8);

impl AlgorithmSequence {
    /// Number of possible values.
    pub const COUNT: usize = 1 << u8::BITS;

    /// The number of the first algorithm whose states are slots. The numbers of the others follow it.
    const FIRST_NUMBER: u8 = 3;

    /// Returns the sequence of these algorithms, or `None` if there are more than four or the state of one is not a slot.
    fn new(algorithms: impl IntoIterator<Item = Algorithm>) -> Option<Self> {
        algorithms.into_iter().try_fold(Self::default(), |Self(bits), algorithm| {
            let is_included = bits >> 6 == 0 && state_place(&algorithm) == StatePlace::Slot;
            is_included
                .then(|| Self(bits << 2 | (algorithm_number(&algorithm) + 1 - Self::FIRST_NUMBER)))
        })
    }

    /// Returns the position of the sequence in a list of all sequences.
    pub fn index(self) -> usize {
        self.0.into()
    }

    /// Returns the numbers of the algorithms.
    fn numbers(self) -> impl Iterator<Item = u8> {
        let codes = [6, 4, 2, 0].map(|shift| self.0 >> shift & 3);
        codes.into_iter().filter(|code| *code > 0).map(|code| code - 1 + Self::FIRST_NUMBER)
    }
}

/// Returns the helper functions and the driver of a script for limits with these algorithms.
pub fn compose_driver(algorithms: AlgorithmSequence, driver: GroupDriver) -> (String, String) {
    let mut numbers: Vec<u8> = algorithms.numbers().collect();
    let driver = match driver {
        GroupDriver::OneRequest => DECIDE_ONE_REQUEST_LUA,
        GroupDriver::SeveralRequests => DECIDE_SEVERAL_REQUESTS_LUA,
    };
    let driver =
        repeat_for_limits(&driver.replace("-- @decide_limits\n", DECIDE_LIMITS_LUA), &numbers);
    numbers.sort_unstable();
    numbers.dedup();
    let functions = numbers
        .into_iter()
        .map(|number| format!("{}local decide_{number} = decide\n", decide_lua(number)));
    (COMMON_HELPERS_LUA.to_owned() + &functions.collect::<String>(), driver)
}

/// Repeats each text in double braces for the limits whose algorithms have these numbers. In the text, `decide@` becomes
/// the name of the algorithm's function, and another `@` the number of the limit.
fn repeat_for_limits(template: &str, algorithm_numbers: &[u8]) -> String {
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

/// Requests that charge the same costs to the same limits, all enforced. The states of the limits are different slots of
/// the Redis value of a request.
#[derive(Debug)]
pub struct GroupRequests<'r, 'k> {
    requests: &'r [&'k ScriptRequest],
    first: &'k ScriptRequest,
    algorithms: AlgorithmSequence,
}

impl<'r, 'k> GroupRequests<'r, 'k> {
    /// Returns `None` if the requests are not such requests. Requests of one limit are also not: other scripts decide them
    /// at the same cost.
    pub fn new(requests: &'r [&'k ScriptRequest]) -> Option<Self> {
        let first = *requests.first()?;
        let algorithms =
            AlgorithmSequence::new(first.hits.iter().map(|hit| hit.limit.algorithm()))?;
        let is_group = first.hits.len() > 1
            && is_charged_to_one_value(first)
            && requests[1..]
                .iter()
                .all(|request| is_charged_to_one_value(request) && has_same_limits(request, first));
        is_group.then_some(Self { requests, first, algorithms })
    }

    /// Returns the algorithms of the limits.
    pub fn algorithms(&self) -> AlgorithmSequence {
        self.algorithms
    }

    /// Builds the call that decides the requests.
    pub fn build_call<'s>(
        &self,
        scripts: &'s Scripts,
        now: [u8; 8],
        expiry_margin_s: u32,
    ) -> ScriptCall<'s, 'k> {
        let (keys, key_indexes) = self.keys_and_indexes();
        let mut argument = Vec::with_capacity(19 + 72 * self.first.hits.len() + key_indexes.len());
        argument.extend(now);
        argument.push(self.first.mode as u8);
        argument.extend((keys.len() as u16).to_le_bytes());
        push_doubles(&mut argument, [expiry_margin_s.into()]);
        for hit in &self.first.hits {
            let params = hit.params;
            push_doubles(&mut argument, [hit.tag, params.max, params.extra].map(f64::from));
            push_doubles(&mut argument, [params.tick_us as f64, params.window as f64]);
            push_doubles(&mut argument, encode_cost_and_phase(hit));
            push_doubles(&mut argument, encode_required_units_and_max_debt(hit));
        }
        argument.extend(key_indexes);
        let script = match self.requests {
            [_] => scripts.group(self.algorithms),
            _ => scripts.group_batch(self.algorithms),
        };
        ScriptCall { script, keys, argument }
    }

    /// Returns the keys without duplicates, and the encoded numbers of the keys of the requests: nothing if no key is
    /// the key of several requests.
    fn keys_and_indexes(&self) -> (Keys<'k>, Vec<u8>) {
        let (mut keys, mut key_indexes) = (Keys::new(), RedisKeyIndexes::new());
        let mut encoded = Vec::with_capacity(2 * self.requests.len());
        for key in self.requests.iter().filter_map(|request| request.hits.first()) {
            let key_index = *key_indexes.entry(key.key.as_str()).or_insert_with(|| {
                keys.push(&key.key);
                keys.len() as u16
            });
            encoded.extend(key_index.to_le_bytes());
        }
        if keys.len() == self.requests.len() {
            encoded.clear();
        }
        (keys, encoded)
    }
}

/// Returns `true` if all hits are enforced, and their states are different slots in the value of one Redis key. If the
/// request charges its hits, each of them has a cost.
fn is_charged_to_one_value(request: &ScriptRequest) -> bool {
    request.has_only_enforced_slots()
        && request.hits.windows(2).all(|pair| pair[0].key == pair[1].key)
        && (request.mode == ScriptMode::Peek || request.hits.iter().all(|hit| hit.cost > 0))
}

/// Returns `true` if both requests have the same mode, and their hits differ only in the key.
fn has_same_limits(request: &ScriptRequest, other: &ScriptRequest) -> bool {
    request.mode == other.mode
        && request.hits.len() == other.hits.len()
        && request.hits.iter().zip(&other.hits).all(|(hit, other)| {
            (hit.tag, hit.cost, hit.required, hit.phase_us)
                == (other.tag, other.cost, other.required, other.phase_us)
                && (hit.limit, hit.params) == (other.limit, other.params)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_in_braces_is_repeated_for_each_limit() {
        let template = "local {{a@, }}b = f({{decide@(a@), }}1)";
        assert_eq!(
            repeat_for_limits(template, &[3, 5]),
            "local a1, a2, b = f(decide_3(a1), decide_5(a2), 1)"
        );
    }

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

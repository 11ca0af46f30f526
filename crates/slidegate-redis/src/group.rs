//! Requests for several limits of one rule, whose states share one Redis value. Scripts made for these limits decide
//! them faster than the script for any requests.

use crate::call::{
    RedisKeyIndexes, RedisKeys, ScriptCall, encode_cost_and_phase,
    encode_required_units_and_max_debt, push_doubles,
};
use crate::script::{AlgorithmSequence, Scripts};
use crate::script_request::{ScriptMode, ScriptRequest};

/// Requests that charge the same costs to the same limits, all enforced. The states of the limits are different slots
/// of the Redis value of a request.
#[derive(Debug)]
pub struct SameLimitsGroup<'r, 'k> {
    requests: &'r [&'k ScriptRequest],
    first: &'k ScriptRequest,
    algorithms: AlgorithmSequence,
}

impl<'r, 'k> SameLimitsGroup<'r, 'k> {
    /// Creates the group. Returns `None` if the requests do not have the form that [`SameLimitsGroup`] describes, or
    /// have only one limit: other scripts decide requests of one limit at the same cost.
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
        let (keys, key_indexes) = self.unique_keys_and_key_indexes();
        let mut argument = Vec::with_capacity(19 + 72 * self.first.hits.len() + key_indexes.len());
        argument.extend(now);
        argument.push(self.first.mode as u8);
        argument.extend((keys.len() as u16).to_le_bytes());
        push_doubles(&mut argument, [expiry_margin_s.into()]);
        for hit in &self.first.hits {
            let params = hit.params;
            push_doubles(&mut argument, [hit.tag.into(), params.max as f64, params.extra.into()]);
            push_doubles(&mut argument, [params.tick_us as f64, params.window as f64]);
            push_doubles(&mut argument, encode_cost_and_phase(hit));
            push_doubles(&mut argument, encode_required_units_and_max_debt(hit));
        }
        argument.extend(key_indexes);
        let script = match self.requests {
            [_] => scripts.decide_same_limits(self.algorithms),
            _ => scripts.decide_same_limits_batch(self.algorithms),
        };
        ScriptCall { script, keys, argument }
    }

    /// Returns the keys without duplicates, and for each request the encoded index of its key. The indexes are left out
    /// if no key has several requests.
    fn unique_keys_and_key_indexes(&self) -> (RedisKeys<'k>, Vec<u8>) {
        let (mut keys, mut key_indexes) = (RedisKeys::new(), RedisKeyIndexes::new());
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
    request.has_enforced_hits_in_distinct_slots()
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

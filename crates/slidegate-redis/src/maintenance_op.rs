//! Describes the operations that change counters without a decision: revert, refund and reset. An operation builds its
//! script call and decodes the reply. All its keys are in one slot of a Cluster.

use slidegate::Timestamp;
use slidegate::store::Charge;

use crate::call::{
    RedisKeys, ScriptCall, ScriptOperation, encode_time_or_redis_clock, find_or_add_key,
};
use crate::reply::{DecodeError, ScriptReply};
use crate::script::{AlgorithmSet, Scripts, algorithm_number, state_place};
use crate::script_request::{KeyedHit, parse_counter_id};

/// A maintenance operation on counters whose keys are all in one slot of a Cluster.
#[derive(Debug)]
pub enum MaintenanceOp<'e> {
    Revert(Vec<&'e Charge>),
    Refund(Vec<&'e KeyedHit>),
    Reset(Vec<&'e KeyedHit>),
}

impl ScriptOperation for MaintenanceOp<'_> {
    type Reply = ScriptReply;

    fn call<'s>(&self, scripts: &'s Scripts, now: Option<Timestamp>, _: u32) -> ScriptCall<'s, '_> {
        match self {
            Self::Revert(charges) => build_revert_call(scripts, charges),
            Self::Refund(hits) => build_refund_call(scripts, now, hits),
            Self::Reset(hits) => build_reset_call(scripts, hits),
        }
    }

    /// Returns `true` if a repetition has no further effect. This holds for a reset, and for a revert of permits, which
    /// have an id. Any other repetition would return units that other requests have charged.
    fn is_repeatable(&self) -> bool {
        match self {
            Self::Revert(charges) => charges.iter().all(|charge| charge.limit.is_concurrent()),
            Self::Refund(_) => false,
            Self::Reset(_) => true,
        }
    }

    /// The reply to a refund has the state of each counter. The replies to other operations only confirm success.
    fn decode(&self, bytes: &[u8]) -> Result<ScriptReply, DecodeError> {
        match self {
            Self::Refund(hits) => ScriptReply::decode(hits.len(), bytes),
            Self::Revert(_) | Self::Reset(_) if bytes == b"OK" => Ok(ScriptReply::empty()),
            Self::Revert(_) | Self::Reset(_) => Err(DecodeError::Malformed),
        }
    }
}

/// Builds the call that reverts charges. Charges that were not made by a Redis store are ignored.
pub fn build_revert_call<'s, 'k>(
    scripts: &'s Scripts,
    charges: &[&'k Charge],
) -> ScriptCall<'s, 'k> {
    let (mut keys, mut algorithms, mut bytes) =
        (RedisKeys::new(), AlgorithmSet::default(), Vec::new());
    let mut count: u16 = 0;
    for charge in charges {
        let Some((key, tag)) = parse_counter_id(&charge.counter) else { continue };
        let (algorithm, params) = (charge.limit.algorithm(), charge.limit.params());
        count += 1;
        algorithms = algorithms.with(&algorithm);
        bytes.push(algorithm_number(&algorithm));
        bytes.extend(find_or_add_key(&mut keys, key).to_le_bytes());
        bytes.extend(tag.to_le_bytes());
        bytes.extend(params.extra.to_le_bytes());
        let doubles = [
            params.max,
            params.tick_us,
            params.window,
            charge.cost.min(slidegate::limit::MAX_UNITS),
            charge.charged_at.as_micros(),
        ];
        bytes.extend(doubles.iter().flat_map(|number| (*number as f64).to_le_bytes()));
    }
    let argument = [&count.to_le_bytes()[..], &bytes].concat();
    ScriptCall { script: scripts.revert(algorithms), keys, argument }
}

/// Builds the call that subtracts the costs of hits from their counters. `None` for `now` selects the clock of Redis.
fn build_refund_call<'s, 'k>(
    scripts: &'s Scripts,
    now: Option<Timestamp>,
    hits: &[&'k KeyedHit],
) -> ScriptCall<'s, 'k> {
    let (mut keys, mut algorithms) = (RedisKeys::new(), AlgorithmSet::default());
    let mut argument = encode_time_or_redis_clock(now).to_vec();
    argument.extend((hits.len() as u16).to_le_bytes());
    for hit in hits {
        let (algorithm, params) = (hit.limit.algorithm(), hit.params);
        algorithms = algorithms.with(&algorithm);
        argument.push(algorithm_number(&algorithm));
        argument.extend(find_or_add_key(&mut keys, &hit.key).to_le_bytes());
        for number in [hit.tag, params.extra, params.max_debt] {
            argument.extend(number.to_le_bytes());
        }
        let cost = hit.cost.min(slidegate::limit::MAX_UNITS);
        let doubles = [params.max, params.tick_us, params.window, cost, hit.phase_us];
        argument.extend(doubles.iter().flat_map(|number| (*number as f64).to_le_bytes()));
    }
    ScriptCall { script: scripts.refund(algorithms), keys, argument }
}

/// Builds the call that deletes the counters of hits.
fn build_reset_call<'s, 'k>(scripts: &'s Scripts, hits: &[&'k KeyedHit]) -> ScriptCall<'s, 'k> {
    let mut keys = RedisKeys::new();
    let mut argument = (hits.len() as u16).to_le_bytes().to_vec();
    for hit in hits {
        argument.push(state_place(&hit.limit.algorithm()) as u8);
        argument.extend(find_or_add_key(&mut keys, &hit.key).to_le_bytes());
        argument.extend(hit.tag.to_le_bytes());
    }
    ScriptCall { script: scripts.reset(), keys, argument }
}

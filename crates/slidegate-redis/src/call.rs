//! Script calls, and the operation that decides requests. A call has Redis keys and one binary argument with all
//! numbers, little-endian. `docs/reference/redis-wire-format.md` documents the format.

use std::collections::HashMap;

use redis::Cmd;
use slidegate::Timestamp;
use slidegate::limit::MAX_UNITS;
use slidegate::store::{ChargeWhen, Veto};
use smallvec::SmallVec;

use crate::failure::Failure;
use crate::group::SameLimitsGroup;
use crate::reply::{DecodeError, HIT_REPLY_BYTES, ScriptReply};
use crate::script::{AlgorithmSet, Script, Scripts, StatePlace, algorithm_number, state_place};
use crate::script_request::{KeyedHit, ScriptMode, ScriptRequest};

/// Maximum cost of a charge in an encoded call. A higher cost is encoded as this value. Such a cost never fits, because
/// it is higher than the maximum of any limit.
pub const MAX_ENCODED_COST: u64 = MAX_UNITS + 1;

/// Format code in the header of a request in a batch call: several requests follow, which each charge one unit of the
/// same limit.
const REQUEST_FORMAT_SINGLE_UNIT: u8 = 0;
/// Format code in the header of a request in a batch call: one request follows, with only enforced hits. Each of these
/// hits can deny the request alone, is charged only if the request is admitted, and has its own slot in a shared Redis
/// value.
const REQUEST_FORMAT_ENFORCED_HITS: u8 = 1;
/// Format code in the header of a request in a batch call: one request follows, with any hits, for example hits that
/// never deny the request.
const REQUEST_FORMAT_ANY_HITS: u8 = 2;

/// A call of a script: the script, the Redis keys and the encoded argument.
#[derive(Debug)]
pub struct ScriptCall<'s, 'k> {
    pub script: &'s Script,
    pub keys: RedisKeys<'k>,
    pub argument: Vec<u8>,
}

/// The Redis keys of a script call, without duplicates.
pub type RedisKeys<'k> = SmallVec<[&'k str; 2]>;

/// Returns the index of a key in the list of keys, from 1. Adds the key if it is new.
pub fn find_or_add_key<'k>(keys: &mut RedisKeys<'k>, key: &'k str) -> u16 {
    let position = keys.iter().position(|other| *other == key).unwrap_or_else(|| {
        keys.push(key);
        keys.len() - 1
    });
    position as u16 + 1
}

impl ScriptCall<'_, '_> {
    /// Creates the Redis command for this call: `EVALSHA` with the SHA-1 of the script, or `EVAL` with its text.
    pub fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(script).arg(self.keys.len()).arg(&self.keys[..]).arg(&self.argument[..]);
        command
    }
}

/// An operation whose keys are all in one slot of a Cluster. It builds its script call and decodes the reply.
pub trait ScriptOperation {
    /// The decoded reply.
    type Reply;

    /// Builds the script call of the operation. `None` for `now` selects the clock of Redis. `expiry_margin_s` is the
    /// additional time to live of a key in seconds.
    fn call<'s>(
        &self,
        scripts: &'s Scripts,
        now: Option<Timestamp>,
        expiry_margin_s: u32,
    ) -> ScriptCall<'s, '_>;

    /// Returns `true` if a repetition of the operation has no further effect, so that it can be sent again if its
    /// connection is lost and Redis may have received it.
    fn is_repeatable(&self) -> bool {
        false
    }

    /// Decodes the reply of the script.
    fn decode(&self, bytes: &[u8]) -> Result<Self::Reply, DecodeError>;
}

/// The reply to a request, or the reason why it failed.
pub type ScriptResult = Result<ScriptReply, Failure>;

/// The operation that decides requests, one after another. The reply has a result for each of them.
#[derive(Debug)]
pub struct DecideBatch<'r>(pub &'r [&'r ScriptRequest]);

impl ScriptOperation for DecideBatch<'_> {
    type Reply = Vec<ScriptResult>;

    fn call<'s>(
        &self,
        scripts: &'s Scripts,
        now: Option<Timestamp>,
        expiry_margin_s: u32,
    ) -> ScriptCall<'s, '_> {
        build_decide_call(scripts, now, expiry_margin_s, self.0)
    }

    fn is_repeatable(&self) -> bool {
        self.0.iter().all(|request| request.mode == ScriptMode::Peek)
    }

    /// Returns one result for each request. It is a failure if a key of the request has a value that slidegate has not
    /// written.
    fn decode(&self, bytes: &[u8]) -> Result<Vec<ScriptResult>, DecodeError> {
        let (mut results, mut rest) = (Vec::with_capacity(self.0.len()), bytes);
        for request in self.0 {
            let reply;
            (reply, rest) = rest
                .split_at_checked(HIT_REPLY_BYTES * request.hits.len())
                .ok_or(DecodeError::Malformed)?;
            results.push(match ScriptReply::decode(request.hits.len(), reply) {
                Err(DecodeError::Malformed) => return Err(DecodeError::Malformed),
                Err(DecodeError::WrongType) => {
                    Err(Failure::foreign_value(request.hits.iter().map(|hit| hit.key.as_str())))
                }
                Ok(reply) => Ok(reply),
            });
        }
        if rest.is_empty() { Ok(results) } else { Err(DecodeError::Malformed) }
    }
}

/// The operation that tests whether a server executes scripts. It uses no key. In contrast to `PING`, it needs no other
/// access rights than a decision.
#[derive(Debug)]
pub struct ScriptProbe;

impl ScriptOperation for ScriptProbe {
    type Reply = ();

    fn call<'s>(&self, scripts: &'s Scripts, _: Option<Timestamp>, _: u32) -> ScriptCall<'s, '_> {
        ScriptCall { script: scripts.probe(), keys: RedisKeys::new(), argument: Vec::new() }
    }

    fn is_repeatable(&self) -> bool {
        true
    }

    fn decode(&self, bytes: &[u8]) -> Result<(), DecodeError> {
        if bytes == b"OK" { Ok(()) } else { Err(DecodeError::Malformed) }
    }
}

/// Builds the call that decides these requests. `None` for `now` selects the clock of Redis.
pub fn build_decide_call<'s, 'k>(
    scripts: &'s Scripts,
    now: Option<Timestamp>,
    expiry_margin_s: u32,
    requests: &[&'k ScriptRequest],
) -> ScriptCall<'s, 'k> {
    let now = encode_time_or_redis_clock(now);
    match requests {
        [request] if request.hits.len() == 1 => {
            build_single_hit_call(scripts, now, expiry_margin_s, request.mode, &request.hits[0])
        }
        _ => SameLimitsGroup::new(requests).map_or_else(
            || build_batch_call(scripts, now, expiry_margin_s, requests),
            |group| group.build_call(scripts, now, expiry_margin_s),
        ),
    }
}

/// Encodes a time in microseconds. `None` is encoded as -1, which selects the clock of Redis.
pub fn encode_time_or_redis_clock(now: Option<Timestamp>) -> [u8; 8] {
    now.map_or(-1.0, |now| now.as_micros() as f64).to_le_bytes()
}

/// Builds the call that decides a request with one hit.
pub fn build_single_hit_call<'s, 'k>(
    scripts: &'s Scripts,
    now: [u8; 8],
    expiry_margin_s: u32,
    mode: ScriptMode,
    hit: &'k KeyedHit,
) -> ScriptCall<'s, 'k> {
    let take = match (mode, hit.cost) {
        (ScriptMode::Peek, _) | (_, 0) => 0.0,
        // Whether a hit that blocks its key is charged depends on the limits before it, which this call does not have.
        // So it is not charged, unless an earlier call has decided that it is: its number of limits is then 0.
        _ if hit.charge.block().is_some_and(|block| block.limits > 0) => 0.0,
        _ if hit.is_charged_above_limit() => 2.0,
        _ => 1.0,
    };
    let params = hit.params;
    let [cost, phase_us] = encode_cost_and_phase(hit);
    let (tick_us, window) = (params.tick_us as f64, params.window as f64);
    let mut argument = Vec::with_capacity(96);
    argument.extend(now);
    push_doubles(&mut argument, [take, hit.tag.into(), cost, params.max as f64, tick_us, window]);
    push_doubles(&mut argument, [params.extra.into(), phase_us, expiry_margin_s.into()]);
    if hit.required != hit.cost.max(1) || params.max_debt != 0 {
        push_doubles(&mut argument, encode_required_units_and_max_debt(hit));
    }
    let script = scripts.decide_single_hit(&hit.limit.algorithm());
    ScriptCall { script, keys: RedisKeys::from_slice(&[&hit.key]), argument }
}

/// Appends numbers as doubles, which scripts read faster than integers.
pub fn push_doubles<const N: usize>(argument: &mut Vec<u8>, numbers: [f64; N]) {
    argument.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
}

pub fn encode_cost_and_phase(hit: &KeyedHit) -> [f64; 2] {
    [hit.cost.min(MAX_ENCODED_COST) as f64, hit.phase_us as f64]
}

pub fn encode_required_units_and_max_debt(hit: &KeyedHit) -> [f64; 2] {
    [hit.required.min(MAX_ENCODED_COST) as f64, hit.params.max_debt.into()]
}

/// Builds the call that decides several requests of any kind, one after another.
pub fn build_batch_call<'s, 'k>(
    scripts: &'s Scripts,
    now: [u8; 8],
    expiry_margin_s: u32,
    requests: &[&'k ScriptRequest],
) -> ScriptCall<'s, 'k> {
    let hits = || requests.iter().flat_map(|request| &request.hits);
    // The keys of values that several limits share come first, because the script reads these values with one `MGET`.
    let (mut key_indexes, mut keys, mut algorithms) =
        (RedisKeyIndexes::new(), RedisKeys::new(), AlgorithmSet::default());
    let mut shared_keys = 0;
    let has_shared_value =
        |hit: &KeyedHit| state_place(&hit.limit.algorithm()) != StatePlace::OwnKey;
    for shared in [true, false] {
        for hit in hits().filter(|hit| has_shared_value(hit) == shared) {
            algorithms = algorithms.with(&hit.limit.algorithm());
            key_indexes.entry(hit.key.as_str()).or_insert_with(|| {
                keys.push(&hit.key);
                keys.len() as u16
            });
        }
        if shared {
            shared_keys = keys.len() as u16;
        }
    }
    let mut body = EncodedBatchBody::new(requests.len());
    for request in requests {
        body.push_request(request, &key_indexes);
    }
    let EncodedBatchBody { limits, bytes, .. } = body;
    let mut argument = Vec::with_capacity(12 + 41 * limits.len() + bytes.len());
    argument.extend(now);
    for count in [shared_keys, limits.len() as u16] {
        argument.extend(count.to_le_bytes());
    }
    for hit in limits {
        let params = hit.params;
        argument.push(algorithm_number(&hit.limit.algorithm()));
        for number in [hit.tag, params.extra, params.max_debt, expiry_margin_s] {
            argument.extend(number.to_le_bytes());
        }
        push_doubles(
            &mut argument,
            [params.max, params.tick_us, params.window].map(|number| number as f64),
        );
    }
    argument.extend(bytes);
    ScriptCall { script: scripts.decide_batch(algorithms), keys, argument }
}

/// The index of each Redis key in the list of keys of a call, from 1.
pub type RedisKeyIndexes<'k> = HashMap<&'k str, u16>;

/// The encoded requests of a batch, and the limits that they refer to.
struct EncodedBatchBody<'k> {
    /// One hit for each limit of the batch, without duplicate limits.
    limits: Vec<&'k KeyedHit>,
    bytes: Vec<u8>,
    /// The header that successive requests for one unit of the same limit share: its byte offset, the index of the
    /// limit, and the number of requests. `None` if the last request was of another kind.
    unit_run: Option<(usize, u16, u16)>,
}

impl<'k> EncodedBatchBody<'k> {
    fn new(requests: usize) -> Self {
        Self { limits: Vec::new(), bytes: Vec::with_capacity(22 * requests), unit_run: None }
    }

    /// Appends an encoded request.
    fn push_request(&mut self, request: &'k ScriptRequest, key_indexes: &RedisKeyIndexes<'_>) {
        let key_index =
            |hit: &KeyedHit| key_indexes.get(hit.key.as_str()).copied().unwrap_or_default();
        if let Some(hit) = request.single_unit_hit() {
            return self.push_single_unit_request(hit, key_index(hit));
        }
        self.unit_run = None;
        let format_code = if request.has_enforced_hits_in_distinct_slots() {
            REQUEST_FORMAT_ENFORCED_HITS
        } else {
            REQUEST_FORMAT_ANY_HITS
        };
        self.push_request_header(format_code, request.hits.len() as u16, request.mode as u16);
        for hit in &request.hits {
            let limit = self.find_or_add_limit(hit);
            self.bytes.extend(key_index(hit).to_le_bytes());
            self.bytes.extend(limit.to_le_bytes());
            let units = [hit.cost, hit.required].map(|units| units.min(MAX_ENCODED_COST) as f64);
            push_doubles(&mut self.bytes, units);
            self.bytes.extend(encode_veto_and_charge_conditions(hit).to_le_bytes());
            self.bytes.extend((hit.phase_us as f64).to_le_bytes());
        }
    }

    /// Appends a request for one unit. Successive requests of the same limit share a header.
    fn push_single_unit_request(&mut self, hit: &'k KeyedHit, key_index: u16) {
        let limit = self.find_or_add_limit(hit);
        match &mut self.unit_run {
            Some((begin, run_limit, count)) if *run_limit == limit => {
                *count += 1;
                self.bytes[*begin + 1..][..2].copy_from_slice(&count.to_le_bytes());
            }
            _ => {
                self.unit_run = Some((self.bytes.len(), limit, 1));
                self.push_request_header(REQUEST_FORMAT_SINGLE_UNIT, 1, limit);
            }
        }
        self.bytes.extend(key_index.to_le_bytes());
    }

    /// Appends a header of three fields. For requests that charge one unit each, these are the format code, the number
    /// of requests, and the index of the limit. For another request, these are the format code, the number of hits, and
    /// the mode.
    fn push_request_header(&mut self, format_code: u8, count: u16, limit_or_mode: u16) {
        self.bytes.push(format_code);
        self.bytes.extend(count.to_le_bytes());
        self.bytes.extend(limit_or_mode.to_le_bytes());
    }

    /// Returns the index of a hit's limit in the batch, from 1. Adds the limit if it is new.
    fn find_or_add_limit(&mut self, hit: &'k KeyedHit) -> u16 {
        let same = |other: &&KeyedHit| {
            (other.tag, other.limit, other.params) == (hit.tag, hit.limit, hit.params)
        };
        let position = self.limits.iter().position(same).unwrap_or_else(|| {
            self.limits.push(hit);
            self.limits.len() - 1
        });
        position as u16 + 1
    }
}

/// Encodes in a number when a hit denies its request and when the hit is charged. The number is the code of the veto,
/// plus 4 times the code of the charge condition. 16 is added if the hit, without other hits in its request, would be
/// charged even above the limit. For a hit that blocks its key, 32 is added if calls extend the block, and 64 times the
/// number of limits.
fn encode_veto_and_charge_conditions(hit: &KeyedHit) -> u16 {
    let veto = match hit.veto {
        Veto::Alone => 0,
        Veto::Jointly => 1,
        Veto::Never => 2,
    };
    let charge = match hit.charge {
        ChargeWhen::IfAdmitted => 0,
        ChargeWhen::IfAdmittedAndFits => 1,
        ChargeWhen::Always => 2,
        ChargeWhen::Block(_) => 3,
    };
    let block = hit
        .charge
        .block()
        .map_or(0, |block| 32 * u16::from(block.extends) + 64 * u16::from(block.limits));
    veto + 4 * charge + 16 * u16::from(hit.is_charged_above_limit()) + block
}

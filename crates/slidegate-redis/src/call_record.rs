//! Script calls for a charge with an id and for a settlement. They write the record of the call, and read it so that a
//! repetition is not carried out again. `record_change.rs` has the calls for a charge whose keys are in several slots.

mod record_change;

use std::time::Duration;

use slidegate::Timestamp;
use slidegate::clock::{Clock, WallClock};
use slidegate::store::{
    CallIdentity, Charge, ChargeOnceResult, Hit, SettleResult, Veto, digest_hits,
};

use crate::call::{
    RedisKeys, ScriptCall, ScriptOperation, build_batch_call, build_single_hit_call,
    encode_time_or_redis_clock,
};
use crate::group::SameLimitsGroup;
use crate::maintenance_op::build_revert_call;
use crate::reply::{DecodeError, HIT_REPLY_BYTES, ScriptReply};
use crate::script::{AlgorithmSet, Scripts};
use crate::script_request::{KeyedHit, ScriptRequest};

pub use record_change::CallRecordChange;

/// Status of a script call: the script has carried it out, and it repeats no earlier call.
const STATUS_CARRIED_OUT: u8 = 0;
/// Status of a script call: the same call was carried out before.
const STATUS_REPEATED: u8 = 1;
/// Status of a script call: another call with the same id was carried out before, so this call was rejected.
const STATUS_OTHER_CALL: u8 = 2;

/// Status of a script call: the same call is being decided now.
const STATUS_IN_PROGRESS: u8 = 3;

/// A charge with an id. All its keys are in one slot of a Cluster.
#[derive(Debug)]
pub struct ChargeOnceCall {
    pub request: ScriptRequest,
    record_key: String,
    head: CallRecordHeader,
    ttl: Duration,
}

/// The beginning of the record of a call: the digests that recognize a repetition, and the time of the call.
#[derive(Clone, Copy, Debug)]
pub struct CallRecordHeader {
    request_digest: u64,
    hits_digest: u64,
    /// The time of this machine's clock at which the call was created.
    created_at: Timestamp,
}

impl CallRecordHeader {
    /// Creates the beginning of the record of a call that is sent now.
    pub fn new(hits: &[Hit<'_>], identity: &CallIdentity) -> Self {
        Self {
            request_digest: identity.request_digest,
            hits_digest: digest_hits(hits),
            created_at: WallClock.now(),
        }
    }

    fn encode(&self) -> [u8; 24] {
        let created_at = (self.created_at.as_micros() as f64).to_le_bytes();
        let parts = [self.request_digest.to_le_bytes(), self.hits_digest.to_le_bytes(), created_at];
        let mut bytes = [0; 24];
        for (place, part) in bytes.chunks_exact_mut(8).zip(parts) {
            place.copy_from_slice(&part);
        }
        bytes
    }

    /// Decodes the reply for a call whose record exists. `hits` is the number of hits of the call.
    fn decode_existing_record(
        &self,
        bytes: &[u8],
        hits: usize,
    ) -> Result<ChargeOnceReply, DecodeError> {
        let (status, rest) = bytes.split_first().ok_or(DecodeError::Malformed)?;
        match *status {
            STATUS_OTHER_CALL if rest.is_empty() => Ok(ChargeOnceReply::OtherRequest),
            STATUS_IN_PROGRESS if rest.is_empty() => Ok(ChargeOnceReply::InProgress),
            STATUS_REPEATED => {
                let (hits_digest, rest) = rest.split_first_chunk().ok_or(DecodeError::Malformed)?;
                let (created_at, reply) = rest.split_first_chunk().ok_or(DecodeError::Malformed)?;
                let created_us = f64::from_le_bytes(*created_at) as u64;
                let age_us = self.created_at.as_micros().saturating_sub(created_us);
                let has_same_hits = u64::from_le_bytes(*hits_digest) == self.hits_digest
                    && reply.len() == HIT_REPLY_BYTES * hits;
                let reply = has_same_hits.then(|| ScriptReply::decode(hits, reply)).transpose()?;
                Ok(ChargeOnceReply::Repeated { reply, age: Duration::from_micros(age_us) })
            }
            _ => Err(DecodeError::Malformed),
        }
    }
}

/// The reply to a charge with an id.
#[derive(Debug)]
pub enum ChargeOnceReply {
    Decided(ScriptReply),
    /// The call repeats an earlier one. `reply` is the reply to the first call, or `None` if the first call had other
    /// hits.
    Repeated {
        reply: Option<ScriptReply>,
        age: Duration,
    },
    OtherRequest,
    InProgress,
}

impl ChargeOnceCall {
    /// Creates a call. `ttl` is the time for which the record is kept.
    pub fn new(
        request: ScriptRequest,
        head: CallRecordHeader,
        record_key: String,
        ttl: Duration,
    ) -> Self {
        Self { request, record_key, head, ttl }
    }
}

impl ScriptOperation for ChargeOnceCall {
    type Reply = ChargeOnceReply;

    fn call<'s>(
        &self,
        scripts: &'s Scripts,
        now: Option<Timestamp>,
        expiry_margin_s: u32,
    ) -> ScriptCall<'s, '_> {
        let mut call = build_decide_once_call(scripts, now, expiry_margin_s, &self.request);
        let mut argument = Vec::with_capacity(36 + call.argument.len());
        argument.extend(self.head.encode());
        argument.extend(encode_millis(self.ttl));
        argument.extend((self.request.hits.len() as u16).to_le_bytes());
        argument.extend(self.request.hits.iter().map(|hit| match hit.veto {
            Veto::Alone => 0,
            Veto::Jointly => 1,
            Veto::Never => 2_u8,
        }));
        argument.append(&mut call.argument);
        call.keys.push(&self.record_key);
        ScriptCall { argument, ..call }
    }

    /// The script finds the record of the first call, and returns the reply to it again. A denied call has no record, so
    /// it must have charged nothing.
    fn is_repeatable(&self) -> bool {
        !self.request.hits.iter().any(|hit| hit.charge.charges_denied())
    }

    fn decode(&self, bytes: &[u8]) -> Result<ChargeOnceReply, DecodeError> {
        let hits = self.request.hits.len();
        match bytes.split_first() {
            Some((&STATUS_CARRIED_OUT, reply)) => {
                ScriptReply::decode(hits, reply).map(ChargeOnceReply::Decided)
            }
            _ => self.head.decode_existing_record(bytes, hits),
        }
    }
}

impl ChargeOnceReply {
    /// Converts the reply into the result of the store. `hits` are the hits of the request.
    pub fn into_result(self, hits: &[KeyedHit]) -> ChargeOnceResult {
        match self {
            Self::Decided(reply) => ChargeOnceResult::Decided(reply.charge_result(hits)),
            Self::Repeated { reply, age } => ChargeOnceResult::Repeated {
                result: reply.map(|reply| reply.charge_result(hits)),
                age,
            },
            Self::OtherRequest => ChargeOnceResult::OtherRequest,
            Self::InProgress => ChargeOnceResult::InProgress,
        }
    }
}

/// The part of a settlement whose keys are in one slot of a Cluster.
#[derive(Debug)]
pub struct SettleCall<'c> {
    pub record_key: String,
    pub value_digest: u64,
    /// Minimum time for which the record is kept.
    pub record_ttl: Duration,
    pub reverted: Vec<&'c Charge>,
    /// The hits that charge the units which the settlement adds.
    pub added: ScriptRequest,
}

impl ScriptOperation for SettleCall<'_> {
    type Reply = SettleResult;

    fn call<'s>(
        &self,
        scripts: &'s Scripts,
        now: Option<Timestamp>,
        expiry_margin_s: u32,
    ) -> ScriptCall<'s, '_> {
        let (mut keys, mut revert_keys, mut revert, mut add) =
            (RedisKeys::new(), 0_u16, Vec::new(), Vec::new());
        if !self.reverted.is_empty() {
            let call = build_revert_call(scripts, &self.reverted);
            (keys, revert) = (call.keys, call.argument);
            revert_keys = keys.len() as u16;
        }
        let now = encode_time_or_redis_clock(now);
        let added = algorithms_of_hits(&self.added.hits);
        let algorithms =
            (self.reverted.iter()).fold(added, |set, charge| set.with(&charge.limit.algorithm()));
        let single = algorithms.single().filter(|_| self.added.hits.len() <= 1);
        let call = match (&self.added.hits[..], single) {
            ([], _) => None,
            ([hit], Some(_)) => {
                Some(build_single_hit_call(scripts, now, expiry_margin_s, self.added.mode, hit))
            }
            _ => Some(build_batch_call(scripts, now, expiry_margin_s, &[&self.added])),
        };
        if let Some(call) = call {
            keys.extend(call.keys);
            add = call.argument;
        }
        keys.push(&self.record_key);
        let mut argument = Vec::with_capacity(47 + revert.len() + add.len());
        // The record to write if there is none: only the settlement is known, so the digests and the time of the call
        // are 0.
        argument.extend([0; 24]);
        argument.push(1);
        argument.extend(self.value_digest.to_le_bytes());
        argument.extend(encode_millis(self.record_ttl));
        argument.extend(revert_keys.to_le_bytes());
        argument.extend((revert.len() as u32).to_le_bytes());
        argument.extend(revert);
        argument.extend(add);
        let script = match single {
            Some(algorithm) => scripts.settle_single(&algorithm),
            None => scripts.settle(algorithms),
        };
        ScriptCall { script, keys, argument }
    }

    /// Returns `true`: the script finds the settlement in the record of the call, and does not apply it again.
    fn is_repeatable(&self) -> bool {
        true
    }

    fn decode(&self, bytes: &[u8]) -> Result<SettleResult, DecodeError> {
        match bytes {
            [STATUS_CARRIED_OUT] => Ok(SettleResult::Settled),
            [STATUS_REPEATED] => Ok(SettleResult::Repeated),
            [STATUS_OTHER_CALL] => Ok(SettleResult::OtherValue),
            _ => Err(DecodeError::Malformed),
        }
    }
}

/// Builds the part of a call with an id that decides the request. The caller adds the part for the record of the call.
fn build_decide_once_call<'s, 'k>(
    scripts: &'s Scripts,
    now: Option<Timestamp>,
    expiry_margin_s: u32,
    request: &'k ScriptRequest,
) -> ScriptCall<'s, 'k> {
    let now = encode_time_or_redis_clock(now);
    match &request.hits[..] {
        [hit] => {
            let call = build_single_hit_call(scripts, now, expiry_margin_s, request.mode, hit);
            ScriptCall { script: scripts.decide_once_single(&hit.limit.algorithm()), ..call }
        }
        hits => match SameLimitsGroup::new(&[request]) {
            Some(group) => ScriptCall {
                script: scripts.decide_once_group(group.algorithms()),
                ..group.build_call(scripts, now, expiry_margin_s)
            },
            None => ScriptCall {
                script: scripts.decide_once_batch(algorithms_of_hits(hits)),
                ..build_batch_call(scripts, now, expiry_margin_s, &[request])
            },
        },
    }
}

/// Returns the algorithms of hits.
fn algorithms_of_hits(hits: &[KeyedHit]) -> AlgorithmSet {
    hits.iter().fold(AlgorithmSet::default(), |set, hit| set.with(&hit.limit.algorithm()))
}

/// Encodes a duration in whole milliseconds, rounded up, as a double.
fn encode_millis(duration: Duration) -> [u8; 8] {
    (duration.as_micros().div_ceil(1_000) as f64).to_le_bytes()
}

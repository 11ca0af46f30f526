//! Changes of the record of a call whose keys are in several slots of a Cluster. No single script can charge such a
//! call and write its record, so a claim is written first, and later replaced or removed.

use std::time::Duration;

use slidegate::Timestamp;
use slidegate::store::{Charge, ChargeResult, Outcome};

use super::{CallRecordHeader, ChargeOnceReply, STATUS_CARRIED_OUT, encode_millis};
use crate::call::{RedisKeys, ScriptCall, ScriptOperation};
use crate::reply::{DecodeError, HIT_REPLY_BYTES, encode_hit_reply};
use crate::script::Scripts;
use crate::script_request::KeyedHit;

const OPERATION_CLAIM: u8 = 0;
const OPERATION_PUT: u8 = 1;
const OPERATION_REMOVE: u8 = 2;

/// A change of the record of a call.
#[derive(Debug)]
pub struct CallRecordChange {
    operation: u8,
    record_key: String,
    head: CallRecordHeader,
    /// The number of hits of the call.
    hits: usize,
    ttl: Duration,
    record: Vec<u8>,
}

impl CallRecordChange {
    /// Creates a claim: a record without a result, which says that the call is being decided. The reply is `None` if no
    /// record existed.
    pub fn claim(record_key: String, head: CallRecordHeader, hits: usize, ttl: Duration) -> Self {
        let record = head.encode().to_vec();
        Self { operation: OPERATION_CLAIM, record_key, head, hits, ttl, record }
    }

    /// Creates the record of an admitted call, which replaces its claim.
    pub fn put(
        record_key: String,
        head: CallRecordHeader,
        hits: &[KeyedHit],
        result: &ChargeResult,
        ttl: Duration,
    ) -> Self {
        let mut record = head.encode().to_vec();
        // The call is not settled: one byte for the flag, and eight bytes for the digest of the settled costs, are 0.
        record.extend([0; 9]);
        for (index, outcome) in (0..).zip(&result.outcomes) {
            let charge = result.receipt.charges().iter().find(|charge| charge.hit_index == index);
            record.extend(encode_hit(outcome, charge));
        }
        Self { operation: OPERATION_PUT, record_key, head, hits: hits.len(), ttl, record }
    }

    /// Creates the removal of a claim.
    pub fn remove(record_key: String, head: CallRecordHeader, hits: usize) -> Self {
        let (operation, ttl, record) = (OPERATION_REMOVE, Duration::ZERO, Vec::new());
        Self { operation, record_key, head, hits, ttl, record }
    }
}

/// Encodes the result of a hit as the script that decides it does. A charge without units is encoded as not charged.
fn encode_hit(outcome: &Outcome, charge: Option<&Charge>) -> [u8; HIT_REPLY_BYTES] {
    let charge = charge.filter(|charge| charge.charged_at != Timestamp::from_micros(0));
    encode_hit_reply(outcome, charge.map(|charge| (charge.charged_at, charge.cost)))
}

impl ScriptOperation for CallRecordChange {
    type Reply = Option<ChargeOnceReply>;

    fn call<'s>(&self, scripts: &'s Scripts, _: Option<Timestamp>, _: u32) -> ScriptCall<'s, '_> {
        let mut argument = vec![self.operation];
        argument.extend(encode_millis(self.ttl));
        argument.extend(&self.record);
        ScriptCall {
            script: scripts.change_call_record(),
            keys: RedisKeys::from_slice(&[&self.record_key]),
            argument,
        }
    }

    /// Returns `true` only for the replacement of a claim: a repeated claim would find itself, and a repeated removal
    /// could remove the claim of another repetition.
    fn is_repeatable(&self) -> bool {
        self.operation == OPERATION_PUT
    }

    fn decode(&self, bytes: &[u8]) -> Result<Option<ChargeOnceReply>, DecodeError> {
        match bytes {
            [STATUS_CARRIED_OUT] => Ok(None),
            _ => self.head.decode_existing_record(bytes, self.hits).map(Some),
        }
    }
}

//! The script call that releases or renews a permit.

use slidegate::Timestamp;
use slidegate::store::{Charge, PermitChange};

use crate::call::{
    RedisKeys, ScriptCall, ScriptOperation, encode_time_or_redis_clock, find_or_add_key,
};
use crate::reply::DecodeError;
use crate::script::Scripts;
use crate::script_request::parse_counter_id;

/// A release or renewal of a permit: of its charges whose keys are in one slot of a Cluster. The reply is `true` if all
/// these charges were live.
#[derive(Debug)]
pub struct PermitCall<'c> {
    pub change: PermitChange,
    pub charges: Vec<&'c Charge>,
    /// Additional time for which a permit lives, in milliseconds, because the clocks of clients may differ.
    pub margin_ms: u32,
}

impl ScriptOperation for PermitCall<'_> {
    type Reply = bool;

    fn call<'s>(
        &self,
        scripts: &'s Scripts,
        now: Option<Timestamp>,
        expiry_margin_s: u32,
    ) -> ScriptCall<'s, '_> {
        let (mut keys, mut charges, mut count) = (RedisKeys::new(), Vec::new(), 0_u16);
        for charge in &self.charges {
            let Some((key, _)) = parse_counter_id(&charge.counter) else { continue };
            count += 1;
            charges.extend(find_or_add_key(&mut keys, key).to_le_bytes());
            charges.extend(u32::try_from(charge.cost).unwrap_or(u32::MAX).to_le_bytes());
            let ttl_us = charge.limit.params().window + 1_000 * u64::from(self.margin_ms);
            for number in [charge.charged_at.as_micros(), ttl_us] {
                charges.extend((number as f64).to_le_bytes());
            }
        }
        let mut argument = encode_time_or_redis_clock(now).to_vec();
        argument.push(match self.change {
            PermitChange::Release => 0,
            PermitChange::Renew => 1,
        });
        argument.extend(f64::from(expiry_margin_s).to_le_bytes());
        argument.extend(count.to_le_bytes());
        argument.extend(charges);
        ScriptCall { script: scripts.change_permit(), keys, argument }
    }

    /// Returns `true`: the charges of a permit have an id, so a repeated release finds the permit released, and frees
    /// no other.
    fn is_repeatable(&self) -> bool {
        true
    }

    fn decode(&self, bytes: &[u8]) -> Result<bool, DecodeError> {
        match bytes {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(DecodeError::Malformed),
        }
    }
}

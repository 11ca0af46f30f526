//! Describes the operations that change counters without a decision: revert, refund and reset. An operation builds its
//! script call and decodes the reply. All its keys are in one slot of a Cluster.

use slidegate::Timestamp;
use slidegate::store::Charge;

use crate::call::{self, ScriptCall};
use crate::reply::{DecodeError, ScriptReply};
use crate::script::Scripts;
use crate::script_operation::ScriptOperation;
use crate::script_request::KeyedHit;

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
            Self::Revert(charges) => call::build_revert(scripts, charges),
            Self::Refund(hits) => call::build_refund(scripts, now, hits),
            Self::Reset(hits) => call::build_reset(scripts, hits),
        }
    }

    /// A repeated revert or refund would return units that other requests have charged, unless the units have an id, as
    /// permits have.
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

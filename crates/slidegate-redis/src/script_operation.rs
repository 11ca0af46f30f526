//! Operations that are sent to Redis in a script call of their own.

use slidegate::Timestamp;

use crate::call::ScriptCall;
use crate::reply::DecodeError;
use crate::script::Scripts;

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

    /// Returns `true` if a repetition of the operation has no further effect, so that it can be sent again if its connection
    /// is lost and Redis may have received it.
    fn is_repeatable(&self) -> bool {
        false
    }

    /// Decodes the reply of the script.
    fn decode(&self, bytes: &[u8]) -> Result<Self::Reply, DecodeError>;
}

//! Results of calls with an id, and settlements, which a store applies once.

use std::time::Duration;

use super::{Charge, ChargeResult, CounterId};
use crate::call::CallId;

/// The result of a call with an id.
#[derive(Clone, Debug, PartialEq)]
pub enum ChargeOnceResult {
    /// The call was decided now.
    Decided(ChargeResult),
    /// The call is a repetition of an admitted call. Nothing was charged.
    Repeated {
        /// The result of the admitted call; `None` if the hits of the request have changed since, because the policy
        /// was replaced.
        result: Option<ChargeResult>,
        /// The time since the call was admitted.
        age: Duration,
    },
    /// The store remembers another request with the same id. Nothing was charged.
    OtherRequest,
    /// The same call is being decided now. This repetition charged nothing.
    InProgress,
}

/// A correction of the charges of a call. A store applies it once, however often it is repeated.
#[derive(Clone, Debug, PartialEq)]
pub struct CallSettlement {
    /// The id of the call.
    pub id: CallId,
    /// A counter of the call, the same in every settlement of the call. A store that distributes its counters remembers
    /// the settlement where this counter is. `None` if the call has no charges.
    pub owner: Option<CounterId>,
    /// A digest of the costs to which the charges are corrected.
    pub value_digest: u64,
    /// The time for which the settlement can be repeated. The store remembers it at least as long.
    pub ttl: Duration,
    /// The charges to revert. The cost of each is the number of units to revert.
    pub reverted: Vec<Charge>,
    /// The charges to add. Each is charged by a [hit](Charge::reported_hit) that never denies.
    pub added: Vec<Charge>,
}

/// The result of a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettleResult {
    /// The charges were corrected now.
    Settled,
    /// The charges were corrected to the same costs before. Nothing was changed.
    Repeated,
    /// The charges were corrected to other costs before. Nothing was changed.
    OtherValue,
    /// It is not known whether the charges were corrected before, because the store has evicted records. Nothing was
    /// changed.
    Forgotten,
}

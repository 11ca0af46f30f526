//! Permits: the right of one request to be in flight.

use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use crate::decision::Decision;
use crate::store::{Charge, Receipt};

/// The right to have one request in flight, under all limits that [bound the requests in
/// flight](crate::Limit::concurrent). It ends when it is [released](Self::release) or expires. Plain data: serde
/// serializes it, for a token with which any process can release it. The caller must authenticate the token, because
/// deserialization accepts the permit of any counter.
///
/// ```
/// use slidegate::{Descriptor, Gate, MemoryStore, Permit, Policy, Reason, Request};
///
/// let policy = Policy::from_yaml("
/// rules:
///   - { name: streams, per: [user], limits: [{ name: in-flight, concurrent: 1, permit_ttl: 60s }] }
/// ")?;
/// let gate = Gate::new(policy, MemoryStore::new());
/// let request = Request::new("default", Descriptor::new([("user", "ann")]));
///
/// let permit = gate.check(&request).permit().ok_or("no permit")?;
/// let denied = gate.check(&request);
/// assert_eq!((denied.reason(), denied.retry_after()), (Some(Reason::ConcurrencyExceeded), None));
/// assert!(permit.renew(&gate));                        // the permit expires 60 seconds from now
/// assert!(permit.release(&gate));
/// assert!(!permit.release(&gate));                     // it has been released
/// assert!(gate.check(&request).is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Permit {
    /// The charges of the limits that bound the requests in flight, at least one.
    #[serde(deserialize_with = "deserialize_permit_charges")]
    charges: Receipt,
    is_degraded: bool,
}

/// Deserializes the charges of a permit. Rejects charges of other limits, because a release would refund them.
fn deserialize_permit_charges<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Receipt, D::Error> {
    let charges = Receipt::deserialize(deserializer)?;
    let has_only_permits = charges.permit_charges().count() == charges.charges().len();
    if has_only_permits && !charges.is_empty() {
        Ok(charges)
    } else {
        Err(D::Error::custom("not the charges of a permit"))
    }
}

impl Permit {
    /// Returns the permit of a decision; `None` if the request is denied, or no limit bounds the requests in flight.
    pub(crate) fn from_decision(decision: &Decision<'_>) -> Option<Self> {
        if !decision.is_allowed() {
            return None;
        }
        Self::from_receipt(decision.receipt(), decision.is_degraded())
    }

    /// Returns the permit among charges; `None` if there is none.
    pub(crate) fn from_receipt(receipt: &Receipt, is_degraded: bool) -> Option<Self> {
        // The permit belongs to no call, so the positions of the hits in their call have no meaning, and are set to 0.
        let without_position = |charge: &Charge| Charge { hit_index: 0, ..charge.clone() };
        let charges: Receipt = receipt.permit_charges().map(without_position).collect();
        (!charges.is_empty()).then_some(Self { charges, is_degraded })
    }

    /// Returns the charges of the permit.
    pub fn receipt(&self) -> &Receipt {
        &self.charges
    }

    /// Returns the time after which the permit expires unless it is renewed: the shortest time to live of its limits.
    pub fn ttl(&self) -> Duration {
        let ttls = self.charges.charges().iter().map(|charge| charge.limit.quota().window());
        ttls.min().unwrap_or_default()
    }

    /// Returns whether the permit was created without the store, because it was unavailable. Only the gate that created
    /// such a permit can release it.
    pub fn is_degraded(&self) -> bool {
        self.is_degraded
    }

    pub(crate) fn into_receipt(self) -> Receipt {
        self.charges
    }
}

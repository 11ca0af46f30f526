//! The store interface: the traits, results, receipts and errors that all stores share.
//!
//! A [`Store`] may wait and may fail. A [`SyncStore`] does neither, and every `SyncStore` is a [`Store`]. [`StoreKind`]
//! makes the difference known to the compiler. A store returns an error only if it could not decide; a denial is not an
//! error.
//!
//! To add a store, implement one of the traits, and run the conformance suite and the properties of `testkit` on it. A
//! store must return [`StoreError::Unsupported`] for limits that it cannot count.

mod call_records;
mod error;
mod few;
pub(crate) mod local_results;
pub mod memory;
mod outcomes;
mod receipt;
mod settlement;
pub(crate) mod shards;
mod store_kind;
pub(crate) mod table;

use std::future::{Future, ready};

use crate::call::CallIdentity;
use crate::hit::{Hit, Veto};
use crate::outcome::Outcome;

pub use crate::key::CounterId;
pub use call_records::{
    CallRecordTable, DEFAULT_MAX_CALL_RECORDS, digest_hits, max_call_record_bytes,
};
pub use error::{RejectionClass, StoreError};
pub use local_results::LocalResults;
pub use outcomes::Outcomes;
pub use receipt::{Charge, Receipt, SingleCharge};
pub use settlement::{OnceResult, SettleResult, Settlement};
#[cfg(feature = "policy")]
pub(crate) use store_kind::poll_once;
pub use store_kind::{Asynchronous, StoreKind, Synchronous};

/// A store of counters.
///
/// A call is the list of the hits of one request; it is decided atomically: if one of its hits denies the request, only
/// hits with [`ChargeWhen::Always`](crate::ChargeWhen::Always) are charged.
///
/// A store has five kinds of operations: it *charges* calls, *peeks* at hits, *adjusts* the charges of a receipt,
/// *changes permits* that were charged, and *edits* counters.
pub trait Store: Send + Sync + 'static {
    /// The kind of the store: [`Synchronous`] or [`Asynchronous`].
    type Kind: StoreKind;

    /// Returns the store as a [`SyncStore`] if it is [synchronous](Synchronous); otherwise `None`.
    fn as_sync(&self) -> Option<&dyn SyncStore> {
        None
    }

    /// Decides one call, and charges its hits unless one of them denies it. See [`Veto`] and [`ChargeWhen`](crate::ChargeWhen).
    fn charge_async(
        &self,
        call: &[Hit<'_>],
    ) -> impl Future<Output = Result<ChargeResult, StoreError>> + Send;

    /// Decides several independent calls, one after the other. The results have the order of the calls.
    fn charge_many_async(
        &self,
        calls: &[&[Hit<'_>]],
    ) -> impl Future<Output = Result<Vec<ChargeResult>, StoreError>> + Send;

    /// Decides a call with an id as [`charge_async`](Store::charge_async) does, unless the store remembers the id from an
    /// admitted call. Remembers the call if it is admitted now. A denied call is not remembered. The call has at least one
    /// hit.
    fn charge_once_async(
        &self,
        call: &[Hit<'_>],
        identity: &CallIdentity,
    ) -> impl Future<Output = Result<OnceResult, StoreError>> + Send {
        let _ = (call, identity);
        ready(Err(StoreError::Unsupported(NO_CALL_RECORDS.to_owned())))
    }

    /// Applies a settlement, unless a settlement of the same call has been applied before.
    fn settle_async(
        &self,
        settlement: &Settlement,
    ) -> impl Future<Output = Result<SettleResult, StoreError>> + Send {
        let _ = settlement;
        ready(Err(StoreError::Unsupported(NO_CALL_RECORDS.to_owned())))
    }

    /// Returns the outcomes that [`charge_async`](Store::charge_async) would return, without charging.
    fn peek_async(
        &self,
        call: &[Hit<'_>],
    ) -> impl Future<Output = Result<Outcomes, StoreError>> + Send;

    /// Reverts the charges of a receipt without waiting for the result. A store that cannot revert them immediately keeps
    /// the receipt in a bounded queue; if the queue is full, the charges stay. By default, an asynchronous store does
    /// nothing, so that the charges stay until they have left their window.
    fn revert_later(&self, receipt: Receipt) {
        let _ = receipt;
    }

    /// Changes the charges of a receipt. Units that have left their window are not affected.
    ///
    /// The caller must not revert a receipt twice.
    fn adjust_async(
        &self,
        receipt: &Receipt,
        adjustment: Adjustment,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Releases or renews a permit: the charges of a receipt whose limits [bound requests in
    /// flight](crate::Limit::concurrent). Other charges are ignored. Returns whether the permit was live. It is live until one
    /// of its charges has been released or has expired. A permit that is not live cannot be renewed; its other charges are
    /// released then.
    fn change_permit_async(
        &self,
        permit: &Receipt,
        change: PermitChange,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        let _ = (permit, change);
        ready(Err(StoreError::Unsupported(NO_PERMITS.to_owned())))
    }

    /// Returns the identifier of the counter of a hit, as in the [receipt](Charge::counter) of its charge. Calls that
    /// [wait](crate::Gate::check_within_async) for this counter are woken when charges with this identifier are reverted. With
    /// `None`, the default, they decide again at the time that their denial has stated.
    fn counter_id(&self, hit: &Hit<'_>) -> Option<CounterId> {
        let _ = hit;
        None
    }

    /// Changes the counters of hits. The fields `veto` and `charge` of the hits are ignored, and no counter is created.
    /// Returns, for each counter, the outcome of a hit that requires one unit after the edit.
    fn edit_async(
        &self,
        hits: &[Hit<'_>],
        edit: Edit,
    ) -> impl Future<Output = Result<Outcomes, StoreError>> + Send;
}

/// The error message of a store that remembers no calls.
const NO_CALL_RECORDS: &str = "the store does not remember calls";

/// The error message of a store that does not count requests in flight.
const NO_PERMITS: &str = "the store does not count requests in flight";

/// A change of the charges of a receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adjustment {
    /// Reverts the charges.
    Revert,
    /// Changes the cost of the charges to this number of units. The difference is reverted, or it is charged now, even
    /// above max.
    SetCost(u64),
}

/// A change of a permit, which is the right to have one request in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PermitChange {
    /// Ends the permit, so that another request can get one.
    Release,
    /// Extends the permit: it expires a whole time to live from now.
    Renew,
}

/// Releases or renews a permit with `change_one`, which changes the permit of one key and returns whether it was live.
/// Returns whether the permits of all keys were live. If one of them cannot be renewed, releases the others: the request
/// has no permit any more, so none of its limits counts it.
pub(crate) fn change_permit(
    permit: &Receipt,
    change: PermitChange,
    mut change_one: impl FnMut(&Charge, PermitChange) -> bool,
) -> bool {
    let mut was_live = true;
    for charge in permit.permit_charges() {
        was_live &= change_one(charge, change);
    }
    if change == PermitChange::Renew && !was_live {
        for charge in permit.permit_charges() {
            change_one(charge, PermitChange::Release);
        }
    }
    was_live
}

/// A change of counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Subtracts the cost of each hit from its counter, oldest units first, or all units if there are fewer. Units that
    /// have left the window are not affected. Permits are not affected either; their holders release them.
    Refund,
    /// Removes the counters, so that their keys are unused again.
    Reset,
}

/// A store that responds without waiting and never fails, such as a store in memory. Every `SyncStore` is a [`Store`].
///
/// Each method does the same as the method of [`Store`] with the same name and `_async`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a synchronous store, so the methods without `_async` are not available",
    label = "this store must be awaited",
    note = "call the method of the same name with `_async`, for example `limiter.check_async(key).await?`"
)]
pub trait SyncStore: Send + Sync + 'static {
    /// Decides one call, and charges its hits unless one of them denies it.
    fn charge(&self, call: &[Hit<'_>]) -> ChargeResult;

    /// Decides a call that has only one hit, the most common kind of call.
    fn charge_one(&self, hit: &Hit<'_>) -> SingleChargeResult {
        let ChargeResult { outcomes, receipt, .. } = self.charge(std::slice::from_ref(hit));
        let charge = receipt.into_iter().next().map(SingleCharge::from);
        SingleChargeResult { outcome: outcomes[0], charge }
    }

    /// Decides a call of at most four hits in fewer instructions than [`charge`](SyncStore::charge), if the store has a way
    /// to do so. Otherwise returns `None`, and charges nothing. A call that is decided has only hits with
    /// [`Veto::Alone`], and is allowed if all of them fit.
    fn charge_few(&self, _: &[Hit<'_>]) -> Option<Box<LocalResults>> {
        None
    }

    /// Decides one call for each hit, one after the other. Calls `on_result` with the result of each call.
    fn charge_each(&self, hits: &[Hit<'_>], mut on_result: impl FnMut(SingleChargeResult))
    where
        Self: Sized,
    {
        hits.iter().for_each(|hit| on_result(self.charge_one(hit)));
    }

    /// Decides several calls one after the other. Calls `on_result` with the result of each call.
    fn charge_many(&self, calls: &[&[Hit<'_>]], on_result: impl FnMut(ChargeResult))
    where
        Self: Sized;

    /// Decides a call with an id, unless the store remembers the id from an admitted call. Remembers the call if it is
    /// admitted now; a [`CallRecordTable`] does this.
    fn charge_once(&self, call: &[Hit<'_>], identity: &CallIdentity) -> OnceResult;

    /// Applies a settlement, unless a settlement of the same call has been applied before.
    fn settle(&self, settlement: &Settlement) -> SettleResult;

    /// Returns the outcomes that [`charge`](SyncStore::charge) would return, without charging.
    fn peek(&self, call: &[Hit<'_>]) -> Outcomes;

    /// Changes the charges of a receipt.
    fn adjust(&self, receipt: &Receipt, adjustment: Adjustment);

    /// Releases or renews a permit. Returns whether it was live.
    fn change_permit(&self, permit: &Receipt, change: PermitChange) -> bool;

    /// Returns the identifier of the counter of a hit, as in the receipt of its charge. See [`Store::counter_id`], which
    /// returns the same.
    fn local_counter_id(&self, hit: &Hit<'_>) -> Option<CounterId> {
        let _ = hit;
        None
    }

    /// Changes the counters of hits. Returns, for each counter, the outcome of a hit that requires one unit after the
    /// edit.
    fn edit(&self, hits: &[Hit<'_>], edit: Edit) -> Outcomes;
}

impl<S: SyncStore> Store for S {
    type Kind = Synchronous;

    fn as_sync(&self) -> Option<&dyn SyncStore> {
        Some(self)
    }

    fn charge_async(
        &self,
        call: &[Hit<'_>],
    ) -> impl Future<Output = Result<ChargeResult, StoreError>> + Send {
        ready(Ok(self.charge(call)))
    }

    fn charge_many_async(
        &self,
        calls: &[&[Hit<'_>]],
    ) -> impl Future<Output = Result<Vec<ChargeResult>, StoreError>> + Send {
        let mut results = Vec::with_capacity(calls.len());
        self.charge_many(calls, |result| results.push(result));
        ready(Ok(results))
    }

    fn charge_once_async(
        &self,
        call: &[Hit<'_>],
        identity: &CallIdentity,
    ) -> impl Future<Output = Result<OnceResult, StoreError>> + Send {
        ready(Ok(self.charge_once(call, identity)))
    }

    fn settle_async(
        &self,
        settlement: &Settlement,
    ) -> impl Future<Output = Result<SettleResult, StoreError>> + Send {
        ready(Ok(self.settle(settlement)))
    }

    fn revert_later(&self, receipt: Receipt) {
        self.adjust(&receipt, Adjustment::Revert);
    }

    fn peek_async(
        &self,
        call: &[Hit<'_>],
    ) -> impl Future<Output = Result<Outcomes, StoreError>> + Send {
        ready(Ok(self.peek(call)))
    }

    fn adjust_async(
        &self,
        receipt: &Receipt,
        adjustment: Adjustment,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        self.adjust(receipt, adjustment);
        ready(Ok(()))
    }

    fn change_permit_async(
        &self,
        permit: &Receipt,
        change: PermitChange,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        ready(Ok(self.change_permit(permit, change)))
    }

    fn counter_id(&self, hit: &Hit<'_>) -> Option<CounterId> {
        self.local_counter_id(hit)
    }

    fn edit_async(
        &self,
        hits: &[Hit<'_>],
        edit: Edit,
    ) -> impl Future<Output = Result<Outcomes, StoreError>> + Send {
        ready(Ok(self.edit(hits, edit)))
    }
}

/// The decision of a store on one request, with the outcomes and charges of its hits.
#[derive(Clone, Debug, PartialEq)]
pub struct ChargeResult {
    /// Whether the request is allowed.
    pub allowed: bool,
    /// The outcome of each hit.
    pub outcomes: Outcomes,
    /// The charges that were made.
    pub receipt: Receipt,
}

/// The decision of a store on a request with a single hit.
#[derive(Clone, Debug, PartialEq)]
pub struct SingleChargeResult {
    /// The outcome of the hit.
    pub outcome: Outcome,
    /// The charge; `None` if the hit was not charged.
    pub charge: Option<SingleCharge>,
}

impl SingleChargeResult {
    /// Converts the result into a [`ChargeResult`], which has any number of hits. `hit` is the hit that was decided.
    #[inline(always)]
    pub fn into_charge_result(self, hit: &Hit<'_>) -> ChargeResult {
        ChargeResult {
            allowed: self.outcome.fits() || hit.veto == Veto::Never,
            outcomes: Outcomes::of_one(self.outcome),
            receipt: match self.charge {
                Some(charge) => Receipt::of_one(charge.into_charge(*hit.limit)),
                None => Receipt::default(),
            },
        }
    }
}

/// Returns whether a request is admitted: every hit with [`Veto::Alone`] fits, and at least one of the hits with
/// [`Veto::Jointly`] fits, if there are any.
#[inline]
pub fn admits(hits: &[Hit<'_>], outcomes: &[Outcome]) -> bool {
    is_admitted(hits.iter().zip(outcomes).map(|(hit, outcome)| (hit.veto, outcome.fits())))
}

/// Returns whether a request is admitted, as [`admits`] does. Each item describes one hit of the request: its veto, and
/// whether the hit fits.
#[inline]
pub fn is_admitted(hits: impl IntoIterator<Item = (Veto, bool)>) -> bool {
    let (mut has_joint, mut joint_fits) = (false, false);
    for (veto, fits) in hits {
        match veto {
            Veto::Alone if !fits => return false,
            Veto::Jointly => (has_joint, joint_fits) = (true, joint_fits | fits),
            Veto::Alone | Veto::Never => {}
        }
    }
    joint_fits || !has_joint
}

/// Returns whether a hit is charged, given the decision on the request and the outcome of the hit.
pub fn is_charged(hit: &Hit<'_>, allowed: bool, outcome: &Outcome) -> bool {
    hit.cost > 0 && has_charge(hit, allowed, outcome)
}

/// Returns whether the receipt of a call has a charge for a hit, given the decision on the call and the outcome of the
/// hit.
///
/// A hit of cost 0 has a charge without units, so that its cost can be set later.
#[inline]
pub fn has_charge(hit: &Hit<'_>, allowed: bool, outcome: &Outcome) -> bool {
    hit.charge.is_met(allowed, outcome.fits())
}

/// Returns the number of units that the earlier hits of a request charge to the counter of its next hit if the request
/// is admitted.
///
/// `is_same` receives the index of an earlier hit, and returns whether this hit has the same counter as the next hit.
#[inline]
pub fn pending_units(
    earlier: &[Hit<'_>],
    outcomes: &[Outcome],
    is_same: impl Fn(usize) -> bool,
) -> u64 {
    (earlier.iter().zip(outcomes).enumerate())
        .filter(|(nth, (hit, outcome))| is_same(*nth) && is_charged(hit, true, outcome))
        .map(|(_, (hit, _))| hit.cost)
        .fold(0, u64::saturating_add)
}

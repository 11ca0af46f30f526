//! Stores, which hold the counters of limits, and the parts for a store of your own.
//!
//! A program needs only a [`MemoryStore`], or a store of the crates `slidegate-redis` and `slidegate-cluster`. The
//! other items are for authors of stores.
//!
//! # Contents
//!
//! | group | items |
//! |---|---|
//! | traits | [`Store`], whose calls may wait and fail; [`SyncStore`], whose calls do neither, and which also is a [`Store`]; [`StoreKind`], which is [`Synchronous`] or [`Asynchronous`] |
//! | a call | a list of [`Hit`]s, each with a [`Key`] (a [`Scope`] with [`Value`]s), a [`Veto`] and a [`ChargeWhen`], which can be a [`Block`] |
//! | changes | [`Adjustment`] of a receipt, [`Edit`] of counters, [`PermitChange`] |
//! | results | [`ChargeResult`], with an [`Outcome`] for each hit and a [`Receipt`] of each [`Charge`], whose counter has a [`CounterId`]; [`StoreError`] |
//! | decision of a call | [`pending_units`], [`admits`], [`has_charge`] and [`outcome_of_charge`] |
//! | calls that are remembered | [`CallIdentity`], [`ChargeOnceResult`], [`CallSettlement`], [`SettleResult`]; [`CallRecordTable`] remembers calls in memory |
//! | parts of stores in memory | [`table`], [`shards`], [`HeapSize`], [`KeyGroup`], [`OneOrMany`] |
//! | options | [`RedisOptions`] and [`ClusterOptions`] of a rule; [`OnStoreError`], [`LocalCountsOptions`] for an outage |
//!
//! # Write a store
//!
//! [`examples/store.rs`](https://github.com/slidegate/slidegate/blob/main/examples/store.rs) is a complete store in 150
//! lines.
//!
//! 1. Implement [`Store`] if calls may wait or fail, with the kind [`Asynchronous`]. Implement [`SyncStore`] if they
//!    never do.
//! 2. Identify the counter of a hit by its [`Hit::counter_id`], or by a [fingerprint](Key::fingerprint) of the key. The
//!    receipt contains this identifier.
//! 3. Count with the [`Counter`](crate::algorithm::Counter) that [`Limit::additive`](crate::Limit::additive) returns
//!    for `sliding_buckets`, `sliding_counter` and `fixed_window`, so that the outcomes are the same in every store. For
//!    a `sliding_window`, it returns buckets of window / resolution, with which a store counts as a cluster does, but
//!    not as the memory store. The other algorithms have no public counter. The time of a counter is the time of the
//!    clock plus the [phase](crate::Limit::phase_us) of the key, which is 0 except for `fixed_window`. A store that
//!    counts in another language gets the numbers of all algorithms from [`Limit::params`](crate::Limit::params).
//! 4. Decide a call in one atomic step: peek at each hit, with the [pending units](pending_units) of the hits before it
//!    in addition to its own; determine whether the hits [admit](admits) the call; then charge the hits that [have a
//!    charge](has_charge). The outcome of a charged hit is [`outcome_of_charge`]. The receipt has no charge of a hit
//!    that [blocks](Block) its key. Get states from [`Counter::state_at`](crate::algorithm::Counter::state_at), because
//!    a clock may step back.
//! 5. Return an error from [`Store::supports`] for limits that the store cannot count, and [`StoreError::Unsupported`]
//!    for calls with such limits. All other errors mean that the store could not decide; a denial is not an error.
//! 6. Remove counters that have expired, so that clients cannot fill the memory. Keep them for at least
//!    [`MAX_BACKWARD_STEP`](crate::testkit::conformance::MAX_BACKWARD_STEP) longer, because a clock may be set back.
//!
//! The methods for calls with an id and for permits have defaults in [`Store`], with which these calls fail as
//! unsupported.
//!
//! # Test a store
//!
//! With the feature `testkit`, run [`run_trace`](crate::testkit::conformance::run_trace) and
//! [`run_trace_with_clock_steps`](crate::testkit::conformance::run_trace_with_clock_steps) with the algorithms that the
//! store supports, and [`all_properties_hold`](crate::testkit::properties::all_properties_hold), all with many seeds.
//! They need a store that reads a [`ManualClock`](crate::ManualClock).

mod call_records;
mod charge_result;
mod error;
mod key_counts;
pub mod memory;
mod one_or_many;
mod settlement;
pub mod shards;
mod store_kind;
pub mod table;

use std::future::{Future, ready};
use std::sync::Arc;

use crate::limit::Limit;

#[doc(inline)]
pub use crate::algorithm::LimitParams;
pub use crate::call::{CallId, CallIdentity, DEFAULT_CALL_TTL, MAX_CALL_TTL};
pub use crate::cluster_options::{ClusterOptions, ClusterOptionsError, OnPartition};
pub use crate::fallback::LocalCountsOptions;
pub use crate::hit::{Block, ChargeWhen, Hit, Veto};
pub use crate::key::{
    CounterId, Key, KeyGroup, MAX_VALUE_BYTES, Scope, ShortenedValue, Value, write_name_value_pairs,
};
pub use crate::layout::{HeapSize, allocator_block_bytes};
pub use crate::on_store_error::OnStoreError;
pub use crate::outcome::Outcome;
pub use crate::redis_options::{RedisOptions, RedisOptionsError};
#[cfg(feature = "tokio")]
pub use crate::restart::{TASK_RESTART_DELAY, restart_on_panic};
pub use call_records::{
    CallRecordTable, DEFAULT_MAX_CALL_RECORDS, digest_hits, max_call_record_bytes,
};
pub use charge_result::{
    Charge, ChargeResult, Outcomes, Receipt, admits, has_charge, is_admitted, outcome_of_charge,
    pending_units,
};
pub use error::{RejectionClass, StoreError};
#[doc(inline)]
pub use memory::MemoryStore;
pub use one_or_many::OneOrMany;
pub use settlement::{CallSettlement, ChargeOnceResult, SettleResult};
pub(crate) use store_kind::block_on_sync_store;
pub(crate) use store_kind::poll_once;
pub use store_kind::{Asynchronous, StoreKind, Synchronous};

/// A store of counters.
///
/// A call is the list of the hits of one request; it is decided atomically: if one of its hits denies the request, only
/// hits with [`ChargeWhen::Always`] or [`ChargeWhen::Block`] are charged.
///
/// A store has five kinds of operations: it *charges* calls, *peeks* at hits, *adjusts* the charges of a receipt,
/// *changes permits* that were charged, and *edits* counters.
pub trait Store: Send + Sync + 'static {
    /// The kind of the store: [`Synchronous`] or [`Asynchronous`].
    type Kind: StoreKind;

    /// Checks whether the store can count a limit. By default, it can count every limit. Calls with a limit that it
    /// cannot count return [`StoreError::Unsupported`].
    ///
    /// # Errors
    /// The reason why the store cannot count the limit, and an alternative.
    fn supports(&self, limit: &Limit) -> Result<(), String> {
        let _ = limit;
        Ok(())
    }

    /// Decides one call, and charges its hits unless one of them denies it. See [`Veto`] and [`ChargeWhen`].
    fn charge_async(
        &self,
        call: &[Hit<'_>],
    ) -> impl Future<Output = Result<ChargeResult, StoreError>> + Send;

    /// Decides several independent calls, one after the other. The results have the order of the calls. By default, if
    /// a call fails, the charges of the calls before it are reverted, and the other calls are not made. A store that
    /// can charge several calls in one round trip overrides this method.
    fn charge_many_async(
        &self,
        calls: &[&[Hit<'_>]],
    ) -> impl Future<Output = Result<Vec<ChargeResult>, StoreError>> + Send {
        charge_one_by_one(self, calls)
    }

    /// Decides a call with an id as [`charge_async`](Store::charge_async) does, unless the store remembers the id from
    /// an admitted call. Remembers the call if it is admitted now. A denied call is not remembered. The call has at
    /// least one hit.
    fn charge_once_async(
        &self,
        call: &[Hit<'_>],
        identity: &CallIdentity,
    ) -> impl Future<Output = Result<ChargeOnceResult, StoreError>> + Send {
        let _ = (call, identity);
        ready(Err(StoreError::Unsupported(CALL_RECORDS_UNSUPPORTED.to_owned())))
    }

    /// Applies a settlement, unless a settlement of the same call has been applied before.
    fn settle_async(
        &self,
        settlement: &CallSettlement,
    ) -> impl Future<Output = Result<SettleResult, StoreError>> + Send {
        let _ = settlement;
        ready(Err(StoreError::Unsupported(CALL_RECORDS_UNSUPPORTED.to_owned())))
    }

    /// Returns the outcomes that [`charge_async`](Store::charge_async) would return, without charging.
    fn peek_async(
        &self,
        call: &[Hit<'_>],
    ) -> impl Future<Output = Result<Outcomes, StoreError>> + Send;

    /// Reverts the charges of a receipt without waiting for the result. A store that cannot revert them immediately
    /// keeps the receipt in a bounded queue; if the queue is full, the charges stay. By default, an asynchronous store
    /// does nothing, so that the charges stay until they have left their window.
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
    /// flight](crate::Limit::concurrent). Other charges are ignored. Returns whether the permit was live. It is live
    /// until one of its charges has been released or has expired. A permit that is not live cannot be renewed: the
    /// attempt releases its other charges.
    fn change_permit_async(
        &self,
        permit: &Receipt,
        change: PermitChange,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        let _ = (permit, change);
        ready(Err(StoreError::Unsupported(PERMITS_UNSUPPORTED.to_owned())))
    }

    /// Returns the identifier of the counter of a hit, as in the [receipt](Charge::counter) of its charge. Calls that
    /// [wait](crate::wait) for this counter are woken when charges with this identifier are reverted. With `None`, the
    /// default, the waiting calls are not woken, and decide again at the time that their denial has stated.
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

/// Decides several calls, one after the other. If a call fails, reverts the charges of the calls before it.
async fn charge_one_by_one<S: Store + ?Sized>(
    store: &S,
    calls: &[&[Hit<'_>]],
) -> Result<Vec<ChargeResult>, StoreError> {
    let mut results: Vec<ChargeResult> = Vec::with_capacity(calls.len());
    for call in calls {
        match store.charge_async(call).await {
            Ok(result) => results.push(result),
            Err(error) => {
                for result in &results {
                    // If the revert fails too, the charges stay until they have left their window.
                    let _ = store.adjust_async(&result.receipt, Adjustment::Revert).await;
                }
                return Err(error);
            }
        }
    }
    Ok(results)
}

/// The error message of a store that remembers no calls.
const CALL_RECORDS_UNSUPPORTED: &str = "the store does not remember calls";

/// The error message of a store that does not count requests in flight.
const PERMITS_UNSUPPORTED: &str = "the store does not count requests in flight";

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
/// Returns whether the permits of all keys were live. If one of them cannot be renewed, releases the others: the
/// request has no permit any more, so none of its limits counts it.
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

/// A store that responds without waiting and never fails, such as a store in memory. Every `SyncStore` is a [`Store`],
/// and counts every limit. For a store that counts only some limits, implement [`Store`].
///
/// Each method does the same as the method of [`Store`] with the same name and `_async`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a synchronous store, so the methods without `_async` are not available",
    label = "this store must be awaited",
    note = "call the method of the same name with `_async`, for example `limiter.check_async(key).await`"
)]
pub trait SyncStore: Send + Sync + 'static {
    /// Decides one call, and charges its hits unless one of them denies it.
    fn charge(&self, call: &[Hit<'_>]) -> ChargeResult;

    /// Decides several independent calls, one after the other. The results have the order of the calls.
    fn charge_many(&self, calls: &[&[Hit<'_>]]) -> Vec<ChargeResult> {
        calls.iter().map(|call| self.charge(call)).collect()
    }

    /// Decides a call with an id, unless the store remembers the id from an admitted call. Remembers the call if it is
    /// admitted now; a [`CallRecordTable`] does this.
    fn charge_once(&self, call: &[Hit<'_>], identity: &CallIdentity) -> ChargeOnceResult;

    /// Applies a settlement, unless a settlement of the same call has been applied before.
    fn settle(&self, settlement: &CallSettlement) -> SettleResult;

    /// Returns the outcomes that [`charge`](SyncStore::charge) would return, without charging.
    fn peek(&self, call: &[Hit<'_>]) -> Outcomes;

    /// Changes the charges of a receipt.
    fn adjust(&self, receipt: &Receipt, adjustment: Adjustment);

    /// Releases or renews a permit. Returns whether it was live.
    fn change_permit(&self, permit: &Receipt, change: PermitChange) -> bool;

    /// Returns the identifier of the counter of a hit, as in the receipt of its charge. See [`Store::counter_id`],
    /// which returns the same.
    fn local_counter_id(&self, hit: &Hit<'_>) -> Option<CounterId> {
        let _ = hit;
        None
    }

    /// Changes the counters of hits. Returns, for each counter, the outcome of a hit that requires one unit after the
    /// edit.
    fn edit(&self, hits: &[Hit<'_>], edit: Edit) -> Outcomes;
}

/// A store that several limiters and gates share.
impl<S: SyncStore + ?Sized> SyncStore for Arc<S> {
    fn charge(&self, call: &[Hit<'_>]) -> ChargeResult {
        (**self).charge(call)
    }

    fn charge_many(&self, calls: &[&[Hit<'_>]]) -> Vec<ChargeResult> {
        (**self).charge_many(calls)
    }

    fn charge_once(&self, call: &[Hit<'_>], identity: &CallIdentity) -> ChargeOnceResult {
        (**self).charge_once(call, identity)
    }

    fn settle(&self, settlement: &CallSettlement) -> SettleResult {
        (**self).settle(settlement)
    }

    fn peek(&self, call: &[Hit<'_>]) -> Outcomes {
        (**self).peek(call)
    }

    fn adjust(&self, receipt: &Receipt, adjustment: Adjustment) {
        (**self).adjust(receipt, adjustment);
    }

    fn change_permit(&self, permit: &Receipt, change: PermitChange) -> bool {
        (**self).change_permit(permit, change)
    }

    fn local_counter_id(&self, hit: &Hit<'_>) -> Option<CounterId> {
        (**self).local_counter_id(hit)
    }

    fn edit(&self, hits: &[Hit<'_>], edit: Edit) -> Outcomes {
        (**self).edit(hits, edit)
    }
}

impl<S: SyncStore> Store for S {
    type Kind = Synchronous;

    async fn charge_async(&self, call: &[Hit<'_>]) -> Result<ChargeResult, StoreError> {
        Ok(self.charge(call))
    }

    async fn charge_many_async(
        &self,
        calls: &[&[Hit<'_>]],
    ) -> Result<Vec<ChargeResult>, StoreError> {
        Ok(self.charge_many(calls))
    }

    async fn charge_once_async(
        &self,
        call: &[Hit<'_>],
        identity: &CallIdentity,
    ) -> Result<ChargeOnceResult, StoreError> {
        Ok(self.charge_once(call, identity))
    }

    async fn settle_async(&self, settlement: &CallSettlement) -> Result<SettleResult, StoreError> {
        Ok(self.settle(settlement))
    }

    fn revert_later(&self, receipt: Receipt) {
        self.adjust(&receipt, Adjustment::Revert);
    }

    async fn peek_async(&self, call: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        Ok(self.peek(call))
    }

    async fn adjust_async(
        &self,
        receipt: &Receipt,
        adjustment: Adjustment,
    ) -> Result<(), StoreError> {
        self.adjust(receipt, adjustment);
        Ok(())
    }

    async fn change_permit_async(
        &self,
        permit: &Receipt,
        change: PermitChange,
    ) -> Result<bool, StoreError> {
        Ok(self.change_permit(permit, change))
    }

    fn counter_id(&self, hit: &Hit<'_>) -> Option<CounterId> {
        self.local_counter_id(hit)
    }

    async fn edit_async(&self, hits: &[Hit<'_>], edit: Edit) -> Result<Outcomes, StoreError> {
        Ok(self.edit(hits, edit))
    }
}

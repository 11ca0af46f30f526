//! The store interface: the traits, results, receipts and errors that all stores share.
//!
//! A [`Store`] may wait and may fail. A [`SyncStore`] does neither, and every `SyncStore` is a [`Store`]. [`StoreKind`]
//! makes the difference known to the compiler. A store returns an error only if it could not decide; a denial is not an
//! error.
//!
//! To add a store, implement one of the traits, and run the conformance suite and the properties of `testkit` on it. A
//! store must return [`StoreError::Unsupported`] for limits that it cannot count.

pub mod memory;
mod store_kind;
pub mod table;

use std::future::{Future, ready};

use smallvec::SmallVec;
use thiserror::Error;

use crate::clock::Timestamp;
use crate::hit::{ChargeWhen, Hit, Veto};
use crate::limit::Limit;
use crate::outcome::Outcome;

pub use store_kind::{Asynchronous, StoreKind, Synchronous};

/// The outcomes of hits, in the order of the hits.
pub type Outcomes = SmallVec<[Outcome; 2]>;

/// A store of counters, which charges the hits of requests.
///
/// The hits of one call are decided atomically: if one of them denies the request, only hits with
/// [`ChargeWhen::Always`] are charged.
pub trait Store: Send + Sync + 'static {
    /// The kind of the store: [`Synchronous`] or [`Asynchronous`].
    type Kind: StoreKind;

    /// Returns the store as a [`SyncStore`] if it is [synchronous](Synchronous); otherwise `None`.
    fn as_sync(&self) -> Option<&dyn SyncStore> {
        None
    }

    /// Decides one request, and charges its hits unless one of them denies it. See [`Veto`] and [`ChargeWhen`].
    fn take(
        &self,
        hits: &[Hit<'_>],
    ) -> impl Future<Output = Result<ChargeResult, StoreError>> + Send;

    /// Decides several independent requests in one call, one after the other. The results have the order of the
    /// requests.
    fn take_many(
        &self,
        requests: &[&[Hit<'_>]],
    ) -> impl Future<Output = Result<Vec<ChargeResult>, StoreError>> + Send;

    /// Returns the outcomes that [`take`](Store::take) would return, without charging.
    fn peek(&self, hits: &[Hit<'_>]) -> impl Future<Output = Result<Outcomes, StoreError>> + Send;

    /// Reverts the charges of a receipt. Units that have left their window are not affected.
    ///
    /// The caller must not revert a receipt twice.
    fn revert(&self, receipt: &Receipt) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Subtracts the cost of each hit from its counter, oldest units first, or all units if there are fewer. The fields
    /// `veto` and `charge` of the hits are ignored. Units that have left the window are not affected, and no counter is
    /// created.
    ///
    /// Returns, for each counter, the outcome of a hit that requires one unit after the refund.
    fn refund(&self, hits: &[Hit<'_>])
    -> impl Future<Output = Result<Outcomes, StoreError>> + Send;

    /// Removes the counters of these hits, so that their keys are unused again.
    fn reset(&self, hits: &[Hit<'_>]) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// A store that responds without waiting and never fails, such as a store in memory. Every `SyncStore` is a [`Store`].
pub trait SyncStore: Send + Sync + 'static {
    /// Decides one request; the synchronous version of [`Store::take`].
    fn take_now(&self, hits: &[Hit<'_>]) -> ChargeResult;

    /// Decides a request that has only one hit, the most common kind of request, as [`take_now`](Self::take_now) does.
    fn take_one_now(&self, hit: &Hit<'_>) -> SingleChargeResult {
        let ChargeResult { outcomes, mut receipt, .. } = self.take_now(std::slice::from_ref(hit));
        SingleChargeResult { outcome: outcomes[0], charge: receipt.charges.pop() }
    }

    /// Decides one request for each hit in `hits`, one after the other. Calls `on_result` with the result of each
    /// request.
    fn take_each_now(&self, hits: &[Hit<'_>], mut on_result: impl FnMut(SingleChargeResult))
    where
        Self: Sized,
    {
        hits.iter().for_each(|hit| on_result(self.take_one_now(hit)));
    }

    /// Decides several requests one after the other, and calls `on_result` with each result; the synchronous version of
    /// [`Store::take_many`].
    fn take_many_now(&self, requests: &[&[Hit<'_>]], on_result: impl FnMut(ChargeResult))
    where
        Self: Sized;

    /// Returns the outcomes of hits without charging them; the synchronous version of [`Store::peek`].
    fn peek_now(&self, hits: &[Hit<'_>]) -> Outcomes;

    /// Reverts the charges of a receipt; the synchronous version of [`Store::revert`].
    fn revert_now(&self, receipt: &Receipt);

    /// Subtracts the costs of hits from their counters; the synchronous version of [`Store::refund`].
    fn refund_now(&self, hits: &[Hit<'_>]) -> Outcomes;

    /// Removes the counters of hits; the synchronous version of [`Store::reset`].
    fn reset_now(&self, hits: &[Hit<'_>]);
}

impl<S: SyncStore> Store for S {
    type Kind = Synchronous;

    fn as_sync(&self) -> Option<&dyn SyncStore> {
        Some(self)
    }

    fn take(
        &self,
        hits: &[Hit<'_>],
    ) -> impl Future<Output = Result<ChargeResult, StoreError>> + Send {
        ready(Ok(self.take_now(hits)))
    }

    fn take_many(
        &self,
        requests: &[&[Hit<'_>]],
    ) -> impl Future<Output = Result<Vec<ChargeResult>, StoreError>> + Send {
        let mut results = Vec::with_capacity(requests.len());
        self.take_many_now(requests, |result| results.push(result));
        ready(Ok(results))
    }

    fn peek(&self, hits: &[Hit<'_>]) -> impl Future<Output = Result<Outcomes, StoreError>> + Send {
        ready(Ok(self.peek_now(hits)))
    }

    fn revert(&self, receipt: &Receipt) -> impl Future<Output = Result<(), StoreError>> + Send {
        self.revert_now(receipt);
        ready(Ok(()))
    }

    fn refund(
        &self,
        hits: &[Hit<'_>],
    ) -> impl Future<Output = Result<Outcomes, StoreError>> + Send {
        ready(Ok(self.refund_now(hits)))
    }

    fn reset(&self, hits: &[Hit<'_>]) -> impl Future<Output = Result<(), StoreError>> + Send {
        self.reset_now(hits);
        ready(Ok(()))
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
    pub charge: Option<Charge>,
}

impl SingleChargeResult {
    /// Converts the result into a [`ChargeResult`], which has any number of hits.
    #[inline(always)]
    pub(crate) fn into_charge_result(self, hit: &Hit<'_>) -> ChargeResult {
        ChargeResult {
            allowed: self.outcome.fits() || hit.veto == Veto::Never,
            outcomes: Outcomes::from_buf_and_len([self.outcome; 2], 1),
            receipt: Receipt {
                charges: self
                    .charge
                    .map_or_else(SmallVec::new, |charge| SmallVec::from_buf([charge])),
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
    hit.cost > 0
        && match hit.charge {
            ChargeWhen::IfAdmitted => allowed,
            ChargeWhen::IfAdmittedAndFits => allowed && outcome.fits(),
            ChargeWhen::Always => true,
        }
}

/// Returns the number of units that the earlier hits of a request charge to the counter of its next hit if the request
/// is admitted. `is_same` receives the index of an earlier hit, and returns whether this hit has the same counter as
/// the next hit.
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

/// A record of charges, sufficient to revert them. Valid only for the store that created it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Receipt {
    /// The charges, one for each charged hit.
    pub charges: SmallVec<[Charge; 1]>,
}

impl Receipt {
    /// Returns whether the receipt has no charges.
    pub fn is_empty(&self) -> bool {
        self.charges.is_empty()
    }

    /// Returns the cost of the first charge, in units. All charges have the same cost, unless the store charges one
    /// request for several requests (sampling).
    pub(crate) fn cost_of_first_charge(&self) -> u64 {
        self.charges.first().map_or(0, |charge| charge.cost)
    }

    /// Returns a receipt for the fraction `units / total` of each charge. With it, a part of the charges can be
    /// reverted if a request has cost less than it was charged.
    ///
    /// ```
    /// let limiter = slidegate::Limiter::new(["100/min"])?;
    /// let verdict = limiter.check_cost("acme", 80);                       // the estimated cost
    /// limiter.revert(&verdict.decision().receipt().fraction(50, 80));  // the actual cost is 30
    /// assert_eq!(limiter.peek("acme", 1).decision().remaining(), 70);
    /// # Ok::<(), slidegate::LimiterError>(())
    /// ```
    pub fn fraction(&self, units: u64, total: u64) -> Self {
        let (units, divisor) = (u128::from(units.min(total)), u128::from(total.max(1)));
        let part = |cost: u64| u128::from(cost) * units / divisor;
        let charges = self.charges.iter().map(|charge| Charge {
            // A store may have charged for several requests at once, and thus a multiple of the cost.
            cost: u64::try_from(part(charge.cost)).unwrap_or(charge.cost),
            ..charge.clone()
        });
        Self { charges: charges.collect() }
    }
}

/// The charge of one hit.
#[derive(Clone, Debug, PartialEq)]
pub struct Charge {
    /// The identifier by which the store finds the charged counter.
    pub counter: CounterId,
    /// The limit of the counter.
    pub limit: Limit,
    /// The time at which the charge is counted. Includes the phase of the key: an offset that is added to the time of
    /// the store's clock so that the windows of different keys begin at different times.
    pub charged_at: Timestamp,
    /// The charged units.
    pub cost: u64,
}

/// A store's identifier of a counter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CounterId {
    /// A 64-bit fingerprint of the key and the limit.
    Fingerprint(u64),
    /// The name of the counter as text.
    Text(Box<str>),
}

/// A failure of a store. A denial is not an error.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The store cannot be reached. Nothing was charged.
    #[error("the store cannot be reached: {0}")]
    Unavailable(String),
    /// The store did not respond in time. The charge may or may not have been made, so the call must not be repeated.
    #[error("the store did not respond in time: {0}")]
    TimedOut(String),
    /// The circuit breaker is open after repeated failures, so the store was not called. Nothing was charged.
    #[error("circuit breaker open after repeated store failures")]
    BreakerOpen,
    /// The store does not support the limit, for the given reason. Nothing was charged, and a retry fails again. The
    /// limits of a policy can be checked in advance: see [`Policy::from_yaml_for`](crate::Policy::from_yaml_for).
    #[error("the store does not support this limit: {0}")]
    Unsupported(String),
}

//! Where counts live: the traits, the receipt, the error.

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

/// One outcome for each hit, in their order.
pub type Outcomes = SmallVec<[Outcome; 2]>;

/// A place where counts live.
///
/// The hits of one call are one step: if one denies the request, only those that are [always](ChargeWhen::Always)
/// charged are.
pub trait Store: Send + Sync + 'static {
    /// How it answers.
    type Kind: StoreKind;

    /// Itself, if it answers [at once](Synchronous).
    fn as_sync(&self) -> Option<&dyn SyncStore> {
        None
    }

    /// Charges the hits of one request, if none of them denies it. See [`Veto`] and [`ChargeWhen`].
    fn take(
        &self,
        hits: &[Hit<'_>],
    ) -> impl Future<Output = Result<ChargeResult, StoreError>> + Send;

    /// Takes several independent requests at once, in their order.
    fn take_many(
        &self,
        asks: &[&[Hit<'_>]],
    ) -> impl Future<Output = Result<Vec<ChargeResult>, StoreError>> + Send;

    /// What [`take`](Store::take) would find. Charges nothing.
    fn peek(&self, hits: &[Hit<'_>]) -> impl Future<Output = Result<Outcomes, StoreError>> + Send;

    /// Gives back exactly what a receipt says was charged, and nothing of what has left its window.
    ///
    /// To give the same receipt back twice is the caller's mistake.
    fn revert(&self, receipt: &Receipt) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Takes each hit's cost off its counter, whatever its veto and charge: of the units that still count the oldest, or
    /// all if there are fewer. What has left the window is not given back, and no counter comes to be.
    ///
    /// Says how each counter then stands, asked for one unit.
    fn refund(&self, hits: &[Hit<'_>])
    -> impl Future<Output = Result<Outcomes, StoreError>> + Send;

    /// Forgets the counts of these hits' keys and limits.
    fn reset(&self, hits: &[Hit<'_>]) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// A store that answers without waiting, and never fails. Every local store is a [`Store`].
pub trait SyncStore: Send + Sync + 'static {
    /// See [`Store::take`].
    fn take_now(&self, hits: &[Hit<'_>]) -> ChargeResult;

    /// [`take_now`](Self::take_now) for one hit, which is the commonest request.
    fn take_one_now(&self, hit: &Hit<'_>) -> SingleChargeResult {
        let ChargeResult { outcomes, mut receipt, .. } = self.take_now(std::slice::from_ref(hit));
        SingleChargeResult { outcome: outcomes[0], charge: receipt.charges.pop() }
    }

    /// Takes several requests of one hit each, in their order; hands over one answer for each.
    fn take_each_now(&self, hits: &[Hit<'_>], mut answer: impl FnMut(SingleChargeResult))
    where
        Self: Sized,
    {
        hits.iter().for_each(|hit| answer(self.take_one_now(hit)));
    }

    /// See [`Store::take_many`]; hands over one answer for each request, in their order.
    fn take_many_now(&self, asks: &[&[Hit<'_>]], answer: impl FnMut(ChargeResult))
    where
        Self: Sized;

    /// See [`Store::peek`].
    fn peek_now(&self, hits: &[Hit<'_>]) -> Outcomes;

    /// See [`Store::revert`].
    fn revert_now(&self, receipt: &Receipt);

    /// See [`Store::refund`].
    fn refund_now(&self, hits: &[Hit<'_>]) -> Outcomes;

    /// See [`Store::reset`].
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
        asks: &[&[Hit<'_>]],
    ) -> impl Future<Output = Result<Vec<ChargeResult>, StoreError>> + Send {
        let mut taken = Vec::with_capacity(asks.len());
        self.take_many_now(asks, |answer| taken.push(answer));
        ready(Ok(taken))
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

/// What a store did with the hits of one request.
#[derive(Clone, Debug, PartialEq)]
pub struct ChargeResult {
    /// Whether no hit denies the request.
    pub allowed: bool,
    /// One for each hit.
    pub outcomes: Outcomes,
    /// What was charged.
    pub receipt: Receipt,
}

/// What a store did with a single hit.
#[derive(Clone, Debug, PartialEq)]
pub struct SingleChargeResult {
    /// How it stands.
    pub outcome: Outcome,
    /// What was charged.
    pub charge: Option<Charge>,
}

impl SingleChargeResult {
    /// The same as the answer to a request.
    #[inline(always)]
    pub(crate) fn into_taken(self, hit: &Hit<'_>) -> ChargeResult {
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

/// Returns whether a request passes: every hit that [denies alone](Veto::Alone) fits, and one of the
/// [joint](Veto::Jointly) ones if there are any.
#[inline]
pub fn admits(hits: &[Hit<'_>], outcomes: &[Outcome]) -> bool {
    is_admitted(hits.iter().zip(outcomes).map(|(hit, outcome)| (hit.veto, outcome.fits())))
}

/// Returns whether a request passes whose hits have these vetoes, and fit or do not.
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

/// Whether a hit is charged, once it is known whether the request passes and how the hit fares.
pub fn is_charged(hit: &Hit<'_>, allowed: bool, outcome: &Outcome) -> bool {
    hit.cost > 0
        && match hit.charge {
            ChargeWhen::IfAdmitted => allowed,
            ChargeWhen::IfAdmittedAndFits => allowed && outcome.fits(),
            ChargeWhen::Always => true,
        }
}

/// Returns the units that the earlier hits of a request charge to the counter of the next one if the request passes.
/// `is_same` says whether the hit of that place is on the same counter.
#[inline]
pub fn pending(earlier: &[Hit<'_>], outcomes: &[Outcome], is_same: impl Fn(usize) -> bool) -> u64 {
    (earlier.iter().zip(outcomes).enumerate())
        .filter(|(nth, (hit, outcome))| is_same(*nth) && is_charged(hit, true, outcome))
        .map(|(_, (hit, _))| hit.cost)
        .fold(0, u64::saturating_add)
}

/// What a store charged and when, enough to give exactly that back. Good only at the store that made it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Receipt {
    /// One for each hit that was charged.
    pub charges: SmallVec<[Charge; 1]>,
}

impl Receipt {
    /// Whether nothing was charged.
    pub fn is_empty(&self) -> bool {
        self.charges.is_empty()
    }

    /// Units of the first charge, of which each has the same where no store charges for others, too.
    pub(crate) fn first_cost(&self) -> u64 {
        self.charges.first().map_or(0, |charge| charge.cost)
    }

    /// A receipt for `units` of the `of` units of each charge: what is given back of a request that has cost less
    /// than it was charged.
    ///
    /// ```
    /// let limiter = slidegate::Limiter::new(["100/min"])?;
    /// let verdict = limiter.check_cost("acme", 80);                   // what it may cost at most
    /// limiter.revert(&verdict.decision().receipt().part(50, 80));  // it has cost 30
    /// assert_eq!(limiter.peek("acme", 1).decision().remaining(), 70);
    /// # Ok::<(), slidegate::LimiterError>(())
    /// ```
    pub fn part(&self, units: u64, of: u64) -> Self {
        let part = |cost: u64| u128::from(cost) * u128::from(units.min(of)) / u128::from(of.max(1));
        let charges = self.charges.iter().map(|charge| Charge {
            // A store may have charged for several requests at once, so many times as much.
            cost: u64::try_from(part(charge.cost)).unwrap_or(charge.cost),
            ..charge.clone()
        });
        Self { charges: charges.collect() }
    }
}

/// One hit that was charged.
#[derive(Clone, Debug, PartialEq)]
pub struct Charge {
    /// The counter, in the store's own words.
    pub counter: CounterId,
    /// The limit that it counts for.
    pub limit: Limit,
    /// The moment at which the charge is counted, on the counter's own clock.
    pub charged_at: Timestamp,
    /// Units charged.
    pub cost: u64,
}

/// How a store names the counter of a key and a limit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CounterId {
    /// By a fingerprint.
    Fingerprint(u64),
    /// By its text.
    Text(Box<str>),
}

/// Why a store did not answer. Never a denial.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The store was not reached: nothing was charged.
    #[error("the store cannot be reached: {0}")]
    Unavailable(String),
    /// No answer came in time: the charge may or may not have been made, so nothing may repeat it.
    #[error("the store did not answer in time: {0}")]
    TimedOut(String),
    /// It failed too often of late, so a circuit breaker is open and it was not asked: nothing was charged.
    #[error("the store is not asked: it has failed too often of late")]
    BreakerOpen,
    /// It has no way to count by a limit, and says why: nothing was charged, and to ask again changes nothing. Limits of
    /// a policy can be tried before: see [`Policy::from_yaml_for`](crate::Policy::from_yaml_for).
    #[error("the store cannot count by this limit: {0}")]
    Unsupported(String),
}

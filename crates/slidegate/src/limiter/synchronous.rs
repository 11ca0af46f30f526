//! Methods of a limiter for stores that respond without waiting and never fail. Each polls the asynchronous operation
//! once.

use std::hash::Hash;

use super::decide::{Operation, StoreAndMemoryKey};
use super::{Check, Limiter};
use crate::decision::Decision;
use crate::hit::Hit;
use crate::store::{Adjustment, Edit, SyncStore, block_on_sync_store, poll_once};

/// Synchronous methods, for a store that responds without waiting and never fails. The bound `S: SyncStore` is on each
/// method, not on the `impl`, so that the compiler's message for another store names the method with `_async`.
impl<S> Limiter<S> {
    /// Decides a call, and charges its cost if every limit has capacity for it. Blocks the current thread until then,
    /// if the call has a [maximum wait](Check::max_wait). The call is a key, which costs one unit, or a [`Check`].
    #[inline]
    pub fn check<'k, K: Hash + ?Sized + 'k>(&self, call: impl Into<Check<'k, K>>) -> Decision<'_>
    where
        S: SyncStore,
    {
        let call: Check<'k, K> = call.into();
        if !call.max_wait.is_zero() {
            return self.check_after_wait(call);
        }
        let key = self.hash_key(call.key);
        // A single hit is in an array and not in a `HitList`, because the compiler would move the whole list, which is
        // large.
        let (hit, list);
        let hits: &[Hit<'_>] = match &*self.limits {
            [limit] => {
                hit = [self.new_hit(key, limit, call.cost)];
                &hit
            }
            _ => {
                list = self.hits(&self.limits, key, call.cost);
                &list
            }
        };
        Decision::from_charge(hits, self.store.charge(hits), self.decision_limits())
    }

    /// Returns the decision that [`check`](Self::check) would make now. Charges nothing.
    pub fn peek<'k, K: Hash + ?Sized + 'k>(&self, call: impl Into<Check<'k, K>>) -> Decision<'_>
    where
        S: SyncStore,
    {
        let Check { key, cost, .. } = call.into();
        poll_once(self.decide(Operation::Peek, self.sync_store_key(key), cost))
    }

    /// Decides one request for each key, in order and independently of each other. Faster than separate calls of
    /// [`check`](Self::check).
    ///
    /// ```
    /// let limiter = slidegate::Limiter::new(["1/min"])?;
    /// let decisions = limiter.check_many(&["a", "b", "a"]);
    /// let allowed: Vec<bool> = decisions.iter().map(|decision| decision.is_allowed()).collect();
    /// assert_eq!(allowed, [true, true, false]);
    /// # Ok::<(), slidegate::LimiterError>(())
    /// ```
    pub fn check_many<K: Hash>(&self, keys: &[K]) -> Vec<Decision<'_>>
    where
        S: SyncStore,
    {
        let keys: Vec<StoreAndMemoryKey<'_>> =
            keys.iter().map(|key| self.sync_store_key(key)).collect();
        poll_once(self.decide_many(&keys))
    }

    /// Records units of `key` that have been consumed already. A report is never denied: units are charged even above
    /// max, and the key is then denied until enough units have left the window.
    ///
    /// ```
    /// let limiter = slidegate::Limiter::new(["100/min"])?;
    /// assert!(limiter.report("acme", 120).is_allowed());
    /// assert!(!limiter.check("acme").is_allowed());
    /// # Ok::<(), slidegate::LimiterError>(())
    /// ```
    pub fn report<K: Hash + ?Sized>(&self, key: &K, cost: u64) -> Decision<'_>
    where
        S: SyncStore,
    {
        poll_once(self.decide(Operation::Report, self.sync_store_key(key), cost))
    }

    /// Corrects the charge of an allowed request to `cost`, the actual cost: reverts the excess, or charges the
    /// difference, even above max. A key above max is denied until enough units have left the window. A denied request
    /// has no cost, so its charge is not changed. Call this method at most once per decision.
    ///
    /// ```
    /// use slidegate::{Check, Limiter};
    ///
    /// let limiter = Limiter::new(["100/min"])?;
    /// let decision = limiter.check(Check::new("acme").cost(80));  // an estimate
    /// limiter.settle(&decision, 120);                            // the actual cost
    /// assert!(!limiter.check("acme").is_allowed());
    /// # Ok::<(), slidegate::LimiterError>(())
    /// ```
    pub fn settle(&self, decision: &Decision<'_>, cost: u64)
    where
        S: SyncStore,
    {
        if decision.is_allowed() {
            block_on_sync_store(self.adjust_charges(decision, Adjustment::SetCost(cost)));
        }
    }

    /// Reverts the charges of a decision. Call this method at most once per decision.
    pub fn revert(&self, decision: &Decision<'_>)
    where
        S: SyncStore,
    {
        block_on_sync_store(self.adjust_charges(decision, Adjustment::Revert));
    }

    /// Subtracts `cost` units from each counter of `key`, oldest units first, or all units if the counter has fewer.
    /// Unlike [`revert`](Self::revert), this needs no decision.
    ///
    /// ```
    /// use slidegate::{Check, Limiter};
    ///
    /// let limiter = Limiter::new(["100/min"])?;
    /// let maximum = Check::new("acme").cost(80);
    /// assert!(limiter.check(maximum).is_allowed());
    /// limiter.refund("acme", 50);                           // the actual cost is 30
    /// assert_eq!(limiter.peek("acme").remaining(), 70);
    /// # Ok::<(), slidegate::LimiterError>(())
    /// ```
    pub fn refund<K: Hash + ?Sized>(&self, key: &K, cost: u64)
    where
        S: SyncStore,
    {
        block_on_sync_store(self.edit(self.hash_key(key), cost, Edit::Refund));
    }

    /// Resets all counters of a key to zero.
    pub fn reset<K: Hash + ?Sized>(&self, key: &K)
    where
        S: SyncStore,
    {
        block_on_sync_store(self.edit(self.hash_key(key), 1, Edit::Reset));
    }

    /// Returns the key of a call for a synchronous store.
    pub(super) fn sync_store_key<K: Hash + ?Sized>(&self, key: &K) -> StoreAndMemoryKey<'static> {
        let key = self.hash_key(key);
        StoreAndMemoryKey { in_store: key, in_memory: key }
    }
}

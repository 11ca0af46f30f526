//! Methods of a limiter for stores that respond without waiting and never fail. Each polls the asynchronous operation once.

use std::hash::Hash;

use super::Limiter;
use crate::decision::Decision;
use crate::hit::Hit;
use crate::store::{Adjustment, Edit, SyncStore, decide_now};

/// Synchronous methods, for a store that responds without waiting and never fails. The bound is on each method, so that
/// the compiler's message for another store names the method with `_async`.
impl<S> Limiter<S> {
    /// Decides a request for `key`, and charges one unit if every limit has capacity for it.
    #[inline]
    pub fn check<K: Hash + ?Sized>(&self, key: &K) -> Decision<'_>
    where
        S: SyncStore,
    {
        self.check_cost(key, 1)
    }

    /// Decides a request for `key`, and charges `cost` units if every limit has capacity for them. A cost of 0 checks
    /// whether one unit would fit, and charges nothing.
    #[inline]
    pub fn check_cost<K: Hash + ?Sized>(&self, key: &K, cost: u64) -> Decision<'_>
    where
        S: SyncStore,
    {
        let key = self.hash_key(key);
        // One hit needs no list, which the compiler would move as a whole.
        let (hit, list);
        let hits: &[Hit<'_>] = match &*self.limits {
            [limit] => {
                hit = [self.new_hit(key, limit, cost)];
                &hit
            }
            _ => {
                list = self.hits_for_key(key, cost);
                &list
            }
        };
        Decision::from_charge(hits, self.store.charge(hits), self.decision_limits())
    }

    /// Returns the decision that [`check_cost`](Self::check_cost) would make. Charges nothing.
    pub fn peek<K: Hash + ?Sized>(&self, key: &K, cost: u64) -> Decision<'_>
    where
        S: SyncStore,
    {
        decide_now(self.peek_key(self.hash_key(key), cost))
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
        decide_now(self.charge_keys(keys.iter().map(|key| self.hash_key(key))))
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
        decide_now(self.report_key(self.hash_key(key), cost))
    }

    /// Corrects the charge of an allowed request to `cost`, the actual cost: reverts the excess, or charges the
    /// difference, even above max. A key above max is denied until enough units have left the window. A denied request
    /// has no cost, so its charge is not changed. Call this method at most once per decision.
    ///
    /// ```
    /// let limiter = slidegate::Limiter::new(["100/min"])?;
    /// let decision = limiter.check_cost("acme", 80);             // an estimate
    /// limiter.settle(&decision, 120);                            // the actual cost
    /// assert!(!limiter.check("acme").is_allowed());
    /// # Ok::<(), slidegate::LimiterError>(())
    /// ```
    pub fn settle(&self, decision: &Decision<'_>, cost: u64)
    where
        S: SyncStore,
    {
        if decision.is_allowed() {
            decide_now(self.adjust(decision.receipt(), Adjustment::SetCost(cost)));
        }
    }

    /// Reverts the charges of a decision. Call this method at most once per decision.
    pub fn revert(&self, decision: &Decision<'_>)
    where
        S: SyncStore,
    {
        decide_now(self.adjust(decision.receipt(), Adjustment::Revert));
    }

    /// Subtracts `cost` units from each counter of `key`, oldest units first, or all units if the counter has fewer. No
    /// decision is needed.
    ///
    /// ```
    /// let limiter = slidegate::Limiter::new(["100/min"])?;
    /// assert!(limiter.check_cost("acme", 80).is_allowed()); // the maximum cost
    /// limiter.refund("acme", 50);                           // the actual cost is 30
    /// assert_eq!(limiter.peek("acme", 1).remaining(), 70);
    /// # Ok::<(), slidegate::LimiterError>(())
    /// ```
    pub fn refund<K: Hash + ?Sized>(&self, key: &K, cost: u64)
    where
        S: SyncStore,
    {
        decide_now(self.edit_key(self.hash_key(key), cost, Edit::Refund));
    }

    /// Resets all counters of a key to zero.
    pub fn reset<K: Hash + ?Sized>(&self, key: &K)
    where
        S: SyncStore,
    {
        decide_now(self.edit_key(self.hash_key(key), 1, Edit::Reset));
    }
}

//! Methods of a gate for stores that respond without waiting and never fail. Each polls the asynchronous method of the same
//! name once.

use super::Gate;
use crate::decision::Decision;
use crate::policy::MatchedRules;
use crate::request::Request;
use crate::reserved_call::ActualCosts;
use crate::store::{SyncStore, poll_once};
use crate::wait::Timer;

/// Synchronous methods, for a store that responds without waiting and never fails. The bound `S: SyncStore` is on each
/// method, not on the `impl`, so that the compiler's message for another store names the method with `_async`.
impl<S> Gate<S> {
    /// Decides a request, and charges its cost if every limit has capacity for it. Blocks the current thread until then, if
    /// the request has a [maximum wait](Request::with_max_wait).
    ///
    /// [Refunds](crate::Descriptor::as_refund) are applied first, in a separate call to the store, also if the request
    /// is then denied.
    pub fn check(&self, request: &Request<'_>) -> Decision<'static>
    where
        S: SyncStore,
    {
        poll_once(self.check_with_timer(|| Some(Timer::Thread), request))
    }

    /// Decides a request by the rules of a policy that apply to it, without a wait. [`check`](Self::check),
    /// [`peek`](Self::peek) and [`report`](Self::report) do this with the rules of the gate's policy.
    ///
    /// ```
    /// use slidegate::{Descriptor, Gate, MemoryStore, Policy, Request};
    ///
    /// let policy = Policy::from_yaml("rules: [{ name: a, per: [client], limits: [5/min] }]")?;
    /// let gate = Gate::new(policy, MemoryStore::new());
    /// let request = Request::new("default", Descriptor::new([("client", "ann")]));
    /// let policy = gate.policy();
    /// let matched = policy.apply(&request);
    /// println!("{} rules apply", matched.matches().count());
    /// assert_eq!(gate.decide(&matched).remaining(), 4);
    /// # Ok::<(), slidegate::PolicyErrors>(())
    /// ```
    pub fn decide(&self, matched: &MatchedRules<'_>) -> Decision<'static>
    where
        S: SyncStore,
    {
        poll_once(self.decide_once(matched))
    }

    /// Returns the decision that [`check`](Self::check) would make now. Charges nothing.
    pub fn peek(&self, request: &Request<'_>) -> Decision<'static>
    where
        S: SyncStore,
    {
        poll_once(self.peek_async(request))
    }

    /// Records units that have been consumed already. A report is never denied, and does not wait: units are charged
    /// even above max, and the counters then deny requests until enough units have left the window.
    ///
    /// Rules with a constant cost are skipped. Rules with a [named cost] are charged if the descriptor has a cost with
    /// this name; a name that no rule charges is logged once. Rules without a cost of their own are charged if [`cost`]
    /// was called.
    ///
    /// [`cost`]: crate::Descriptor::cost
    /// [named cost]: crate::Descriptor::with_cost
    ///
    /// ```
    /// use slidegate::{Descriptor, Gate, MemoryStore, Policy, Request};
    ///
    /// let policy = Policy::from_yaml("
    /// rules:
    ///   - { name: requests, per: [user], limits: [10/s], cost: 1 }
    ///   - { name: tokens, per: [user], limits: [1000/h], cost: tokens }
    /// ")?;
    /// let gate = Gate::new(policy, MemoryStore::new());
    /// let ann = || Descriptor::new([("user", "ann")]);
    /// let check = Request::new("default", ann());
    /// assert!(gate.check(&check).is_allowed());                     // one request, no tokens yet
    /// let _ = gate.report(&Request::new("default", ann().with_cost("tokens", 1_800)));
    /// let decision = gate.check(&check);
    /// assert_eq!(decision.binding().map(|limit| limit.policy_name()), Some("tokens"));
    /// assert!(!decision.is_allowed());
    /// # Ok::<(), slidegate::PolicyErrors>(())
    /// ```
    pub fn report(&self, request: &Request<'_>) -> Decision<'static>
    where
        S: SyncStore,
    {
        poll_once(self.report_async(request))
    }

    /// Corrects the charges of an allowed request to its actual costs: reverts the excess, or charges the difference, even
    /// above max. A key above max is denied until enough units have left the window. A denied request has no cost, so its
    /// charges are not changed. Call this method at most once per decision.
    ///
    /// A number in place of [`ActualCosts`] is the cost for rules that do not [state a cost](crate::policy::RuleCost).
    /// If the request has several descriptors, each of them is corrected to the new costs. A cost that no rule charges
    /// is logged once.
    ///
    /// ```
    /// use slidegate::{ActualCosts, Descriptor, Gate, MemoryStore, Policy, Request};
    ///
    /// let policy = Policy::from_yaml("
    /// rules:
    ///   - { name: units, per: [user], limits: [1000/min] }
    ///   - { name: tokens, per: [user], limits: [1000/min], cost: tokens }
    /// ")?;
    /// let gate = Gate::new(policy, MemoryStore::new());
    /// let estimate = Descriptor::new([("user", "ann")]).cost(100).with_cost("tokens", 700);
    /// let request = Request::new("default", estimate);
    /// let decision = gate.check(&request);
    /// gate.settle(&decision, ActualCosts::new().cost(50).with_cost("tokens", 250));
    /// assert_eq!(gate.peek(&request).remaining(), 750);        // of the tokens
    ///
    /// let decision = gate.check(&request);
    /// gate.settle(&decision, 1_500);                           // the cost without a name
    /// assert!(!gate.check(&request).is_allowed());
    /// # Ok::<(), slidegate::PolicyErrors>(())
    /// ```
    pub fn settle<'c>(&self, decision: &Decision<'_>, actual: impl Into<ActualCosts<'c>>)
    where
        S: SyncStore,
    {
        drop(poll_once(self.settle_async(decision, actual)));
    }

    /// Reverts the charges of a decision. Call this method at most once per decision.
    pub fn revert(&self, decision: &Decision<'_>)
    where
        S: SyncStore,
    {
        drop(poll_once(self.revert_async(decision)));
    }

    /// Subtracts the cost of a request from the counters of all rules that apply to it, oldest units first. Unlike
    /// [`revert`](Self::revert), this needs no decision.
    pub fn refund(&self, request: &Request<'_>)
    where
        S: SyncStore,
    {
        drop(poll_once(self.refund_async(request)));
    }

    /// Resets the counters of all rules that apply to a request to zero.
    pub fn reset(&self, request: &Request<'_>)
    where
        S: SyncStore,
    {
        drop(poll_once(self.reset_async(request)));
    }
}

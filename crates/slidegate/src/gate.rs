//! The gate, which decides requests by a policy with the counters of a store, and in memory while the store is
//! unavailable.
//!
//! `synchronous.rs` has the methods for stores that never wait, and `asynchronous.rs` the same methods for all stores.
//! `decide.rs` calls the store; a request with refunds takes two calls. `wait.rs` has the methods that wait until a
//! request fits. `fallback.rs` counts in memory while the store is unavailable; each instance of the service then enforces
//! its own share of every limit. `once.rs` decides calls with an idempotency key. `reservation.rs` has a guard for a charge
//! that is corrected later, and `permit.rs` one for a request in flight. `policy_file.rs` follows a policy file.
//! `ineffective_costs.rs` warns about costs that no rule charges.

mod asynchronous;
pub(crate) mod decide;
mod fallback;
mod ineffective_costs;
mod once;
mod permit;
mod policy_file;
mod reservation;
mod synchronous;
mod wait;

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::clock::{Clock, SystemClock};
use crate::policy::Policy;
use crate::store::memory::MemoryStore;
use crate::wait::WaitBounds;
use crate::wait::queues::WaitQueues;

use fallback::{InMemoryFallback, LocalCountsBounds};
use ineffective_costs::WarnedCosts;

pub use crate::permit::Permit;
pub use crate::reserved_call::{ActualCosts, ReservedCall};
pub use once::{OnceDecision, OnceError};
pub use permit::PermitGuard;
pub use policy_file::PolicyFileError;
pub use reservation::Reservation;

/// A gate, which decides requests: a policy, and the store whose counters enforce the limits of the policy.
///
/// ```
/// use slidegate::{Descriptor, Gate, MemoryStore, Policy, Request};
///
/// let policy = Policy::from_yaml("
/// rules:
///   - { name: per-tenant, per: [tenant], limits: [2/s, 600/min] }
/// ")?;
/// let gate = Gate::new(policy, MemoryStore::new());
/// let request = Request::new("default", Descriptor::new([("tenant", "acme")]));
/// let decision = gate.check(&request);
/// assert!(decision.is_allowed());
/// assert_eq!(decision.binding().map(|limit| limit.policy_name()), Some("per-tenant.1s"));
/// # Ok::<(), slidegate::PolicyErrors>(())
/// ```
///
/// Methods with a plain name are synchronous: they exist for stores that never wait. The methods of the same names with
/// `_async` exist for every store.
pub struct Gate<S = MemoryStore> {
    policy: ArcSwap<Policy>,
    /// The number of instances of the service that share the store.
    instances: NonZeroU32,
    store: S,
    fallback: InMemoryFallback,
    /// The requests that wait until they fit.
    wait_queues: WaitQueues,
    warned_costs: WarnedCosts,
}

impl<S> Gate<S> {
    /// Creates a gate that enforces `policy` with the counters in `store`.
    pub fn new(policy: Policy, store: S) -> Self {
        let instances = NonZeroU32::MIN;
        Self {
            policy: ArcSwap::from_pointee(policy.with_instances(instances)),
            instances,
            store,
            fallback: InMemoryFallback::new(
                Arc::new(SystemClock::new()),
                LocalCountsBounds::default(),
            ),
            wait_queues: WaitQueues::new(WaitBounds::default()),
            warned_costs: WarnedCosts::default(),
        }
    }

    /// Replaces the policy. Requests in progress finish under the policy with which they started. Counts stay: a limit
    /// whose rule, name and window are unchanged continues with its counts.
    ///
    /// ```
    /// use slidegate::{Descriptor, Gate, MemoryStore, Policy, Request};
    ///
    /// let policy = |limit| {
    ///     Policy::from_yaml(&format!("rules: [{{ name: all, limits: [{limit}] }}]"))
    /// };
    /// let gate = Gate::new(policy("1/min")?, MemoryStore::new());
    /// let request = Request::new("default", Descriptor::new([]));
    /// assert!(gate.check(&request).is_allowed());
    /// gate.replace_policy(policy("3/min")?);
    /// assert_eq!(gate.check(&request).remaining(), 1);
    /// # Ok::<(), slidegate::PolicyErrors>(())
    /// ```
    pub fn replace_policy(&self, policy: Policy) {
        self.policy.store(Arc::new(policy.with_instances(self.instances)));
        self.warned_costs.clear();
        self.wait_queues.wake_first_of_all();
    }

    /// Sets the number of instances that share the store, 1 by default. While the store is unavailable, each instance
    /// enforces its own share of every limit whose rules have [`OnStoreError::Local`](crate::policy::OnStoreError::Local). The share is max(1, max /
    /// instances), and the burst is divided in the same way. A max of 0 stays 0.
    ///
    /// The following bound holds over any number of outages. In any window, the store admits at most max units, and all
    /// instances together admit at most max units in memory. The sum is at most 2 * max units, or max + instances if
    /// max is less than the number of instances. For an algorithm that admits more than max units per window, the sum
    /// is at most twice the number of units that the algorithm admits. Counts in memory are kept until their window has
    /// passed, and are used again if the store fails again within this window.
    #[must_use]
    pub fn with_instances(self, instances: NonZeroU32) -> Self {
        let policy = Policy::clone(&self.policy.load()).with_instances(instances);
        Self { policy: ArcSwap::from_pointee(policy), instances, ..self }
    }

    /// Sets the clock of the counts in memory, which are used while the store is unavailable.
    #[must_use]
    pub fn with_local_clock(self, clock: impl Clock) -> Self {
        Self { fallback: self.fallback.with_clock(Arc::new(clock)), ..self }
    }

    /// Sets the maximum number of keys that are counted in memory while the store is unavailable.
    #[must_use]
    pub fn with_local_max_keys(self, max_keys: usize) -> Self {
        Self { fallback: self.fallback.with_max_keys(max_keys), ..self }
    }

    /// Sets the maximum memory, in bytes, of the keys that are counted and the calls that are remembered in memory while the
    /// store is unavailable. 1 GiB by default; see [`MemoryStore::with_max_memory`].
    #[must_use]
    pub fn with_local_max_memory(self, bytes: usize) -> Self {
        Self { fallback: self.fallback.with_max_memory(bytes), ..self }
    }

    /// Sets the maximum number of calls that are remembered in memory while the store is unavailable. 1,000,000 by default;
    /// see [`MemoryStore::with_max_call_records`].
    #[must_use]
    pub fn with_local_max_call_records(self, max_records: usize) -> Self {
        Self { fallback: self.fallback.with_max_call_records(max_records), ..self }
    }

    /// Returns the policy that is enforced now.
    pub fn policy(&self) -> Arc<Policy> {
        self.policy.load_full()
    }

    /// Returns the store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Returns the number of keys that are counted in memory because the store was unavailable. These keys are kept
    /// until their windows have passed.
    pub fn local_keys(&self) -> usize {
        self.fallback.local_counts().map_or(0, |counts| counts.keys())
    }

    /// Returns the bytes of memory that the [`local_keys`](Self::local_keys) take.
    pub fn local_memory_bytes(&self) -> usize {
        self.fallback.local_counts().map_or(0, |counts| counts.memory_bytes())
    }

    /// Returns the number of calls that are remembered in memory because the store was unavailable.
    pub fn local_call_records(&self) -> usize {
        self.fallback.local_counts().map_or(0, |counts| counts.call_records().records())
    }

    /// Returns the number of these calls that were forgotten too early since the start, because of a bound.
    pub fn local_evicted_call_records(&self) -> u64 {
        self.fallback.evicted_call_records()
    }

    /// Returns the bytes of memory that the [`local_call_records`](Self::local_call_records) take.
    pub fn local_call_record_bytes(&self) -> usize {
        self.fallback.local_counts().map_or(0, |counts| counts.call_records().memory_bytes())
    }
}

impl<S> fmt::Debug for Gate<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("policy", &self.policy.load())
            .field("wait_queues", &self.wait_queues)
            .finish_non_exhaustive()
    }
}

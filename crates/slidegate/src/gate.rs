//! The [`Gate`], which decides requests by a policy with the counters of a store, and in memory while the store is
//! unavailable.
//!
//! A gate returns a [`Decision`](crate::Decision), a [`Reservation`], which guards an estimated charge, or a
//! [`PermitGuard`], which guards a request in flight. [`ReservedCall`] and [`Permit`] are reservations and permits as
//! plain data, so that another process can settle or release them.

// `synchronous.rs` has the methods for stores that never wait, and `asynchronous.rs` the same methods for all stores.
// `decide.rs` calls the store; a request with refunds takes two calls. `wait.rs` decides requests that wait until they
// fit, and `call.rs` requests with an idempotency key. `policy_file.rs` follows a policy file. `ineffective_costs.rs`
// warns about costs that no rule charges.

mod asynchronous;
mod call;
pub(crate) mod decide;
mod ineffective_costs;
mod permit;
mod policy_file;
mod reservation;
mod synchronous;
mod wait;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::fallback::{InMemoryFallback, LocalCountsOptions};
use crate::policy::Policy;
use crate::store::Store;
use crate::store::memory::MemoryStore;
use crate::wait::queues::WaitQueues;
use crate::wait::{WaitOptions, WaitStats};

use ineffective_costs::WarnedCosts;

pub use crate::permit::Permit;
pub use crate::reserved_call::{ActualCosts, ReservedCall};
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
    store: S,
    fallback: InMemoryFallback,
    /// The queues of requests that wait for capacity in place of a denial.
    wait_queues: WaitQueues,
    warned_costs: WarnedCosts,
}

/// The gate of a [`Reservation`] or a [`PermitGuard`]: borrowed, or shared, so that a task can own the guard.
enum GateRef<'g, S> {
    Borrowed(&'g Gate<S>),
    Shared(Arc<Gate<S>>),
}

impl<S> Deref for GateRef<'_, S> {
    type Target = Gate<S>;

    fn deref(&self) -> &Gate<S> {
        match self {
            Self::Borrowed(gate) => gate,
            Self::Shared(gate) => gate,
        }
    }
}

impl<S: Store> Gate<S> {
    /// Creates a gate that enforces `policy` with the counters in `store`. Logs a warning for each rule with a limit
    /// that the store does not [support](Store::supports): its requests are decided as if the store were unavailable.
    /// [`Policy::from_yaml_for`] rejects such a policy.
    pub fn new(policy: Policy, store: S) -> Self {
        warn_about_unsupported_limits(&policy, &store);
        let fallback = InMemoryFallback::new(LocalCountsOptions::default());
        Self {
            policy: ArcSwap::from_pointee(policy.with_instance_count(fallback.instances())),
            store,
            fallback,
            wait_queues: WaitQueues::new(WaitOptions::default()),
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
        warn_about_unsupported_limits(&policy, &self.store);
        self.policy.store(Arc::new(policy.with_instance_count(self.fallback.instances())));
        self.warned_costs.clear();
        self.wait_queues.wake_first_in_every_queue();
    }
}

impl<S> Gate<S> {
    /// Sets the options of the counts in memory, with which rules with
    /// [`OnStoreError::Local`](crate::OnStoreError::Local) decide while the store is unavailable.
    #[must_use]
    pub fn with_local_counts(self, options: LocalCountsOptions) -> Self {
        let policy = Policy::clone(&self.policy.load()).with_instance_count(options.instances);
        let fallback = InMemoryFallback::new(options);
        Self { policy: ArcSwap::from_pointee(policy), fallback, ..self }
    }

    /// Sets the bounds on the requests that wait at the same time, and the jitter of their waits.
    #[must_use]
    pub fn with_wait_options(self, options: WaitOptions) -> Self {
        Self { wait_queues: WaitQueues::new(options), ..self }
    }

    /// Returns the policy that is enforced now.
    pub fn policy(&self) -> Arc<Policy> {
        self.policy.load_full()
    }

    /// Returns the store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Returns the numbers of waiting requests, and of counts in memory.
    pub fn stats(&self) -> GateStats {
        let waits = self.wait_queues.stats();
        let evicted = self.fallback.evicted_call_records();
        let stats =
            GateStats { waits, local_evicted_call_records: evicted, ..GateStats::default() };
        let Some(counts) = self.fallback.local_counts() else { return stats };
        GateStats {
            local_keys: counts.keys(),
            local_key_bytes: counts.memory_bytes(),
            local_call_records: counts.call_record_table().records(),
            local_call_record_bytes: counts.call_record_table().memory_bytes(),
            ..stats
        }
    }
}

/// The numbers of the requests that wait at a gate, and of its counts in memory, which were made while the store was
/// unavailable. The counts are kept until their windows have passed.
#[derive(Clone, Copy, Debug, Default)]
pub struct GateStats {
    /// The requests that wait now, and the results of the requests that have waited.
    pub waits: WaitStats,
    /// Number of keys that are counted in memory, because the store was unavailable.
    pub local_keys: usize,
    /// Bytes of memory that the keys of [`local_keys`](Self::local_keys) take.
    pub local_key_bytes: usize,
    /// Number of calls that are remembered in memory, so that a repetition is not charged again.
    pub local_call_records: usize,
    /// Bytes of memory that the calls of [`local_call_records`](Self::local_call_records) take.
    pub local_call_record_bytes: usize,
    /// Number of call records in memory that were evicted before they expired, since the start. A repetition of such a
    /// call is charged again.
    pub local_evicted_call_records: u64,
}

/// Warns about each rule whose limits the store cannot count, so that it cannot decide the requests of the rule.
fn warn_about_unsupported_limits(policy: &Policy, store: &impl Store) {
    for rule in policy.rules() {
        let overrides = rule.overrides().iter().map(|other| other.settings());
        let mut limits = overrides.chain([rule.settings()]).flat_map(|settings| settings.limits());
        if let Some(reason) = limits.find_map(|limit| store.supports(limit.limit()).err()) {
            tracing::warn!(
                rule = rule.name(),
                domain = rule.domain(),
                reason,
                "the store does not support a limit of a rule, so it cannot decide the requests of the rule"
            );
        }
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

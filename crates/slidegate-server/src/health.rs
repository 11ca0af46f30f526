//! The readiness of the server: whether the server is ready for requests, and the reasons if it is not.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;

/// The state of the server from which its readiness is derived: whether the server is stopping, and the error in the
/// policy file. Readiness also depends on the store, whose state is not included.
#[derive(Debug, Default)]
pub struct Health {
    is_draining: AtomicBool,
    needs_store: bool,
    policy_problem: Mutex<Option<String>>,
}

/// The readiness of the server and the reasons for it.
#[derive(Debug, Serialize)]
pub struct Readiness {
    /// Whether the server is ready for requests: the status is 200 if it is, else 503.
    ready: bool,
    /// Whether the server is about to stop and accepts no new connections.
    draining: bool,
    /// The current policy.
    policy: PolicyReadiness,
    /// The store of the counters.
    store: StoreReadiness,
}

/// The current policy.
#[derive(Debug, Serialize)]
struct PolicyReadiness {
    /// The number of rules.
    rules: usize,
    /// Whether every rule only observes, because of `--observe`.
    observe: bool,
    /// The error in the current policy file, because of which an older policy is in effect. Null if the file has no
    /// error.
    problem: Option<String>,
}

/// The store of the counters.
#[derive(Debug, Serialize)]
struct StoreReadiness {
    /// `memory`, `redis` or `cluster`.
    kind: &'static str,
    /// Whether the store is available: false before the first connection, and while the circuit breaker is open.
    reachable: bool,
}

impl Health {
    /// Creates the readiness state of a server that is not stopping. If `needs_store` is `true`, the server is ready
    /// only while the store is available.
    pub fn new(needs_store: bool) -> Self {
        Self { needs_store, ..Self::default() }
    }

    /// Marks the server as not ready, because it is about to stop.
    pub fn drain(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
    }

    /// Returns `true` if the server is about to stop.
    pub fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Relaxed)
    }

    /// Sets the error in the policy file. `None` clears the error.
    pub fn set_policy_problem(&self, problem: Option<String>) {
        *self.lock_policy_problem() = problem;
    }

    /// Returns the current readiness. `rules` is the number of rules in the current policy, `observe` whether all of
    /// them only observe. `kind` is the name of the kind of store, and `is_reachable` whether the store is available.
    pub fn readiness(
        &self,
        rules: usize,
        observe: bool,
        kind: &'static str,
        is_reachable: bool,
    ) -> Readiness {
        let draining = self.is_draining();
        Readiness {
            ready: !draining && (is_reachable || !self.needs_store),
            draining,
            policy: PolicyReadiness { rules, observe, problem: self.lock_policy_problem().clone() },
            store: StoreReadiness { kind, reachable: is_reachable },
        }
    }

    /// Locks the mutex that contains the error in the policy file. Ignores poisoning: a panic cannot leave the error
    /// text incomplete.
    fn lock_policy_problem(&self) -> MutexGuard<'_, Option<String>> {
        self.policy_problem.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Readiness {
    /// Returns `true` if the server is ready for requests.
    pub fn is_ready(&self) -> bool {
        self.ready
    }
}

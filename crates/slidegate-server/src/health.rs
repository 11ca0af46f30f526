//! Whether the server is ready, and what keeps it from being so.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use schemars::JsonSchema;
use serde::Serialize;

use crate::service::Service;

/// What is known beside the store itself.
#[derive(Debug, Default)]
pub struct Health {
    draining: AtomicBool,
    needs_store: bool,
    policy_problem: Mutex<Option<String>>,
}

/// Whether the server should be asked, and why not.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Readiness {
    /// Whether it should: the status is 200 then, else 503.
    ready: bool,
    /// Whether it is about to stop, and takes no new connections.
    draining: bool,
    /// The policy that holds.
    policy: PolicyReadiness,
    /// Where counts live.
    store: StoreReadiness,
}

/// The policy that holds.
#[derive(Debug, Serialize, JsonSchema)]
struct PolicyReadiness {
    /// How many rules it has.
    rules: usize,
    /// Whether every rule only watches, by `--observe`.
    observe: bool,
    /// What is wrong with the file since, so that this older policy holds. Null if nothing is.
    problem: Option<String>,
}

/// Where counts live.
#[derive(Debug, Serialize, JsonSchema)]
struct StoreReadiness {
    /// `memory`, `redis` or `cluster`.
    kind: &'static str,
    /// Whether the store is available: false before the first connection, and while the circuit breaker refuses calls.
    reachable: bool,
}

impl Health {
    /// Ready. If it needs the store, only while that answers.
    pub fn new(needs_store: bool) -> Self {
        Self { needs_store, ..Self::default() }
    }

    /// From now on it is not ready: it is about to stop.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Whether it is about to stop.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Sets what is wrong with the policy file, or that nothing is.
    pub fn set_policy_problem(&self, problem: Option<String>) {
        *self.lock_policy_problem() = problem;
    }

    /// A text is whole at every moment, so a thread that panicked spoils nothing.
    fn lock_policy_problem(&self) -> MutexGuard<'_, Option<String>> {
        self.policy_problem.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Readiness {
    /// How a service is.
    pub fn from_service(service: &Service) -> Self {
        let (health, policy) = (service.health(), service.active_policy());
        let draining = health.is_draining();
        let store = policy.store();
        let is_reachable = store.answers();
        Self {
            ready: !draining && (is_reachable || !health.needs_store),
            draining,
            policy: PolicyReadiness {
                rules: policy.gate().policy().rules().len(),
                observe: service.is_observe_only(),
                problem: health.lock_policy_problem().clone(),
            },
            store: StoreReadiness { kind: store.kind(), reachable: is_reachable },
        }
    }

    /// Whether the server should be asked.
    pub fn is_ready(&self) -> bool {
        self.ready
    }
}

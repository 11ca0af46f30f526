//! The readiness of the server: whether the server is ready for requests, and the reasons if it is not.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use crate::background::BackgroundTasks;
use crate::decide::store::ServerStore;

/// The state of the server from which its readiness is derived: whether the server is stopping, its background tasks,
/// and the error in the policy file. Readiness also depends on the store, whose state is not included.
#[derive(Debug, Default)]
pub struct Health {
    is_draining: AtomicBool,
    needs_store: bool,
    background_tasks: BackgroundTasks,
    policy_problem: Mutex<Option<String>>,
}

/// The readiness of the server and the reasons for it.
#[derive(Debug, Serialize)]
pub struct Readiness {
    /// Whether the server is ready for requests: the status is 200 if it is, else 503.
    ready: bool,
    /// Whether the server is about to stop and accepts no new connections.
    draining: bool,
    /// The background tasks that have ended because of an error. The server is ready again after a restart.
    ended_tasks: Vec<&'static str>,
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
    /// The reason why the store is not available. Null if it is available.
    problem: Option<String>,
    /// Whether a cluster node is still waiting for the counters of another node. The server is then not ready, for at
    /// most 5 seconds.
    joining: bool,
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
        self.background_tasks.mark_shutting_down();
    }

    /// Returns `true` if the server is about to stop.
    pub fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Relaxed)
    }

    /// Returns the background tasks of the server.
    pub fn background_tasks(&self) -> &BackgroundTasks {
        &self.background_tasks
    }

    /// Sets the error in the policy file. `None` clears the error.
    pub fn set_policy_problem(&self, problem: Option<String>) {
        *self.lock_policy_problem() = problem;
    }

    /// Returns the current readiness. `rules` is the number of rules in the current policy, `observe` whether all of
    /// them only observe.
    pub fn readiness(&self, rules: usize, observe: bool, store: &ServerStore) -> Readiness {
        let draining = self.is_draining();
        let problem = store.unavailable_reason().map(|error| error.to_string());
        let (reachable, joining) = (problem.is_none(), store.is_joining());
        let mut ended_tasks = self.background_tasks.ended_tasks();
        ended_tasks.extend(store.ended_task());
        Readiness {
            ready: !draining
                && ended_tasks.is_empty()
                && !joining
                && (reachable || !self.needs_store),
            draining,
            ended_tasks,
            policy: PolicyReadiness { rules, observe, problem: self.lock_policy_problem().clone() },
            store: StoreReadiness { kind: store.kind(), reachable, problem, joining },
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

#[cfg(test)]
mod tests {
    use slidegate::MemoryStore;

    use super::*;
    use crate::telemetry::{Redactor, StoreRecorder};

    #[tokio::test]
    async fn ended_background_task_makes_server_unready() {
        let health = Health::new(false);
        let recorder = StoreRecorder::new(None, None, Redactor::new(false));
        let store = ServerStore::Memory(MemoryStore::new(), recorder);
        assert!(health.readiness(1, false, &store).is_ready());
        health.background_tasks().clone().keep_running("policy reload", async || {}).await;
        let readiness = health.readiness(1, false, &store);
        assert!(!readiness.is_ready());
        let body = serde_json::to_value(&readiness).unwrap();
        assert_eq!(body["ended_tasks"], serde_json::json!(["policy reload"]));
    }
}

//! The rate limit service behind all listeners: the active policy, the store, health and telemetry.
//!
//! A reload replaces the policy. The store and the counters stay.

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::http::HeaderName;
use slidegate::{Gate, Policy, Request, Ruling};

use crate::explain::Explanation;
use crate::health::Health;
use crate::store::Store;
use crate::telemetry::metrics::{ReloadResult, StoreStats};
use crate::telemetry::{InstrumentedStore, PolicyMetrics, Telemetry};

/// Decides about requests and records the decisions.
pub struct Service {
    active_policy: ArcSwap<ActivePolicy>,
    telemetry: Telemetry,
    health: Health,
    /// Whether every rule only observes.
    observe: bool,
}

/// A policy over the store, with the metrics of its limits. They are replaced together.
pub struct ActivePolicy {
    gate: Gate<InstrumentedStore<Store>>,
    policy_metrics: PolicyMetrics,
    headers: PolicyHeaders,
}

/// The headers that a policy names, with their attributes: `header.x-api-key` is the header `x-api-key`.
pub type PolicyHeaders = Box<[(Box<str>, HeaderName)]>;

impl Service {
    /// Creates a service. With `observe`, the policy of the gate must already only observe.
    pub fn new(
        gate: Gate<InstrumentedStore<Store>>,
        telemetry: Telemetry,
        health: Health,
        observe: bool,
    ) -> Self {
        let policy_metrics = telemetry.policy_metrics(gate.policy());
        let active_policy = ArcSwap::from_pointee(ActivePolicy::new(gate, policy_metrics));
        Self { active_policy, telemetry, health, observe }
    }

    /// Decides about a request, and charges its cost if every limit allows it.
    pub async fn check(&self, request: &Request<'_>) -> Ruling {
        self.check_with_policy(&self.active_policy.load_full(), request).await
    }

    /// Like [`check`](Self::check), with a policy that the caller has already loaded.
    pub async fn check_with_policy(&self, policy: &ActivePolicy, request: &Request<'_>) -> Ruling {
        let matched = policy.gate.policy().apply(request);
        let ruling = policy.gate.check_matched(&matched).await;
        self.telemetry.record_decision(&policy.policy_metrics, request.domain(), &matched, &ruling);
        ruling
    }

    /// Returns the decision that [`check`](Self::check) would return. Charges and records nothing.
    pub async fn peek(&self, request: &Request<'_>) -> Ruling {
        self.active_policy.load_full().gate.peek(request).await
    }

    /// Records units that have been consumed. Metrics of limits do not include it, because it is not a decision.
    pub async fn report(&self, request: &Request<'_>) -> Ruling {
        self.active_policy.load_full().gate.report(request).await
    }

    /// Explains the decision that [`check`](Self::check) would return. Charges and records nothing.
    pub async fn explain(&self, request: &Request<'_>) -> Explanation {
        let active = self.active_policy.load_full();
        let policy = active.gate.policy();
        let matched = policy.apply(request);
        let ruling = active.gate.peek_matched(&matched).await;
        Explanation::from_ruling(policy, request, &ruling)
    }

    /// Replaces the policy. Decisions in progress complete with the previous policy.
    pub fn replace_policy(&self, policy: &Policy) {
        let policy = if self.observe { policy.observing() } else { policy.clone() };
        let policy_metrics = self.telemetry.policy_metrics(&policy);
        let gate = self.active_policy.load().gate.with_policy(policy);
        self.active_policy.store(Arc::new(ActivePolicy::new(gate, policy_metrics)));
    }

    /// Records the result of a policy reload, and the error if it failed.
    pub fn record_reload(&self, result: ReloadResult, problem: Option<String>) {
        if let Some(metrics) = self.telemetry.metrics() {
            metrics.record_reload(result);
        }
        self.health.set_policy_problem(problem);
    }

    /// Returns the active policy.
    pub fn active_policy(&self) -> Arc<ActivePolicy> {
        self.active_policy.load_full()
    }

    /// Returns the telemetry.
    pub fn telemetry(&self) -> &Telemetry {
        &self.telemetry
    }

    /// Returns the health state.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Returns whether every rule only observes.
    pub fn is_observe_only(&self) -> bool {
        self.observe
    }
}

impl ActivePolicy {
    fn new(gate: Gate<InstrumentedStore<Store>>, policy_metrics: PolicyMetrics) -> Self {
        let attributes = gate.policy().attribute_names();
        let headers = attributes.iter().filter_map(|attribute| {
            let name = attribute.strip_prefix("header.")?.parse().ok()?;
            Some(((*attribute).into(), name))
        });
        let headers = headers.collect();
        Self { gate, policy_metrics, headers }
    }

    /// Returns the headers that the policy names.
    pub fn headers(&self) -> &PolicyHeaders {
        &self.headers
    }

    /// Returns the gate.
    pub fn gate(&self) -> &Gate<InstrumentedStore<Store>> {
        &self.gate
    }

    /// Returns the store.
    pub fn store(&self) -> &Store {
        self.gate.store().inner()
    }

    /// Returns the key counts and other metrics of the store, including counters that the gate keeps locally.
    pub fn store_stats(&self) -> StoreStats {
        let stats = self.store().stats();
        StoreStats {
            keys: stats.keys + self.gate.local_keys(),
            memory_bytes: stats.memory_bytes + self.gate.local_memory_bytes(),
            ..stats
        }
    }
}

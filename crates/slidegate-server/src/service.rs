//! What every face asks: the policy as it now is, over the store, with those who watch.

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::http::HeaderName;
use slidegate::{Gate, Policy, Request, Ruling};

use crate::explain::Explanation;
use crate::health::Health;
use crate::watch::metrics::{Reloaded, StoreFigures};
use crate::watch::{Tallies, Watch, Watched};
use crate::wire::Store;

/// Decides, and is watched.
pub struct Service {
    active_policy: ArcSwap<ActivePolicy>,
    watch: Watch,
    health: Health,
    /// Whether every rule only watches.
    observe: bool,
}

/// A policy over the store, and where its decisions are counted: replaced as one.
pub struct ActivePolicy {
    gate: Gate<Watched<Store>>,
    tallies: Tallies,
    headers: PolicyHeaders,
}

/// The headers that a policy names, beside their attributes: `header.x-api-key` is the header `x-api-key`.
pub type PolicyHeaders = Box<[(Box<str>, HeaderName)]>;

impl Service {
    /// What decides by this gate. If it shall only observe, its policy does already.
    pub fn new(gate: Gate<Watched<Store>>, watch: Watch, health: Health, observe: bool) -> Self {
        let tallies = watch.tallies(gate.policy());
        let active_policy = ArcSwap::from_pointee(ActivePolicy::new(gate, tallies));
        Self { active_policy, watch, health, observe }
    }

    /// Takes what the request costs if every limit has room for it.
    pub async fn check(&self, request: &Request<'_>) -> Ruling {
        self.check_with_policy(&self.active_policy.load_full(), request).await
    }

    /// [`check`](Self::check) by a policy that the caller has looked at already.
    pub async fn check_with_policy(&self, policy: &ActivePolicy, request: &Request<'_>) -> Ruling {
        let matched = policy.gate.policy().apply(request);
        let ruling = policy.gate.check_matched(&matched).await;
        self.watch.decided(&policy.tallies, request.domain(), &matched, &ruling);
        ruling
    }

    /// What [`check`](Self::check) would say. Takes nothing, and nobody watches.
    pub async fn peek(&self, request: &Request<'_>) -> Ruling {
        self.active_policy.load_full().gate.peek(request).await
    }

    /// Records units that have been consumed. It is no decision, so it is in no figures of limits.
    pub async fn report(&self, request: &Request<'_>) -> Ruling {
        self.active_policy.load_full().gate.report(request).await
    }

    /// What [`check`](Self::check) would say, and why. Takes nothing, and nobody watches.
    pub async fn explain(&self, request: &Request<'_>) -> Explanation {
        let active = self.active_policy.load_full();
        let policy = active.gate.policy();
        let matched = policy.apply(request);
        let ruling = active.gate.peek_matched(&matched).await;
        Explanation::from_ruling(policy, request, &ruling)
    }

    /// Decides by another policy from now on. What is under way ends by the one by which it began.
    pub fn replace_policy(&self, policy: &Policy) {
        let policy = if self.observe { policy.observing() } else { policy.clone() };
        let tallies = self.watch.tallies(&policy);
        let gate = self.active_policy.load().gate.with_policy(policy);
        self.active_policy.store(Arc::new(ActivePolicy::new(gate, tallies)));
    }

    /// Tells that the policy was read again, and how that ended: with what is wrong, if it failed.
    pub fn record_reload(&self, result: Reloaded, problem: Option<String>) {
        if let Some(metrics) = self.watch.metrics() {
            metrics.reloaded(result);
        }
        self.health.set_policy_problem(problem);
    }

    /// The gate that decides now.
    pub fn active_policy(&self) -> Arc<ActivePolicy> {
        self.active_policy.load_full()
    }

    /// Who watches.
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Whether it is ready.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Whether every rule only watches.
    pub fn is_observe_only(&self) -> bool {
        self.observe
    }
}

impl ActivePolicy {
    fn new(gate: Gate<Watched<Store>>, tallies: Tallies) -> Self {
        let attributes = gate.policy().attribute_names();
        let headers = attributes.iter().filter_map(|attribute| {
            let name = attribute.strip_prefix("header.")?.parse().ok()?;
            Some(((*attribute).into(), name))
        });
        let headers = headers.collect();
        Self { gate, tallies, headers }
    }

    /// Returns the headers that the policy names.
    pub fn headers(&self) -> &PolicyHeaders {
        &self.headers
    }

    /// The gate.
    pub fn gate(&self) -> &Gate<Watched<Store>> {
        &self.gate
    }

    /// The store.
    pub fn store(&self) -> &Store {
        self.gate.store().inner()
    }

    /// How the store stands.
    pub fn store_figures(&self) -> StoreFigures {
        let figures = self.store().figures();
        StoreFigures {
            keys: figures.keys + self.gate.local_keys(),
            memory_bytes: figures.memory_bytes + self.gate.local_memory_bytes(),
            ..figures
        }
    }
}

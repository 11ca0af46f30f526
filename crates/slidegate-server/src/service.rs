//! The rate limit service behind all listeners: the active policy, the store, health and telemetry.
//!
//! A reload replaces the policy, and keeps the store with its counters.

pub mod names;
pub mod permits;
pub mod reservations;
pub mod start;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::http::HeaderName;
use slidegate::{Decision, Gate, Policy, Request, WaitStats};
use tokio_util::sync::CancellationToken;

use self::names::NameChecks;
use crate::body_budget::BodyBudget;
use crate::bounds::MAX_EXPLAINED_RULES;
use crate::explain::Explanation;
use crate::health::{Health, Readiness};
use crate::rendering::problem::HttpProblem;
use crate::reservation_token::TokenSealer;
use crate::store::ServerStore;
use crate::telemetry::metrics::{ReloadResult, StoreStats};
use crate::telemetry::rule_use::RuleUse;
use crate::telemetry::{InstrumentedStore, PolicyMetrics, Telemetry};

/// The service that decides about requests and records the decisions in telemetry.
pub struct Service {
    gate: Gate<InstrumentedStore<ServerStore>>,
    active_policy: ArcSwap<ActivePolicy>,
    telemetry: Telemetry,
    health: Health,
    /// Whether every rule only observes, because of `--observe`.
    observe: bool,
    /// Creates and opens the tokens of reservations and permits.
    tokens: TokenSealer,
    /// Maximum wait of a call.
    max_wait: Duration,
    /// The memory of the request bodies of all listeners.
    bodies: BodyBudget,
    name_checks: NameChecks,
}

/// The policy with everything that depends on it: the metrics of its limits, and the headers that it names. A reload
/// replaces all of them together.
pub struct ActivePolicy {
    policy: Arc<Policy>,
    policy_metrics: PolicyMetrics,
    headers: PolicyHeaders,
}

/// The attributes of a policy that are HTTP headers, each with the name of its header. For example, the attribute
/// `header.x-api-key` is the header `x-api-key`.
pub type PolicyHeaders = Box<[(Box<str>, HeaderName)]>;

impl Service {
    /// Creates a service. If `observe` is `true`, each rule in the policy of `gate` must already be changed so that it
    /// only observes and denies no request.
    pub fn new(
        gate: Gate<InstrumentedStore<ServerStore>>,
        telemetry: Telemetry,
        health: Health,
        observe: bool,
        tokens: TokenSealer,
        name_checks: NameChecks,
        bodies: BodyBudget,
    ) -> Self {
        let active_policy = ArcSwap::from_pointee(ActivePolicy::new(gate.policy(), &telemetry));
        Self {
            gate,
            active_policy,
            telemetry,
            health,
            observe,
            tokens,
            max_wait: Duration::ZERO,
            name_checks,
            bodies,
        }
    }

    /// Returns the memory of the request bodies of all client listeners.
    pub fn bodies(&self) -> &BodyBudget {
        &self.bodies
    }

    /// Sets the maximum wait of a call, zero by default.
    pub fn with_max_wait(self, max_wait: Duration) -> Self {
        Self { max_wait, ..self }
    }

    /// Decides about a request, and charges its cost if every limit allows the request.
    pub async fn check(&self, request: &Request<'_>) -> Decision<'static> {
        self.check_with_policy(&self.active_policy.load_full(), request).await
    }

    /// Decides like [`check`](Self::check), with a policy that the caller has already loaded.
    pub async fn check_with_policy(
        &self,
        active: &ActivePolicy,
        request: &Request<'_>,
    ) -> Decision<'static> {
        let matched = active.policy.apply(request);
        let decision = self.gate.check_matched_async(&matched).await;
        self.telemetry.record_decision(
            &active.policy_metrics,
            request.domain(),
            &matched,
            &decision,
        );
        decision
    }

    /// Decides like [`check`](Self::check), but waits for up to `max_wait`, or the maximum of the server, until the
    /// request fits. Waiting requests are admitted in the order of their arrival. Returns the decision, and the time for
    /// which the request waited.
    pub async fn check_within(
        &self,
        request: &Request<'_>,
        max_wait: Duration,
    ) -> (Decision<'static>, Duration) {
        let max_wait = max_wait.min(self.max_wait);
        if max_wait.is_zero() {
            return (self.check(request).await, Duration::ZERO);
        }
        let active = self.active_policy.load_full();
        let matched = active.policy.apply(request);
        let check = self.gate.check_matched_within_async(request, &matched, max_wait);
        let (decision, waited) = check.await;
        self.telemetry.record_decision(
            &active.policy_metrics,
            request.domain(),
            &matched,
            &decision,
        );
        (decision, waited)
    }

    /// Returns the decision that [`check`](Self::check) would return. Charges and records nothing.
    pub async fn peek(&self, request: &Request<'_>) -> Decision<'static> {
        self.gate.peek_async(request).await
    }

    /// Records units that have been consumed. Metrics of limits do not include the report, because it is not a
    /// decision.
    pub async fn report(&self, request: &Request<'_>) -> Decision<'static> {
        self.gate.report_async(request).await
    }

    /// Explains the decision that [`check`](Self::check) would return. Charges and records nothing. Takes seconds of CPU
    /// with large requests and policies, so it must run on a thread of its own. If `cancelled` is cancelled, it ends
    /// early, and the explanation is incomplete.
    ///
    /// # Errors
    /// If several descriptors have more than [`MAX_EXPLAINED_RULES`].
    pub async fn explain(
        &self,
        request: &Request<'_>,
        cancelled: &CancellationToken,
    ) -> Result<Explanation, HttpProblem> {
        let policy = self.gate.policy();
        let domain_rules = policy.rules().iter().filter(|rule| rule.domain() == request.domain());
        let descriptors = request.descriptors().len();
        let rules = domain_rules.count() * descriptors;
        if descriptors > 1 && rules > MAX_EXPLAINED_RULES {
            return Err(HttpProblem::bad_request(format!(
                "{descriptors} descriptors have {rules} rules, and at most {MAX_EXPLAINED_RULES} can be explained; send fewer descriptors in one request"
            )));
        }
        let decision = self.gate.peek_matched_async(&policy.apply(request)).await;
        Ok(Explanation::from_decision(&policy, request, &decision, cancelled))
    }

    /// Replaces the active policy. Decisions in progress complete with the previous policy.
    pub fn replace_policy(&self, policy: &Policy) {
        let policy = if self.observe { policy.observing() } else { policy.clone() };
        self.gate.replace_policy(policy);
        let active = ActivePolicy::new(self.gate.policy(), &self.telemetry);
        self.active_policy.store(Arc::new(active));
    }

    /// Records the result of a policy reload, and the error if it failed.
    pub fn record_reload(&self, result: ReloadResult, problem: Option<String>) {
        if let Some(metrics) = self.telemetry.metrics() {
            metrics.record_reload(result);
        }
        self.health.set_policy_problem(problem);
    }

    /// Returns the policy that is active now. A reload replaces it with another one.
    pub fn active_policy(&self) -> Arc<ActivePolicy> {
        self.active_policy.load_full()
    }

    /// Returns the telemetry: metrics, top keys, log and traces.
    pub fn telemetry(&self) -> &Telemetry {
        &self.telemetry
    }

    /// Returns the current readiness of the server, and the reasons for it.
    pub fn readiness(&self) -> Readiness {
        let rules = self.gate.policy().rules().len();
        self.health.readiness(rules, self.observe, self.store())
    }

    /// Returns the part of the server's readiness that does not depend on the store.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Returns `true` if every rule only observes, because of `--observe`.
    pub fn is_observe_only(&self) -> bool {
        self.observe
    }

    /// Returns the store that holds the counters.
    pub fn store(&self) -> &ServerStore {
        self.gate.store().inner()
    }

    /// Returns the number of calls that wait, and the results of the calls that have waited.
    pub fn wait_stats(&self) -> WaitStats {
        self.gate.wait_stats()
    }

    /// Returns the number of keys and other metrics of the store. Includes keys and records of calls that the gate has in
    /// local memory while the store is unavailable.
    pub fn store_stats(&self) -> StoreStats {
        let stats = self.store().stats();
        StoreStats {
            keys: stats.keys + self.gate.local_keys(),
            key_bytes: stats.key_bytes + self.gate.local_memory_bytes(),
            call_records: stats.call_records + self.gate.local_call_records(),
            call_record_bytes: stats.call_record_bytes + self.gate.local_call_record_bytes(),
            evicted_call_records: stats.evicted_call_records
                + self.gate.local_evicted_call_records(),
            ..stats
        }
    }
}

impl ActivePolicy {
    fn new(policy: Arc<Policy>, telemetry: &Telemetry) -> Self {
        let policy_metrics = telemetry.policy_metrics(&policy);
        let attributes = policy.attribute_names();
        let headers = attributes.iter().filter_map(|attribute| {
            let name = attribute.strip_prefix("header.")?.parse().ok()?;
            Some(((*attribute).into(), name))
        });
        let headers = headers.collect();
        Self { policy, policy_metrics, headers }
    }

    /// Returns the rules that have applied to requests since the policy was loaded.
    pub fn rule_use(&self) -> &RuleUse {
        self.policy_metrics.rule_use()
    }

    /// Returns the HTTP headers that the policy names.
    pub fn headers(&self) -> &PolicyHeaders {
        &self.headers
    }
}

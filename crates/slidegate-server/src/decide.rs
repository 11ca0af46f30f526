//! The service behind all listeners: it decides about calls by the active policy, with the counters of the store, and
//! records the decisions.
//!
//! Every call passes through [`Service::decide`]: a listener parses a request to a [`Call`], and renders the
//! [`DecidedCall`]. Nothing in this module knows a protocol. A reload replaces the policy, and keeps the store with its
//! counters.

pub mod active_policy;
pub mod error;
pub mod health;
pub mod names;
pub mod store;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use slidegate::policy::MatchedRules;
use slidegate::wait::WaitStats;
use slidegate::{Decision, Gate, Policy, Reason, Request};

use self::active_policy::ActivePolicy;
use self::error::{CallError, CallErrorKind};
use self::health::{Health, Readiness};
use self::names::RequestNameChecks;
use self::store::ServerStore;
use crate::connections::bodies::BodyBudget;
use crate::permits::token::PermitToken;
use crate::reservations::open::OpenReservations;
use crate::reservations::token::{ReservationToken, TokenSealer};
use crate::telemetry::Telemetry;
use crate::telemetry::metrics::{ReloadResult, StoreStats};

/// A request of a client, as a listener has parsed it.
pub struct Call<'r> {
    pub operation: Operation,
    pub request: Request<'r>,
    pub name_source: AttributeNameSource,
    /// The tokens of the permits that the call releases first.
    pub released_permits: Vec<&'r str>,
    /// Whether the response contains the permit of the request. Otherwise the permit is released after the decision.
    pub returns_permit: bool,
}

/// The effect of a call on the limits that apply to it.
#[derive(Clone, Copy, Debug)]
pub enum Operation {
    /// Charges the cost if every limit allows the request.
    Check,
    /// Returns the decision of a check. Charges nothing.
    Peek,
    /// Records units that have been consumed. Never denies.
    Report,
    /// Checks, and creates the token that settles the charges within `ttl`.
    Reserve { ttl: Duration },
}

/// The origin of the attribute names of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttributeNameSource {
    /// The caller chooses the names.
    Caller,
    /// `/v1/auth` sets fixed names and the headers that the policy names.
    ForwardAuth,
}

/// The decision about a call, with the tokens that its response contains.
pub struct DecidedCall {
    pub decision: Decision<'static>,
    /// The permit of the request; `None` if it has none, or the call does not return it.
    pub permit: Option<PermitToken>,
    /// The token of the reservation; `None` without a reservation, or if the request is denied.
    pub reservation: Option<ReservationToken>,
    /// The units that open reservations hold in the limit that determined the decision about a reservation; `None` if
    /// they are not known.
    pub reserved: Option<u64>,
}

impl<'r> Call<'r> {
    /// Creates a call that neither waits nor returns a permit.
    pub fn new(operation: Operation, request: Request<'r>) -> Self {
        Self {
            operation,
            request,
            name_source: AttributeNameSource::Caller,
            released_permits: Vec::new(),
            returns_permit: false,
        }
    }
}

/// The service that decides about calls and records the decisions in telemetry.
pub struct Service {
    pub(crate) gate: Gate<ServerStore>,
    active_policy: ArcSwap<ActivePolicy>,
    telemetry: Telemetry,
    health: Health,
    /// Creates and opens the tokens of reservations and permits.
    pub(crate) tokens: TokenSealer,
    /// The reservations that are not settled; `None` if other instances may settle them.
    pub(crate) open_reservations: Option<OpenReservations>,
    name_checks: RequestNameChecks,
    options: ServiceOptions,
}

/// The options of a service.
#[derive(Clone, Debug)]
pub struct ServiceOptions {
    /// Whether every rule only observes, because of `--observe`. Applies to reloaded policies, since the rules of the
    /// first policy already observe.
    pub is_observe_only: bool,
    /// The memory of the request bodies of all client listeners.
    pub bodies: BodyBudget,
    /// Whether other instances can settle the reservations of this one.
    pub shares_reservations: bool,
}

impl Service {
    /// Creates a service.
    pub fn new(
        gate: Gate<ServerStore>,
        telemetry: Telemetry,
        health: Health,
        tokens: TokenSealer,
        name_checks: RequestNameChecks,
        options: ServiceOptions,
    ) -> Self {
        let active_policy = ArcSwap::from_pointee(ActivePolicy::new(gate.policy(), &telemetry));
        let open_reservations = (!options.shares_reservations).then(OpenReservations::default);
        Self {
            gate,
            active_policy,
            telemetry,
            health,
            tokens,
            open_reservations,
            name_checks,
            options,
        }
    }

    /// Decides about a call by the policy that the caller has loaded, and records the decision. If the future is
    /// dropped, because the client has disconnected, a waiting call leaves its queue.
    pub async fn decide(
        &self,
        active: &ActivePolicy,
        call: &Call<'_>,
    ) -> Result<DecidedCall, CallError> {
        if !call.released_permits.is_empty() {
            // Boxed, because few calls release permits.
            Box::pin(self.release_permits(&call.released_permits)).await;
        }
        self.check_request(&active.policy, &call.request)?;
        let matched = active.policy.apply(&call.request);
        let matched = match call.operation {
            Operation::Peek => matched.into_peek(),
            Operation::Report => matched.into_report(),
            Operation::Check | Operation::Reserve { .. } => matched,
        };
        let decision = self.gate.decide_async(&matched).await;
        reject_unusable_idempotency_key(&decision)?;
        self.record_decided_call(active, call, &matched, &decision);
        let reservation = match call.operation {
            Operation::Reserve { ttl } => {
                let identity = call.request.call_identity();
                Box::pin(self.open_reservation(&decision, identity, ttl)).await?
            }
            _ => None,
        };
        let reserved = match call.operation {
            Operation::Reserve { .. } => self.reserved_units(&decision, &matched),
            _ => None,
        };
        self.check_attributes(&active.policy, call, &decision)?;
        let permit = match decision.permit() {
            Some(permit) => {
                let is_repeated = decision.repeated_after().is_some();
                self.seal_or_release_permit(call, permit, is_repeated)?
            }
            None => None,
        };
        Ok(DecidedCall { decision, permit, reservation, reserved })
    }

    /// Records a decision in the trace span of the call. The decision of a check is also recorded in the metrics and
    /// the log.
    fn record_decided_call(
        &self,
        active: &ActivePolicy,
        call: &Call<'_>,
        matched: &MatchedRules<'_>,
        decision: &Decision<'static>,
    ) {
        let domain = call.request.domain();
        self.telemetry.record_decision_in_span(domain, decision);
        match (call.operation, decision.repeated_after()) {
            (Operation::Peek | Operation::Report, _) => {}
            (_, Some(_)) => self.telemetry.count_repeated_call(),
            (_, None) => self.telemetry.record_decision(&active.metrics, domain, matched, decision),
        }
    }

    /// Replaces the active policy. Decisions in progress complete with the previous policy.
    pub fn replace_policy(&self, policy: &Policy) {
        let is_observing = self.options.is_observe_only;
        self.gate.replace_policy(if is_observing { policy.observing() } else { policy.clone() });
        let active = ActivePolicy::new(self.gate.policy(), &self.telemetry);
        self.active_policy.swap(Arc::new(active)).log_unlogged_denials();
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

    /// Returns the memory of the request bodies of all client listeners.
    pub fn bodies(&self) -> &BodyBudget {
        &self.options.bodies
    }

    /// Returns the current readiness of the server, and the reasons for it.
    pub fn readiness(&self) -> Readiness {
        let rules = self.gate.policy().rules().len();
        self.health.readiness(rules, self.options.is_observe_only, self.store())
    }

    /// Returns the part of the server's readiness that does not depend on the store.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Returns `true` if every rule only observes, because of `--observe`.
    pub fn is_observe_only(&self) -> bool {
        self.options.is_observe_only
    }

    /// Returns the store that holds the counters.
    pub fn store(&self) -> &ServerStore {
        self.gate.store()
    }

    /// Returns the number of calls that wait, and the results of the calls that have waited.
    pub fn wait_stats(&self) -> WaitStats {
        self.gate.stats().waits
    }

    /// Returns the number of keys and other metrics of the store. Includes keys and records of calls that the gate has
    /// in local memory while the store is unavailable.
    pub fn store_stats(&self) -> StoreStats {
        let (stats, local) = (self.store().stats(), self.gate.stats());
        StoreStats {
            keys: stats.keys + local.local_keys,
            key_bytes: stats.key_bytes + local.local_key_bytes,
            call_records: stats.call_records + local.local_call_records,
            call_record_bytes: stats.call_record_bytes + local.local_call_record_bytes,
            evicted_call_records: stats.evicted_call_records + local.local_evicted_call_records,
            ..stats
        }
    }
}

/// Returns an error if a call was not decided, because its idempotency key cannot be used.
fn reject_unusable_idempotency_key(decision: &Decision<'_>) -> Result<(), CallError> {
    let (kind, detail) = match decision.reason() {
        Some(Reason::IdempotencyKeyReused) => (
            CallErrorKind::Unprocessable,
            "the idempotency key was used for another request; use a new key for each request",
        ),
        Some(Reason::CallInProgress) => (
            CallErrorKind::Conflict,
            "the first call with this idempotency key is still being decided; repeat the call",
        ),
        Some(Reason::RefundWithIdempotencyKey) => (
            CallErrorKind::Unprocessable,
            "a request that refunds units cannot have an idempotency key; send it without the key",
        ),
        _ => return Ok(()),
    };
    Err(CallError::new(kind, detail))
}

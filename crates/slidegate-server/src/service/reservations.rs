//! Calls with an idempotency key, and reservations.

use std::time::Duration;

use slidegate::store::SettleResult;
use slidegate::{
    ActualCosts, CallId, Clock, Decision, IdempotencyKey, OnceDecision, OnceError, Request,
    ReservedCall, WallClock,
};

use super::{ActivePolicy, Service};
use crate::names;
use crate::rendering::problem::HttpProblem;
use crate::request_handler::Operation;
use crate::reservation_token::{Reservation, ReservationOrigin, TokenError};
use crate::store::ServerStore;
use crate::telemetry::metrics::SettlementResult;

/// The decision on a request for a reservation, and its token; `None` if the request is denied.
pub struct ReservedRequest {
    pub decision: Decision<'static>,
    pub token: Option<ReservationToken>,
}

/// The token of a reservation, and the time for which it is valid.
pub struct ReservationToken {
    pub text: String,
    pub ttl: Duration,
}

impl Service {
    /// Decides about a request with an idempotency key, or returns the decision of an earlier call with this key. Returns
    /// also the time for which the request waited: a check waits for up to `max_wait`, or the maximum of the server.
    pub async fn decide_once(
        &self,
        operation: Operation<'_>,
        request: &Request<'_>,
        key: &IdempotencyKey<'_>,
        max_wait: Duration,
    ) -> Result<(Decision<'static>, Duration), OnceError> {
        let active = self.active_policy.load_full();
        let decision = match operation {
            Operation::Peek => self.peek(request).await,
            Operation::Report => self.gate.report_once_async(request, key).await?,
            Operation::Check | Operation::CheckWithPolicy(_) => {
                self.check_once(&active, request, key).await?.decision
            }
            Operation::CheckWithin => {
                let max_wait = max_wait.min(self.max_wait);
                let (once, waited) =
                    self.check_once_within(&active, request, key, max_wait).await?;
                return Ok((once.decision, waited));
            }
        };
        Ok((decision, Duration::ZERO))
    }

    async fn check_once(
        &self,
        active: &ActivePolicy,
        request: &Request<'_>,
        key: &IdempotencyKey<'_>,
    ) -> Result<OnceDecision, OnceError> {
        Ok(self.check_once_within(active, request, key, Duration::ZERO).await?.0)
    }

    async fn check_once_within(
        &self,
        active: &ActivePolicy,
        request: &Request<'_>,
        key: &IdempotencyKey<'_>,
        max_wait: Duration,
    ) -> Result<(OnceDecision, Duration), OnceError> {
        let matched = active.policy.apply(request);
        let identity = request.identify(key);
        let check =
            self.gate.check_matched_once_within_async(request, &matched, &identity, max_wait);
        let (once, waited) = check.await?;
        match once.repeated_after {
            None => self.telemetry.record_decision(
                &active.policy_metrics,
                request.domain(),
                &matched,
                &once.decision,
            ),
            Some(_) => self.count_repeated_call(),
        }
        Ok((once, waited))
    }

    fn count_repeated_call(&self) {
        if let Some(metrics) = self.telemetry.metrics() {
            metrics.repeated_calls.inc();
        }
    }

    /// Decides about a request, charges its estimated cost, and creates the token with which the cost is corrected
    /// later, within `ttl`.
    pub async fn reserve(
        &self,
        request: &Request<'_>,
        key: Option<IdempotencyKey<'_>>,
        ttl: Duration,
    ) -> Result<ReservedRequest, HttpProblem> {
        let active = self.active_policy.load_full();
        let (id, once) = match key {
            // The record of the call must live at least as long as the token.
            Some(key) => {
                let key = key.with_ttl(ttl.max(slidegate::DEFAULT_CALL_TTL));
                let once = self.check_once(&active, request, &key).await?;
                (request.identify(&key).id, once)
            }
            None => {
                let decision = self.check_with_policy(&active, request).await;
                (CallId::unique(), OnceDecision { decision, repeated_after: None })
            }
        };
        let OnceDecision { decision, repeated_after } = once;
        if !decision.is_allowed() {
            return Ok(ReservedRequest { decision, token: None });
        }
        let call = ReservedCall::from_decision(id, &decision);
        if repeated_after.is_some() && call.is_empty() && decision.limits().next().is_none() {
            return Err(HttpProblem::conflict(
                "the request with this `idempotency_key` was reserved under another policy, so its reservation cannot be repeated; its estimate stays charged. Send the request with a new key",
            ));
        }
        let ttl = ttl.saturating_sub(repeated_after.unwrap_or_default());
        let reservation = Reservation {
            call,
            expires_at: WallClock.now().after(ttl),
            origin: match self.store() {
                _ if decision.is_degraded() => ReservationOrigin::FallbackOfThisInstance,
                ServerStore::Redis(_) => ReservationOrigin::SharedStore,
                ServerStore::Memory(_) | ServerStore::Cluster(_) => {
                    ReservationOrigin::StoreOfThisInstance
                }
            },
        };
        match self.tokens.seal(&reservation) {
            Ok(text) => {
                Ok(ReservedRequest { decision, token: Some(ReservationToken { text, ttl }) })
            }
            Err(error) => {
                let cancelled = reservation.call.settlement(&ActualCosts::none(), ttl);
                // If this fails, the estimate stays charged, as if the caller had not settled.
                let _ = self.gate.settle_call_async(&cancelled, decision.is_degraded()).await;
                Err(HttpProblem::unprocessable(error.to_string()))
            }
        }
    }

    /// Corrects the charges of a reservation to its actual costs, once.
    pub async fn settle(&self, token: &str, actual: &ActualCosts<'_>) -> Result<(), HttpProblem> {
        let (result, response) = match self.tokens.open(token) {
            Err(error) => match error {
                TokenError::Invalid => {
                    (SettlementResult::Invalid, Err(HttpProblem::bad_request(error.to_string())))
                }
                TokenError::Expired => {
                    (SettlementResult::Expired, Err(HttpProblem::gone(error.to_string())))
                }
                TokenError::OtherInstance => (
                    SettlementResult::OtherInstance,
                    Err(HttpProblem::misdirected(error.to_string())),
                ),
            },
            Ok((reservation, remaining)) => self.apply(&reservation, remaining, actual).await,
        };
        if let Some(metrics) = self.telemetry.metrics() {
            metrics.count_settlement(result);
        }
        response
    }

    async fn apply(
        &self,
        reservation: &Reservation,
        remaining: Duration,
        actual: &ActualCosts<'_>,
    ) -> (SettlementResult, Result<(), HttpProblem>) {
        let policy = &self.active_policy.load().policy;
        if let Err(error) = names::check_actual_costs(policy, &reservation.call, actual) {
            self.log_rejected_request(&error);
            return (SettlementResult::UnknownCost, Err(error.into()));
        }
        let settlement = reservation.call.settlement(actual, remaining);
        let is_degraded = reservation.origin == ReservationOrigin::FallbackOfThisInstance;
        match self.gate.settle_call_async(&settlement, is_degraded).await {
            Ok(SettleResult::Settled) => (SettlementResult::Settled, Ok(())),
            Ok(SettleResult::Repeated) => (SettlementResult::Repeated, Ok(())),
            Ok(SettleResult::OtherValue) => (
                SettlementResult::Conflict,
                Err(HttpProblem::conflict(
                    "`reservation` has been settled with other costs, which stay; settle each reservation with one value",
                )),
            ),
            Ok(SettleResult::Forgotten) => (
                SettlementResult::Forgotten,
                Err(HttpProblem::gone(
                    "too many newer calls are remembered to know whether `reservation` has been settled, so its charge stays; raise --max-call-records or --max-memory",
                )),
            ),
            Err(error) => (
                SettlementResult::StoreUnavailable,
                Err(HttpProblem::unavailable(format!(
                    "{error}; repeat the settlement: it is applied once"
                ))),
            ),
        }
    }
}

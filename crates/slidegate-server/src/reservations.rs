//! Reservations: an estimate is charged first, and settled once when the actual costs are known.

pub mod body;
pub mod metric;
pub mod open;
pub mod token;

use std::time::Duration;

use slidegate::clock::{Clock, WallClock};
use slidegate::gate::ReservedCall;
use slidegate::policy::MatchedRules;
use slidegate::store::{CallId, CallIdentity, SettleResult};
use slidegate::{ActualCosts, Decision, Store};

use self::metric::SettlementResult;
use self::token::{ChargeLocation, Reservation, ReservationToken, TokenError};
use crate::decide::Service;
use crate::decide::error::{CallError, CallErrorKind};
use crate::decide::names::check_actual_costs;
use crate::decide::store::ServerStore;

impl Service {
    /// Creates the token of a reservation, with which the charged estimate is corrected within `ttl`. Returns `None` if
    /// the request is denied. `identity` identifies a call with an idempotency key.
    pub(crate) async fn open_reservation(
        &self,
        decision: &Decision<'static>,
        identity: Option<&CallIdentity>,
        ttl: Duration,
    ) -> Result<Option<ReservationToken>, CallError> {
        if !decision.is_allowed() {
            return Ok(None);
        }
        let id = identity.map_or_else(CallId::unique, |identity| identity.id);
        let call = ReservedCall::from_decision(id, decision);
        let repeated_after = decision.repeated_after();
        if repeated_after.is_some() && call.is_empty() && decision.limits().next().is_none() {
            return Err(CallError::new(
                CallErrorKind::Conflict,
                "the request with this `idempotency_key` was reserved under another policy, so its reservation cannot be repeated; its estimate stays charged. Send the request with a new key",
            ));
        }
        let ttl = ttl.saturating_sub(repeated_after.unwrap_or_default());
        let reservation = Reservation {
            call,
            expires_at: WallClock.now().after(ttl),
            origin: match self.store() {
                _ if decision.is_degraded() => ChargeLocation::FallbackOfThisInstance,
                ServerStore::Redis(..) => ChargeLocation::SharedStore,
                ServerStore::Memory(..) | ServerStore::Cluster(..) => {
                    ChargeLocation::StoreOfThisInstance
                }
            },
        };
        match self.tokens.seal(&reservation) {
            Ok(text) => {
                // A repetition opens nothing: its reservation is open already, or has been settled.
                if let Some(open) = &self.open_reservations
                    && repeated_after.is_none()
                {
                    open.open(&reservation, WallClock.now());
                }
                Ok(Some(ReservationToken { text, ttl }))
            }
            Err(error) => {
                let (none, is_degraded) = (ActualCosts::cancelled(), decision.is_degraded());
                // If reverting the charges fails, the estimate stays charged, as if the caller had not settled.
                let _ = reservation.call.settle_async(&self.gate, &none, ttl, is_degraded).await;
                Err(error.into())
            }
        }
    }

    /// Returns the units that open reservations hold in the limit that determined a decision. Returns `None` if no
    /// limit determined it, if other instances may settle reservations, or if the store was unavailable.
    pub(crate) fn reserved_units(
        &self,
        decision: &Decision<'_>,
        matched: &MatchedRules<'_>,
    ) -> Option<u64> {
        let open = self.open_reservations.as_ref().filter(|_| !decision.is_degraded())?;
        let status = decision.binding()?;
        let counter = self.store().counter_id(&status.find_hit(matched)?)?;
        let used = status.limit().capacity().saturating_add_signed(-status.outcome().free());
        // The result is at most the units in use, because reserved units that have left the window are settled without
        // effect.
        Some(open.reserved_units(&counter, WallClock.now()).min(used))
    }

    /// Corrects the charges of a reservation to its actual costs, once, and counts the result.
    pub async fn settle(&self, token: &str, actual: &ActualCosts<'_>) -> Result<(), CallError> {
        let (result, response) = match self.tokens.open(token) {
            Ok((reservation, remaining)) => {
                self.settle_reservation(&reservation, remaining, actual).await
            }
            Err(error) => {
                let (result, kind) = match error {
                    TokenError::Invalid => (SettlementResult::Invalid, CallErrorKind::Invalid),
                    TokenError::Expired => (SettlementResult::Expired, CallErrorKind::Ended),
                    TokenError::OtherInstance => {
                        (SettlementResult::OtherInstance, CallErrorKind::OtherInstance)
                    }
                };
                (result, Err(CallError::new(kind, error)))
            }
        };
        if let Some(metrics) = self.telemetry().metrics() {
            metrics.settlements.count(result);
        }
        response
    }

    async fn settle_reservation(
        &self,
        reservation: &Reservation,
        remaining: Duration,
        actual: &ActualCosts<'_>,
    ) -> (SettlementResult, Result<(), CallError>) {
        let policy = self.gate.policy();
        if let Err(error) = check_actual_costs(&policy, &reservation.call, actual) {
            self.log_rejected_request(&error);
            return (SettlementResult::UnknownCost, Err(error));
        }
        let is_degraded = reservation.origin == ChargeLocation::FallbackOfThisInstance;
        let call = &reservation.call;
        let settled = call.settle_async(&self.gate, actual, remaining, is_degraded).await;
        if let (Some(open), Ok(_)) = (&self.open_reservations, &settled) {
            open.settle(call.id());
        }
        let (result, kind, detail) = match settled {
            Ok(SettleResult::Settled) => {
                if actual.is_cancelled() {
                    self.count_cancelled_permit(call, is_degraded);
                }
                return (SettlementResult::Settled, Ok(()));
            }
            Ok(SettleResult::Repeated) => return (SettlementResult::Repeated, Ok(())),
            Ok(SettleResult::OtherValue) => (
                SettlementResult::Conflict,
                CallErrorKind::Conflict,
                "`reservation` has been settled with other costs, which stay; settle each reservation with one value".to_owned(),
            ),
            Ok(SettleResult::Forgotten) => (
                SettlementResult::Forgotten,
                CallErrorKind::Ended,
                "too many newer calls are remembered to know whether `reservation` has been settled, so its charge stays; raise --max-call-records or --max-memory".to_owned(),
            ),
            Err(error) => (
                SettlementResult::StoreUnavailable,
                CallErrorKind::StoreUnavailable,
                format!("{error}; repeat the settlement: it is applied once"),
            ),
        };
        (result, Err(CallError::new(kind, detail)))
    }
}

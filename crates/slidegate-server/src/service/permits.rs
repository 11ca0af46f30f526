//! Permits: the tokens of requests in flight, and their releases and renewals.

use std::time::Duration;

use slidegate::{Decision, Permit, PermitChange};

use super::Service;
use crate::permit_token::PermitTokenError;
use crate::rendering::problem::HttpProblem;
use crate::reservation_token::SealError;
use crate::store::ServerStore;
use crate::telemetry::metrics::PermitResult;

/// The token of a permit, and the time after which the permit expires unless it is renewed.
pub struct PermitToken {
    pub text: String,
    pub ttl: Duration,
}

impl Service {
    /// Creates the token of the permit of a decision; `None` if the decision has no permit. If no token can be created,
    /// the permit is released.
    pub fn seal_permit(&self, decision: &Decision<'_>) -> Result<Option<PermitToken>, SealError> {
        let Some(permit) = decision.permit() else { return Ok(None) };
        let is_shared = matches!(self.store(), ServerStore::Redis(_)) && !permit.is_degraded();
        match self.tokens.seal_permit(&permit, is_shared) {
            Ok(text) => {
                if let Some(metrics) = self.telemetry.metrics() {
                    metrics.permits.on_granted(&permit);
                }
                Ok(Some(PermitToken { text, ttl: permit.ttl() }))
            }
            Err(error) => {
                self.gate.release_later(permit);
                Err(error)
            }
        }
    }

    /// Releases the permit of a decision whose response cannot contain it. The request is then not counted while it is in
    /// flight.
    pub fn release_unreturned_permit(&self, decision: &Decision<'_>) {
        if let Some(permit) = decision.permit() {
            self.gate.release_later(permit);
        }
    }

    /// Releases the permit of a token. Returns whether it was live.
    pub async fn release(&self, token: &str) -> Result<bool, HttpProblem> {
        let (_, was_live) = self.change_permit(token, PermitChange::Release).await?;
        Ok(was_live)
    }

    /// Releases the permits of tokens. A permit that cannot be released counts until it expires; the failure is counted in
    /// the metrics.
    pub async fn release_all(&self, tokens: &[&str]) {
        for token in tokens {
            drop(self.release(token).await);
        }
    }

    /// Renews the permit of a token. Returns the time after which it expires.
    pub async fn renew(&self, token: &str) -> Result<Duration, HttpProblem> {
        match self.change_permit(token, PermitChange::Renew).await? {
            (permit, true) => Ok(permit.ttl()),
            (_, false) => Err(HttpProblem::gone(
                "`permit` has been released or has expired, so another request may have its place; check again for a new one, and renew it within `permit_ttl_ms`",
            )),
        }
    }

    /// Releases or renews the permit of a token. Returns the permit, and whether it was live.
    async fn change_permit(
        &self,
        token: &str,
        change: PermitChange,
    ) -> Result<(Permit, bool), HttpProblem> {
        let changed = async {
            let permit = self.tokens.open_permit(token).map_err(|error| match error {
                PermitTokenError::Invalid => {
                    (PermitResult::Invalid, HttpProblem::bad_request(error.to_string()))
                }
                PermitTokenError::OtherInstance => {
                    (PermitResult::OtherInstance, HttpProblem::misdirected(error.to_string()))
                }
            })?;
            let was_live = match change {
                PermitChange::Release => self.gate.release_async(&permit).await,
                PermitChange::Renew => self.gate.renew_async(&permit).await,
            };
            let was_live = was_live.map_err(|error| {
                let detail = format!("{error}; repeat the call, or let the permit expire");
                (PermitResult::StoreUnavailable, HttpProblem::unavailable(detail))
            })?;
            Ok((permit, was_live))
        };
        let changed = changed.await;
        if let Some(metrics) = self.telemetry.metrics() {
            match &changed {
                Ok((permit, was_live)) => metrics.permits.on_changed(permit, change, *was_live),
                Err((result, _)) => metrics.permits.count(*result),
            }
        }
        changed.map_err(|(_, problem)| problem)
    }
}

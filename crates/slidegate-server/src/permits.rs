//! Permits: the tokens of requests in flight, and their releases and renewals.

pub mod body;
pub mod metric;
pub mod token;

use std::time::Duration;

use slidegate::Permit;
use slidegate::gate::ReservedCall;
use slidegate::store::PermitChange;

use self::metric::PermitResult;
use self::token::{PermitToken, PermitTokenError};
use crate::decide::error::{CallError, CallErrorKind};
use crate::decide::store::ServerStore;
use crate::decide::{Call, Service};

impl Service {
    /// Returns the token of a permit for the response to its call; `None` if the response does not contain it. A permit
    /// that the response cannot contain is released: the request is then not counted while it is in flight.
    pub(crate) fn seal_or_release_permit(
        &self,
        call: &Call<'_>,
        permit: Permit,
        is_repeated: bool,
    ) -> Result<Option<PermitToken>, CallError> {
        if !call.returns_permit {
            permit.release_later(&self.gate);
            return Ok(None);
        }
        let is_shared = matches!(self.store(), ServerStore::Redis(..)) && !permit.is_degraded();
        match self.tokens.seal_permit(&permit, is_shared) {
            Ok(text) => {
                if let Some(metrics) = self.telemetry().metrics()
                    && !is_repeated
                {
                    metrics.permits.on_granted(&permit);
                }
                Ok(Some(PermitToken { text, ttl: permit.ttl() }))
            }
            Err(error) => {
                permit.release_later(&self.gate);
                Err(error.into())
            }
        }
    }

    /// Counts the release of the permit of a reservation, which was cancelled and so has released it.
    pub(crate) fn count_cancelled_permit(&self, call: &ReservedCall, is_degraded: bool) {
        let permit = call.permit(is_degraded);
        if let (Some(metrics), Some(permit)) = (self.telemetry().metrics(), permit) {
            metrics.permits.on_cancelled(&permit);
        }
    }

    /// Releases the permits of tokens. A permit that cannot be released counts until it expires; the failure is counted
    /// in the metrics.
    pub(crate) async fn release_permits(&self, tokens: &[&str]) {
        for token in tokens {
            drop(self.release_permit(token).await);
        }
    }

    /// Releases the permit of a token. Returns whether it was live.
    pub async fn release_permit(&self, token: &str) -> Result<bool, CallError> {
        let (_, was_live) = self.change_permit(token, PermitChange::Release).await?;
        Ok(was_live)
    }

    /// Renews the permit of a token. Returns the time after which it expires.
    pub async fn renew_permit(&self, token: &str) -> Result<Duration, CallError> {
        match self.change_permit(token, PermitChange::Renew).await? {
            (permit, true) => Ok(permit.ttl()),
            (_, false) => Err(CallError::new(
                CallErrorKind::Ended,
                "`permit` has been released or has expired, so another request may have its place; check again for a new one, and renew it within `permit_ttl_ms`",
            )),
        }
    }

    /// Releases or renews the permit of a token, and counts the result. Returns the permit, and whether it was live.
    async fn change_permit(
        &self,
        token: &str,
        change: PermitChange,
    ) -> Result<(Permit, bool), CallError> {
        let changed = self.change_permit_in_store(token, change).await;
        if let Some(metrics) = self.telemetry().metrics() {
            match &changed {
                Ok((permit, was_live)) => {
                    metrics.permits.on_released_or_renewed(permit, change, *was_live)
                }
                Err((result, _)) => metrics.permits.count(*result),
            }
        }
        changed.map_err(|(_, error)| error)
    }

    async fn change_permit_in_store(
        &self,
        token: &str,
        change: PermitChange,
    ) -> Result<(Permit, bool), (PermitResult, CallError)> {
        let permit = self.tokens.open_permit(token).map_err(|error| {
            let (result, kind) = match error {
                PermitTokenError::Invalid => (PermitResult::Invalid, CallErrorKind::Invalid),
                PermitTokenError::OtherInstance => {
                    (PermitResult::OtherInstance, CallErrorKind::OtherInstance)
                }
            };
            (result, CallError::new(kind, error))
        })?;
        let was_live = match change {
            PermitChange::Release => permit.release_async(&self.gate).await,
            PermitChange::Renew => permit.renew_async(&self.gate).await,
        };
        let was_live = was_live.map_err(|error| {
            let detail = format!("{error}; repeat the call, or let the permit expire");
            let error = CallError::new(CallErrorKind::StoreUnavailable, detail);
            (PermitResult::StoreUnavailable, error)
        })?;
        Ok((permit, was_live))
    }
}

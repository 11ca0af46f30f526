//! The gRPC service `grpc.health.v1.Health`. It reports the same readiness as `/readyz` over HTTP.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, Stream};
use tokio::time::sleep;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::rls;
use crate::service::Service;

/// Interval at which each stream of a `Watch` call checks whether the status has changed.
const HEALTH_STATUS_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The gRPC health service, which reports the readiness of the server.
pub struct HealthService {
    service: Arc<Service>,
}

impl HealthService {
    /// Creates the gRPC service that reports the readiness of `service`.
    pub fn new(service: Arc<Service>) -> Self {
        Self { service }
    }
}

#[tonic::async_trait]
impl Health for HealthService {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let name = request.into_inner().service;
        match is_service_with_health_status(&name) {
            true => Ok(Response::new(health_response(serving_status(&self.service)))),
            false => Err(Status::not_found(format!(
                "unknown service `{name}`; send an empty name or {}",
                rls::SERVICE_NAME
            ))),
        }
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let watch = HealthWatchState {
            service: self.service.clone(),
            has_health_status: is_service_with_health_status(&request.into_inner().service),
            last_sent: None,
        };
        Ok(Response::new(Box::pin(stream::unfold(watch, HealthWatchState::wait_for_status_change))))
    }
}

/// The state of the stream of a `Watch` call, which sends the status of a service after each change.
struct HealthWatchState {
    service: Arc<Service>,
    has_health_status: bool,
    /// The status that was sent last. `None` before the first status.
    last_sent: Option<ServingStatus>,
}

impl HealthWatchState {
    /// Waits until the status changes, and returns the new status. Returns `None` if the server is stopping and the
    /// current status has already been sent. `None` ends the stream, so that the client does not keep the connection
    /// open.
    async fn wait_for_status_change(
        mut self,
    ) -> Option<(Result<HealthCheckResponse, Status>, Self)> {
        loop {
            let now = match self.has_health_status {
                true => serving_status(&self.service),
                false => ServingStatus::ServiceUnknown,
            };
            if self.last_sent.replace(now) != Some(now) {
                return Some((Ok(health_response(now)), self));
            }
            if self.service.health().is_draining() {
                return None;
            }
            sleep(HEALTH_STATUS_POLL_INTERVAL).await;
        }
    }
}

fn is_service_with_health_status(name: &str) -> bool {
    matches!(name, "" | rls::SERVICE_NAME)
}

fn serving_status(service: &Service) -> ServingStatus {
    match service.readiness().is_ready() {
        true => ServingStatus::Serving,
        false => ServingStatus::NotServing,
    }
}

fn health_response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

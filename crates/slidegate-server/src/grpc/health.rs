//! `grpc.health.v1.Health`: whether the server should be asked, as `/readyz` tells it over HTTP.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, Stream};
use tokio::time::sleep;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::health::Readiness;
use crate::rls;
use crate::service::Service;

/// How often it is seen, for those who watch, whether something has changed.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);

/// Tells how the service is.
pub struct HealthService {
    service: Arc<Service>,
}

impl HealthService {
    /// Tells how this one is.
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
        match is_known(&name) {
            true => Ok(Response::new(health_response(status(&self.service)))),
            false => Err(Status::not_found(format!("there is no service `{name}`"))),
        }
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let watch = HealthWatch {
            service: self.service.clone(),
            is_known: is_known(&request.into_inner().service),
            last_sent: None,
        };
        Ok(Response::new(Box::pin(stream::unfold(watch, HealthWatch::next_change))))
    }
}

/// Who watches what.
struct HealthWatch {
    service: Arc<Service>,
    is_known: bool,
    /// What was told last.
    last_sent: Option<ServingStatus>,
}

impl HealthWatch {
    /// Waits for a change. Before the server stops there is a last one: nobody should keep its connection.
    async fn next_change(mut self) -> Option<(Result<HealthCheckResponse, Status>, Self)> {
        loop {
            let now = match self.is_known {
                true => status(&self.service),
                false => ServingStatus::ServiceUnknown,
            };
            if self.last_sent.replace(now) != Some(now) {
                return Some((Ok(health_response(now)), self));
            }
            if self.service.health().is_draining() {
                return None;
            }
            sleep(WATCH_INTERVAL).await;
        }
    }
}

fn is_known(name: &str) -> bool {
    matches!(name, "" | rls::SERVICE)
}

fn status(service: &Service) -> ServingStatus {
    match Readiness::from_service(service).is_ready() {
        true => ServingStatus::Serving,
        false => ServingStatus::NotServing,
    }
}

fn health_response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

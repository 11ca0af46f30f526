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
const LOOK: Duration = Duration::from_millis(500);

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
            true => Ok(Response::new(told(status(&self.service)))),
            false => Err(Status::not_found(format!("there is no service `{name}`"))),
        }
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let watched = Watched {
            service: self.service.clone(),
            is_known: is_known(&request.into_inner().service),
            told: None,
        };
        Ok(Response::new(Box::pin(stream::unfold(watched, Watched::change))))
    }
}

/// Who watches what.
struct Watched {
    service: Arc<Service>,
    is_known: bool,
    /// What was told last.
    told: Option<ServingStatus>,
}

impl Watched {
    /// Waits for a change. Before the server stops there is a last one: nobody should keep its connection.
    async fn change(mut self) -> Option<(Result<HealthCheckResponse, Status>, Self)> {
        loop {
            let now = match self.is_known {
                true => status(&self.service),
                false => ServingStatus::ServiceUnknown,
            };
            if self.told.replace(now) != Some(now) {
                return Some((Ok(told(now)), self));
            }
            if self.service.health().is_draining() {
                return None;
            }
            sleep(LOOK).await;
        }
    }
}

fn is_known(name: &str) -> bool {
    matches!(name, "" | rls::SERVICE)
}

fn status(service: &Service) -> ServingStatus {
    match Readiness::of(service).is_ready() {
        true => ServingStatus::Serving,
        false => ServingStatus::NotServing,
    }
}

fn told(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

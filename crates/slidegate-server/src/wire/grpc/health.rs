//! The gRPC service `grpc.health.v1.Health`. It reports the same readiness as `/readyz` over HTTP.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::server::{HealthReporter, health_reporter};

use crate::decide::Service;
use crate::wire::rls;

/// Interval at which the status is updated.
const STATUS_UPDATE_INTERVAL: Duration = Duration::from_millis(500);

/// The names for which clients can request a status: the whole server, the rate limit service, and the name that probes of
/// Envoy's reference server use.
const SERVICE_NAMES: [&str; 3] = ["", rls::SERVICE_NAME, "ratelimit"];

/// Creates the service, and starts a task that updates its status.
pub async fn start(service: &Arc<Service>) -> HealthServer<impl Health> {
    let (reporter, server) = health_reporter();
    set_status(&reporter, serving_status(service)).await;
    let tasks = service.health().background_tasks().clone();
    let service = service.clone();
    let run = async move || update_status(reporter.clone(), &service).await;
    tokio::spawn(tasks.keep_running("gRPC health", run));
    server
}

/// Updates the status after each change, until the server stops.
async fn update_status(mut reporter: HealthReporter, service: &Service) {
    let mut reported = None;
    while !service.health().is_draining() {
        let status = serving_status(service);
        // Only changes are reported, because each update is a message to all clients that watch the status.
        if reported.replace(status) != Some(status) {
            set_status(&reporter, status).await;
        }
        sleep(STATUS_UPDATE_INTERVAL).await;
    }
    set_status(&reporter, ServingStatus::NotServing).await;
    // Ends the streams of `Watch` calls, so that they do not keep their connections open.
    for name in SERVICE_NAMES {
        reporter.clear_service_status(name).await;
    }
    pending().await
}

async fn set_status(reporter: &HealthReporter, status: ServingStatus) {
    for name in SERVICE_NAMES {
        reporter.set_service_status(name, status).await;
    }
}

fn serving_status(service: &Service) -> ServingStatus {
    if service.readiness().is_ready() { ServingStatus::Serving } else { ServingStatus::NotServing }
}

//! Tests of the gRPC health service, of reflection, and of calls during the shutdown of the server.

use std::time::Duration;

use tokio::time::timeout;
use tonic::{Code, Request};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use crate::common::Server;
use crate::grpc::client::{
    Client, SHOULD_RATE_LIMIT_PATH, connect_channel, new_descriptor, new_request,
};
use crate::grpc::raw::{RawGrpcConnection, frame_message};

const POLICY: &str = "rules: [{ name: per-user, domain: api, per: [user], limits: [9/h] }]";
const RATE_LIMIT_SERVICE_NAME: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// Maximum wait for a response. Much longer than any test needs, so that a broken test fails instead of hanging.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns a request to the gRPC health service for the status of `service`.
fn health_request(service: &str) -> Request<HealthCheckRequest> {
    Request::new(HealthCheckRequest { service: service.into() })
}

#[tokio::test]
async fn health_check_reports_server_and_service_status() {
    let server = Server::start_with_grpc(POLICY, &[]);
    let client = Client::connect(&server).await;
    let check = async |service| {
        client
            .call::<_, HealthCheckResponse>("/grpc.health.v1.Health/Check", health_request(service))
            .await
            .map(|response| response.status())
    };
    assert_eq!(check("").await.unwrap(), ServingStatus::Serving);
    assert_eq!(check(RATE_LIMIT_SERVICE_NAME).await.unwrap(), ServingStatus::Serving);
    assert_eq!(check("ratelimit").await.unwrap(), ServingStatus::Serving);
    assert_eq!(check("another").await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn health_watch_reports_shutdown_without_delaying_it() {
    let server = Server::start_with_grpc(POLICY, &["--shutdown-grace", "20s"]);
    let mut watching = HealthClient::new(connect_channel(&server).await);
    let mut watched = watching.watch(health_request("")).await.unwrap().into_inner();
    assert_eq!(watched.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    server.send_signal("TERM");
    let last = timeout(RESPONSE_TIMEOUT, watched.message()).await.unwrap().unwrap().unwrap();
    assert_eq!(last.status(), ServingStatus::NotServing);
    assert!(timeout(RESPONSE_TIMEOUT, watched.message()).await.unwrap().unwrap().is_none());
    server.wait_for_log("stopped");
    assert_eq!(server.wait_for_exit_code(), Some(0));
}

#[tokio::test]
async fn call_in_flight_completes_during_shutdown() {
    let server = Server::start_with_grpc(POLICY, &["--shutdown-grace", "20s"]);
    let client = RawGrpcConnection::connect(server.grpc_address()).await;
    let mut call = client.start_call(SHOULD_RATE_LIMIT_PATH).await.unwrap();
    // After this response, the server has received the call as well.
    client.check(&new_request([new_descriptor(&[("user", "ann")])])).await;
    server.send_signal("TERM");
    server.wait_for_log("stopping");
    let message = prost::Message::encode_to_vec(&new_request([new_descriptor(&[("user", "ann")])]));
    call.body.send_data(frame_message(&message).into(), true).unwrap();
    let outcome = timeout(RESPONSE_TIMEOUT, call.finish()).await.unwrap().unwrap();
    assert_eq!(outcome.code, "0", "{outcome:?}");
    server.wait_for_log("stopped");
    assert_eq!(server.wait_for_exit_code(), Some(0));
}

#[tokio::test]
async fn reflection_lists_service_and_messages() {
    let server = Server::start_with_grpc(POLICY, &[]);
    let mut client = ServerReflectionClient::new(connect_channel(&server).await);
    let mut reflect = async |message| {
        let request =
            ServerReflectionRequest { host: String::new(), message_request: Some(message) };
        let requests = tokio_stream::once(request);
        let mut responses = client.server_reflection_info(requests).await.unwrap().into_inner();
        responses.message().await.unwrap().unwrap().message_response.unwrap()
    };
    let MessageResponse::ListServicesResponse(listed) =
        reflect(MessageRequest::ListServices(String::new())).await
    else {
        panic!("no services")
    };
    let names: Vec<&str> = listed.service.iter().map(|service| service.name.as_str()).collect();
    assert!(
        names.contains(&RATE_LIMIT_SERVICE_NAME) && names.contains(&"grpc.health.v1.Health"),
        "{names:?}"
    );
    let found = reflect(MessageRequest::FileContainingSymbol(RATE_LIMIT_SERVICE_NAME.into())).await;
    assert!(matches!(found, MessageResponse::FileDescriptorResponse(_)), "{found:?}");
}

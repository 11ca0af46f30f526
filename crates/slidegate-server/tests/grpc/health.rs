//! Whether the server should be asked, what it can be asked, and how it stops.

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

use crate::client::{Client, PATH, channel, descriptor, request};
use crate::common::Server;
use crate::raw::{Raw, framed};

const POLICY: &str = "rules: [{ name: per-user, domain: api, per: [user], limits: [9/h] }]";
const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// Far more than anything takes: a test should fail, not hang.
const PATIENCE: Duration = Duration::from_secs(30);

fn of(service: &str) -> Request<HealthCheckRequest> {
    Request::new(HealthCheckRequest { service: service.into() })
}

#[tokio::test]
async fn health_is_of_the_server_and_of_the_service() {
    let server = Server::start_with_grpc(POLICY, &[]);
    let client = Client::of(&server).await;
    let check = async |service| {
        client
            .call::<_, HealthCheckResponse>("/grpc.health.v1.Health/Check", of(service))
            .await
            .map(|answer| answer.status())
    };
    assert_eq!(check("").await.unwrap(), ServingStatus::Serving);
    assert_eq!(check(SERVICE).await.unwrap(), ServingStatus::Serving);
    assert_eq!(check("another").await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn who_watches_is_told_that_the_server_stops_and_keeps_it_from_nothing() {
    let server = Server::start_with_grpc(POLICY, &["--shutdown-grace", "20s"]);
    let mut watching = HealthClient::new(channel(&server).await);
    let mut watched = watching.watch(of("")).await.unwrap().into_inner();
    assert_eq!(watched.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    server.signal("TERM");
    let last = timeout(PATIENCE, watched.message()).await.unwrap().unwrap().unwrap();
    assert_eq!(last.status(), ServingStatus::NotServing);
    assert!(timeout(PATIENCE, watched.message()).await.unwrap().unwrap().is_none());
    server.wait_for_log("stopped");
    assert_eq!(server.exit_code(), Some(0));
}

#[tokio::test]
async fn a_call_under_way_is_answered_while_the_server_stops() {
    let server = Server::start_with_grpc(POLICY, &["--shutdown-grace", "20s"]);
    let client = Raw::connect(server.grpc()).await;
    let mut call = client.begin(PATH).await.unwrap();
    // So that the call is known to be there.
    client.ask(&request([descriptor(&[("user", "ann")])])).await;
    server.signal("TERM");
    server.wait_for_log("stopping");
    let message = prost::Message::encode_to_vec(&request([descriptor(&[("user", "ann")])]));
    call.body.send_data(framed(&message).into(), true).unwrap();
    let ended = timeout(PATIENCE, call.end()).await.unwrap().unwrap();
    assert_eq!(ended.code, "0", "{ended:?}");
    server.wait_for_log("stopped");
    assert_eq!(server.exit_code(), Some(0));
}

#[tokio::test]
async fn reflection_tells_of_the_service_and_its_messages() {
    let server = Server::start_with_grpc(POLICY, &[]);
    let mut client = ServerReflectionClient::new(channel(&server).await);
    let mut ask = async |question| {
        let request =
            ServerReflectionRequest { host: String::new(), message_request: Some(question) };
        let asked = tokio_stream::once(request);
        let mut answers = client.server_reflection_info(asked).await.unwrap().into_inner();
        answers.message().await.unwrap().unwrap().message_response.unwrap()
    };
    let MessageResponse::ListServicesResponse(listed) =
        ask(MessageRequest::ListServices(String::new())).await
    else {
        panic!("no services")
    };
    let names: Vec<&str> = listed.service.iter().map(|service| service.name.as_str()).collect();
    assert!(names.contains(&SERVICE) && names.contains(&"grpc.health.v1.Health"), "{names:?}");
    let found = ask(MessageRequest::FileContainingSymbol(SERVICE.into())).await;
    assert!(matches!(found, MessageResponse::FileDescriptorResponse(_)), "{found:?}");
}

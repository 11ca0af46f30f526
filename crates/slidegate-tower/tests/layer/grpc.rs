//! Tests of rate limits on gRPC calls between tonic's server and client.

use std::net::{IpAddr, SocketAddr};

use axum::Router;
use axum::http::StatusCode;
use slidegate::{OnStoreError, Store};
use slidegate_tower::{
    Attributes, Grpc, RateLimitLayer, Settlement, TrustedProxies, WhenMissing, extract,
};
use tokio::net::TcpListener;
use tonic::metadata::MetadataMap;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server};
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::server::health_reporter;

use crate::layer::fixture::{MINUTE, StoreFixture, serve};
use crate::layer::store_outage::UNREACHABLE;

type HealthServiceClient = HealthClient<tonic::transport::Channel>;

/// Starts a tonic server with a health service behind the layer.
async fn serve_tonic_health_service(layer: RateLimitLayer<Grpc>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (_, health) = health_reporter();
    let server = Server::builder().layer(layer).add_service(health);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    address
}

/// Connects a client to a server from the given local address, which the server sees as the peer address.
async fn connect_client_from(local_address: [u8; 4], server: SocketAddr) -> HealthServiceClient {
    let endpoint = Endpoint::from_shared(format!("http://{server}")).unwrap();
    let channel =
        endpoint.local_address(Some(IpAddr::from(local_address))).connect().await.unwrap();
    HealthClient::new(channel)
}

async fn connect_client(server: SocketAddr) -> HealthServiceClient {
    connect_client_from([127, 0, 0, 1], server).await
}

/// Calls the gRPC health service about a service, and returns the response metadata. The server knows only the empty
/// service name, and returns an error for any other.
async fn call_health_service(
    client: &mut HealthServiceClient,
    service: &str,
) -> Result<MetadataMap, Status> {
    let request = HealthCheckRequest { service: service.to_owned() };
    client.check(request).await.map(|response| response.metadata().clone())
}

fn layer_with_limit_per_ip(fixture: &StoreFixture<impl Store>) -> RateLimitLayer<Grpc> {
    let ip = extract::client_ip(TrustedProxies::none());
    let limiter = fixture.limiter(2, MINUTE).named("per-ip").on_store_error(OnStoreError::Deny);
    RateLimitLayer::keyed_by(limiter, ip, WhenMissing::Deny).respond_with(Grpc)
}

#[tokio::test]
async fn grpc_metadata_reports_limits() {
    with_both_stores!(|fixture| {
        let mut client =
            connect_client(serve_tonic_health_service(layer_with_limit_per_ip(&fixture)).await)
                .await;
        for expected in ["\"per-ip\";r=1;t=60", "\"per-ip\";r=0"] {
            let metadata = call_health_service(&mut client, "").await.unwrap();
            assert_eq!(metadata.get("ratelimit-policy").unwrap(), "\"per-ip\";q=2;w=60");
            assert_eq!(metadata.get("ratelimit").unwrap(), expected, "{fixture:?}");
            assert!(metadata.get("retry-after").is_none());
        }
        let denied = call_health_service(&mut client, "").await.unwrap_err();
        assert_eq!((denied.code(), denied.message()), (Code::ResourceExhausted, "quota exceeded"));
        assert_eq!(denied.metadata().get("retry-after").unwrap(), "60", "{fixture:?}");
        assert_eq!(denied.metadata().get("ratelimit").unwrap(), "\"per-ip\";r=0;t=60");
        fixture.clock.advance(MINUTE);
        assert!(call_health_service(&mut client, "").await.is_ok(), "{fixture:?}");
    });
}

#[tokio::test]
async fn tonic_peer_addresses_are_counted_separately() {
    with_both_stores!(|fixture| {
        let server = serve_tonic_health_service(layer_with_limit_per_ip(&fixture)).await;
        for local_address in [[127, 0, 0, 1], [127, 0, 0, 2]] {
            let mut client = connect_client_from(local_address, server).await;
            for is_allowed in [true, true, false] {
                let response = call_health_service(&mut client, "").await;
                assert_eq!(response.is_ok(), is_allowed, "{local_address:?} {fixture:?}");
            }
        }
    });
}

#[tokio::test]
async fn malformed_grpc_cost_has_status_invalid_argument() {
    with_both_stores!(|fixture| {
        let layer = layer_with_limit_per_ip(&fixture).cost_header("x-cost").unwrap();
        let mut client = connect_client(serve_tonic_health_service(layer).await).await;
        let mut request = Request::new(HealthCheckRequest::default());
        request.metadata_mut().insert("x-cost", "many".parse().unwrap());
        let status = client.check(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{fixture:?}");
        assert_eq!(status.message(), "the cost is not a whole number");
    });
}

#[tokio::test]
async fn denial_during_store_outage_has_status_unavailable() {
    let fixture = StoreFixture::with_async_store();
    fixture.set_faults(UNREACHABLE);
    let layer = layer_with_limit_per_ip(&fixture);
    let mut client = connect_client(serve_tonic_health_service(layer).await).await;
    let status = call_health_service(&mut client, "").await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(status.message(), "temporary reduced capacity");
}

#[tokio::test]
async fn settle_callback_receives_grpc_status() {
    with_both_stores!(|fixture| {
        let layer =
            layer_with_limit_per_ip(&fixture).settle(|response| match response.grpc_status() {
                Some(_) => Settlement::Keep,
                None => Settlement::Revert,
            });
        let mut client = connect_client(serve_tonic_health_service(layer).await).await;
        for _ in 0..5 {
            assert!(call_health_service(&mut client, "").await.is_ok(), "{fixture:?}");
        }
        for code in [Code::NotFound, Code::NotFound, Code::ResourceExhausted] {
            assert_eq!(
                call_health_service(&mut client, "guess").await.unwrap_err().code(),
                code,
                "{fixture:?}"
            );
        }
    });
}

#[tokio::test]
async fn axum_router_denies_grpc_and_http() {
    with_both_stores!(|fixture| {
        let gate = fixture.gate("rules: [{ name: all, limits: [2/min], algorithm: sliding_log }]");
        let (_, health) = health_reporter();
        let app = Router::new()
            .route_service("/grpc.health.v1.Health/{method}", health)
            .layer(RateLimitLayer::new(gate, Attributes::new()));
        let http = serve(app).await;
        let mut client = connect_client(http.address).await;
        for expected in ["\"all\";r=1;t=60", "\"all\";r=0"] {
            let metadata = call_health_service(&mut client, "").await.unwrap();
            assert_eq!(metadata.get("ratelimit").unwrap(), expected, "{fixture:?}");
        }
        let denied = call_health_service(&mut client, "").await.unwrap_err();
        assert_eq!((denied.code(), denied.message()), (Code::ResourceExhausted, "quota exceeded"));
        assert_eq!(denied.metadata().get("retry-after").unwrap(), "60", "{fixture:?}");
        let denied = http.get("/").await;
        assert_eq!((denied.status, denied.retry_after()), (429, Some(60)), "{fixture:?}");
        assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    });
}

#[tokio::test]
async fn denial_of_call_without_key_states_reason() {
    with_both_stores!(|fixture| {
        let limiter = fixture.limiter(2, MINUTE);
        let layer = RateLimitLayer::keyed_by(limiter, extract::api_key(), WhenMissing::Deny);
        let server = serve_tonic_health_service(layer.respond_with(Grpc)).await;
        let mut client = connect_client(server).await;
        let denied = call_health_service(&mut client, "").await.unwrap_err();
        assert_eq!(denied.code(), Code::ResourceExhausted, "{fixture:?}");
        assert_eq!(denied.message(), "a value that a limit counts by is missing", "{fixture:?}");
    });
}

#[tokio::test]
async fn deny_status_of_rule_has_status_resource_exhausted() {
    with_both_stores!(|fixture| {
        let gate = fixture.gate("rules: [{ name: a, limits: denied, deny_status: 403 }]");
        let layer = RateLimitLayer::new(gate, Attributes::new()).respond_with(Grpc);
        let mut client = connect_client(serve_tonic_health_service(layer).await).await;
        let denied = call_health_service(&mut client, "").await.unwrap_err();
        assert_eq!((denied.code(), denied.message()), (Code::ResourceExhausted, "quota exceeded"));
    });
}

#[tokio::test]
async fn missing_extension_is_grpc_message() {
    with_both_stores!(|fixture| {
        // tonic's server does not add this extension.
        let user = || extract::extension(|user: &String| Some(user));
        let layer =
            || RateLimitLayer::keyed_by(fixture.limiter(2, MINUTE), user(), WhenMissing::Deny);
        let with_status = layer().missing_extension_status(StatusCode::INTERNAL_SERVER_ERROR);
        for (layer, code) in [(layer(), Code::ResourceExhausted), (with_status, Code::Internal)] {
            let server = serve_tonic_health_service(layer.respond_with(Grpc)).await;
            let mut client = connect_client(server).await;
            let denied = call_health_service(&mut client, "").await.unwrap_err();
            assert_eq!(denied.code(), code, "{fixture:?}");
            let message = "the server has not added a value that a limit counts by";
            assert_eq!(denied.message(), message);
        }
    });
}

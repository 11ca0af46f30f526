//! A gRPC service and its client, both tonic's.

use std::net::{IpAddr, SocketAddr};

use axum::Router;
use slidegate::Store;
use slidegate_tower::{
    Attributes, Backend, Grpc, OnStoreError, RateLimitLayer, Settlement, TrustedProxies, WhenMissing,
    extract,
};
use tokio::net::TcpListener;
use tonic::metadata::MetadataMap;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server};
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::server::health_reporter;

use crate::outage::UNREACHABLE;
use crate::rig::{MINUTE, Rig, serve};

type Client = HealthClient<tonic::transport::Channel>;

/// tonic's server of a health service behind this layer.
async fn serve_tonic(layer: RateLimitLayer<impl Backend, Grpc>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (_, health) = health_reporter();
    let server = Server::builder().layer(layer).add_service(health);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    address
}

/// A client with an address of its own.
async fn client_from(own: [u8; 4], server: SocketAddr) -> Client {
    let endpoint = Endpoint::from_shared(format!("http://{server}")).unwrap();
    let channel = endpoint.local_address(Some(IpAddr::from(own))).connect().await.unwrap();
    HealthClient::new(channel)
}

async fn client(server: SocketAddr) -> Client {
    client_from([127, 0, 0, 1], server).await
}

/// Asks how the service of this name is; the empty one is well, of others it does not know.
async fn ask(client: &mut Client, service: &str) -> Result<MetadataMap, Status> {
    let request = HealthCheckRequest { service: service.to_owned() };
    client.check(request).await.map(|response| response.metadata().clone())
}

fn per_ip(rig: &Rig<impl Store>) -> RateLimitLayer<impl Backend, Grpc> {
    let ip = extract::client_ip(TrustedProxies::none());
    let limiter = rig.limiter(2, MINUTE).named("per-ip");
    RateLimitLayer::keyed_by(limiter, ip, WhenMissing::Deny).respond_with(Grpc)
}

#[tokio::test]
async fn calls_that_pass_and_calls_that_are_denied_tell_how_the_limits_stand_in_metadata() {
    with_both!(|rig| {
        let mut client = client(serve_tonic(per_ip(&rig)).await).await;
        for left in [1, 0] {
            let metadata = ask(&mut client, "").await.unwrap();
            assert_eq!(metadata.get("ratelimit-policy").unwrap(), "\"per-ip\";q=2;w=60");
            let stands = format!("\"per-ip\";r={left};t=60");
            assert_eq!(metadata.get("ratelimit").unwrap(), &*stands, "{rig:?}");
            assert!(metadata.get("retry-after").is_none());
        }
        let denied = ask(&mut client, "").await.unwrap_err();
        assert_eq!((denied.code(), denied.message()), (Code::ResourceExhausted, "quota exceeded"));
        assert_eq!(denied.metadata().get("retry-after").unwrap(), "60", "{rig:?}");
        assert_eq!(denied.metadata().get("ratelimit").unwrap(), "\"per-ip\";r=0;t=60");
        rig.clock.advance(MINUTE);
        assert!(ask(&mut client, "").await.is_ok(), "{rig:?}");
    });
}

#[tokio::test]
async fn clients_are_told_apart_by_the_address_that_tonic_knows() {
    with_both!(|rig| {
        let server = serve_tonic(per_ip(&rig)).await;
        for own in [[127, 0, 0, 1], [127, 0, 0, 2]] {
            let mut client = client_from(own, server).await;
            for is_allowed in [true, true, false] {
                let answer = ask(&mut client, "").await;
                assert_eq!(answer.is_ok(), is_allowed, "{own:?} {rig:?}");
            }
        }
    });
}

#[tokio::test]
async fn a_call_that_makes_no_sense_is_an_invalid_argument() {
    with_both!(|rig| {
        let layer = per_ip(&rig).cost_header("x-cost").unwrap();
        let mut client = client(serve_tonic(layer).await).await;
        let mut request = Request::new(HealthCheckRequest::default());
        request.metadata_mut().insert("x-cost", "many".parse().unwrap());
        let status = client.check(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{rig:?}");
        assert_eq!(status.message(), "the cost is no whole number");
    });
}

#[tokio::test]
async fn a_call_that_cannot_be_counted_is_unavailable_where_that_is_the_choice() {
    let rig = Rig::awaited();
    rig.set_faults(UNREACHABLE);
    let layer = per_ip(&rig).on_store_error(OnStoreError::Deny);
    let mut client = client(serve_tonic(layer).await).await;
    let status = ask(&mut client, "").await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(status.message(), "temporary reduced capacity");
}

#[tokio::test]
async fn calls_are_settled_by_the_code_of_their_answer() {
    with_both!(|rig| {
        let layer = per_ip(&rig).settle(|answer| match answer.grpc_status() {
            Some(_) => Settlement::Keep,
            None => Settlement::Revert,
        });
        let mut client = client(serve_tonic(layer).await).await;
        for _ in 0..5 {
            assert!(ask(&mut client, "").await.is_ok(), "{rig:?}");
        }
        for code in [Code::NotFound, Code::NotFound, Code::ResourceExhausted] {
            assert_eq!(ask(&mut client, "guess").await.unwrap_err().code(), code, "{rig:?}");
        }
    });
}

#[tokio::test]
async fn a_router_of_axum_answers_grpc_calls_and_http_requests_each_in_their_way() {
    with_both!(|rig| {
        let gate = rig.gate("rules: [{ name: all, limits: [2/min], algorithm: sliding_log }]");
        let (_, health) = health_reporter();
        let app = Router::new()
            .route_service("/grpc.health.v1.Health/{method}", health)
            .layer(RateLimitLayer::new(gate, Attributes::new()));
        let http = serve(app).await;
        let mut client = client(http.address).await;
        for stands in ["\"all\";r=1;t=60", "\"all\";r=0;t=60"] {
            let metadata = ask(&mut client, "").await.unwrap();
            assert_eq!(metadata.get("ratelimit").unwrap(), stands, "{rig:?}");
        }
        let denied = ask(&mut client, "").await.unwrap_err();
        assert_eq!((denied.code(), denied.message()), (Code::ResourceExhausted, "quota exceeded"));
        assert_eq!(denied.metadata().get("retry-after").unwrap(), "60", "{rig:?}");
        let denied = http.get("/").await;
        assert_eq!((denied.status, denied.retry_after()), (429, Some(60)), "{rig:?}");
        assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    });
}

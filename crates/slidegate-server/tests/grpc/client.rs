//! A tonic client, with message types generated from the server's `.proto` files.

use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use self::messages::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use crate::common::Server;

pub use self::messages::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
pub use self::messages::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
pub use self::messages::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus,
};
pub use self::messages::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};

/// Message types, generated from `proto/`.
#[allow(missing_docs, clippy::all, reason = "generated")]
mod messages {
    include!(concat!(env!("OUT_DIR"), "/messages.rs"));
}

/// The path of `ShouldRateLimit`.
pub const SHOULD_RATE_LIMIT_PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Connects to the gRPC listener of a server.
pub async fn connect_channel(server: &Server) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.grpc())).unwrap();
    endpoint.connect().await.unwrap()
}

/// A client with its own connection.
#[derive(Clone)]
pub struct Client(Grpc<Channel>);

impl Client {
    /// Connects to the gRPC listener of a server.
    pub async fn connect(server: &Server) -> Self {
        Self(Grpc::new(connect_channel(server).await))
    }

    /// Sends a request to `ShouldRateLimit`, and returns the response.
    pub async fn check(&self, message: RateLimitRequest) -> RateLimitResponse {
        self.call(SHOULD_RATE_LIMIT_PATH, Request::new(message)).await.unwrap()
    }

    /// Sends an invalid request to `ShouldRateLimit`, and returns the error.
    pub async fn check_error(&self, message: RateLimitRequest) -> Status {
        self.call::<_, RateLimitResponse>(SHOULD_RATE_LIMIT_PATH, Request::new(message)).await.unwrap_err()
    }

    /// Calls any method with any message.
    ///
    /// # Errors
    ///
    /// If the status of the call is not OK.
    pub async fn call<M, R>(&self, path: &'static str, message: Request<M>) -> Result<R, Status>
    where
        M: prost::Message + 'static,
        R: prost::Message + Default + 'static,
    {
        let mut grpc = self.0.clone();
        grpc.ready().await.unwrap();
        let (path, codec) = (path.parse().unwrap(), ProstCodec::default());
        grpc.unary(message, path, codec).await.map(tonic::Response::into_inner)
    }
}

/// Returns a request with these descriptors in domain `api`.
pub fn new_request(descriptors: impl IntoIterator<Item = RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest {
        domain: "api".into(),
        descriptors: descriptors.into_iter().collect(),
        hits_addend: 0,
    }
}

/// Returns a descriptor with these entries.
pub fn new_descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..Default::default() }
}

/// Returns the value of a header that the response adds for the end client.
pub fn response_header<'r>(response: &'r RateLimitResponse, name: &str) -> Option<&'r str> {
    let headers = &response.response_headers_to_add;
    headers.iter().find(|header| header.key == name).map(|header| header.value.as_str())
}

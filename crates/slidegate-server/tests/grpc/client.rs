//! A gRPC client based on tonic, with message types generated from the `.proto` files of the server.

use std::path::Path;

use prost_types::value::Kind;
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

/// Protobuf message types, generated from the files in `proto/`.
#[allow(missing_docs, clippy::all, reason = "generated")]
mod messages {
    include!("../../generated/messages.rs");
}

/// The URL path of the gRPC method `ShouldRateLimit`.
pub const SHOULD_RATE_LIMIT_PATH: &str =
    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Opens a tonic channel to the gRPC listener of a server.
pub async fn connect_channel(server: &Server) -> Channel {
    connect_channel_to(format!("http://{}", server.grpc_address())).await
}

async fn connect_channel_to(uri: String) -> Channel {
    Endpoint::from_shared(uri).unwrap().connect().await.unwrap()
}

/// A client of the rate limit service with its own connection.
#[derive(Clone)]
pub struct Client(Grpc<Channel>);

impl Client {
    /// Connects to the gRPC listener of a server.
    pub async fn connect(server: &Server) -> Self {
        Self(Grpc::new(connect_channel(server).await))
    }

    /// Connects to a UNIX socket.
    pub async fn connect_unix(path: &Path) -> Self {
        Self(Grpc::new(connect_channel_to(format!("unix:{}", path.display())).await))
    }

    /// Calls `ShouldRateLimit`, and returns the response. Panics if the call fails.
    pub async fn check(&self, message: RateLimitRequest) -> RateLimitResponse {
        self.call(SHOULD_RATE_LIMIT_PATH, Request::new(message)).await.unwrap()
    }

    /// Calls `ShouldRateLimit` with an invalid request, and returns the error status. Panics if the call succeeds.
    pub async fn check_error(&self, message: RateLimitRequest) -> Status {
        self.call::<_, RateLimitResponse>(SHOULD_RATE_LIMIT_PATH, Request::new(message))
            .await
            .unwrap_err()
    }

    /// Calls the gRPC method at `path` with a message of any type.
    ///
    /// # Errors
    ///
    /// Returns the status of the call if it is not OK.
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

/// Returns a `ShouldRateLimit` request with these descriptors in domain `api`.
pub fn new_request(descriptors: impl IntoIterator<Item = RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest {
        domain: "api".into(),
        descriptors: descriptors.into_iter().collect(),
        hits_addend: 0,
    }
}

/// Returns a descriptor with these entries, each a key and a value.
pub fn new_descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry {
        key: (*key).to_owned().into(),
        value: (*value).to_owned().into(),
    };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..Default::default() }
}

/// Returns a descriptor that releases the permit of a token.
pub fn new_release(token: &str) -> RateLimitDescriptor {
    RateLimitDescriptor { is_negative_hits: true, ..new_descriptor(&[("permit", token)]) }
}

/// Returns the token of the permit in a response, or `None` if the response has no permit.
pub fn permit_of_response(response: &RateLimitResponse) -> Option<&str> {
    match &response.dynamic_metadata.as_ref()?.fields.get("permit")?.kind {
        Some(Kind::StringValue(token)) => Some(token),
        other => panic!("{other:?} is not a token"),
    }
}

/// Returns the value of a header that Envoy must add to the HTTP response for the end client, or `None` if the rate
/// limit response does not list the header.
pub fn response_header<'r>(response: &'r RateLimitResponse, name: &str) -> Option<&'r str> {
    let headers = &response.response_headers_to_add;
    headers.iter().find(|header| header.key == name).map(|header| header.value.as_str())
}

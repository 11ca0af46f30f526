//! A client: tonic's own, with messages made of the same files.

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

/// The types of the messages, made from `proto/`.
#[allow(missing_docs, clippy::all, reason = "generated")]
mod messages {
    include!(concat!(env!("OUT_DIR"), "/messages.rs"));
}

pub const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// A connection for any client.
pub async fn channel(server: &Server) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.grpc())).unwrap();
    endpoint.connect().await.unwrap()
}

/// A connection.
#[derive(Clone)]
pub struct Client(Grpc<Channel>);

impl Client {
    pub async fn of(server: &Server) -> Self {
        Self(Grpc::new(channel(server).await))
    }

    /// Asks, and is answered.
    pub async fn ask(&self, message: RateLimitRequest) -> RateLimitResponse {
        self.call(PATH, Request::new(message)).await.unwrap()
    }

    /// Asks what makes no sense.
    pub async fn refused(&self, message: RateLimitRequest) -> Status {
        self.call::<_, RateLimitResponse>(PATH, Request::new(message)).await.unwrap_err()
    }

    /// Calls any method with any message.
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

/// A request of these descriptors.
pub fn request(descriptors: impl IntoIterator<Item = RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest {
        domain: "api".into(),
        descriptors: descriptors.into_iter().collect(),
        hits_addend: 0,
    }
}

/// A descriptor of these entries.
pub fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..Default::default() }
}

/// The value of a header for the client.
pub fn header<'r>(response: &'r RateLimitResponse, name: &str) -> Option<&'r str> {
    let headers = &response.response_headers_to_add;
    headers.iter().find(|header| header.key == name).map(|header| header.value.as_str())
}

//! tonic.

use std::error::Error;

use prost::Message;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use crate::messages::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use crate::messages::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};

struct Always(RateLimitResponse);

#[tonic::async_trait]
impl RateLimitService for Always {
    async fn should_rate_limit(
        &self,
        _: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        Ok(Response::new(self.0.clone()))
    }
}

/// `answer` is the message.
pub async fn serve(answer: &[u8]) -> Result<(), Box<dyn Error>> {
    let always = Always(RateLimitResponse::decode(answer)?);
    let incoming = TcpIncoming::bind(([127, 0, 0, 1], 0).into())?.with_nodelay(Some(true));
    super::listens(incoming.local_addr()?);
    let service = RateLimitServiceServer::new(always);
    Ok(Server::builder().add_service(service).serve_with_incoming(incoming).await?)
}

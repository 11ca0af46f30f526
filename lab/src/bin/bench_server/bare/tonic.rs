//! A gRPC server with tonic that always sends the same response.

use std::error::Error;
use std::net::SocketAddr;

use prost::Message;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use crate::messages::envoy::service::ratelimit::v3::rate_limit_response::Code;
use crate::messages::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use crate::messages::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use crate::messages::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use crate::requests::{BenchRequest, GRPC_FRAME_HEADER_LEN};

/// A service that sends this response to every request.
struct FixedResponseService(RateLimitResponse);

#[tonic::async_trait]
impl RateLimitService for FixedResponseService {
    async fn should_rate_limit(
        &self,
        _: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        Ok(Response::new(self.0.clone()))
    }
}

/// Serves on a free port, and sends this response message to every request. The message is an encoded
/// `RateLimitResponse`.
pub async fn serve(response: &[u8]) -> Result<(), Box<dyn Error>> {
    let fixed_response = FixedResponseService(RateLimitResponse::decode(response)?);
    let incoming = TcpIncoming::bind(([127, 0, 0, 1], 0).into())?.with_nodelay(Some(true));
    super::print_listen_address(incoming.local_addr()?);
    let service = RateLimitServiceServer::new(fixed_response);
    Ok(Server::builder().add_service(service).serve_with_incoming(incoming).await?)
}

/// Sends a call to slidegate and returns the encoded response message.
pub async fn record_response(
    slidegate: SocketAddr,
    request: &BenchRequest,
) -> Result<Vec<u8>, Box<dyn Error>> {
    let message = RateLimitRequest::decode(&request.body[GRPC_FRAME_HEADER_LEN..])?;
    let mut client = RateLimitServiceClient::connect(format!("http://{slidegate}")).await?;
    let response = client.should_rate_limit(message).await?.into_inner();
    match response.overall_code() {
        Code::Ok => Ok(response.encode_to_vec()),
        code => Err(format!("unexpected response: {code:?}").into()),
    }
}

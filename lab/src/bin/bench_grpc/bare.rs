//! A server of tonic, as its own guide makes one, that answers everything with one answer.

use std::error::Error;
use std::fs;

use prost::Message;
use tokio::runtime::Builder;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use crate::messages::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use crate::messages::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};

/// By which this program is such a server.
pub const ARGUMENT: &str = "bare";

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

/// Serves on so many threads beside, or on this one alone if there are none. `answer` is a file.
pub fn serve(threads: &str, answer: &str) -> Result<(), Box<dyn Error>> {
    let always = Always(RateLimitResponse::decode(&*fs::read(answer)?)?);
    let runtime = match threads.parse()? {
        0 => Builder::new_current_thread().enable_all().build()?,
        threads => Builder::new_multi_thread().worker_threads(threads).enable_all().build()?,
    };
    runtime.block_on(async {
        let incoming = TcpIncoming::bind(([127, 0, 0, 1], 0).into())?.with_nodelay(Some(true));
        eprintln!("gRPC is asked at {}", incoming.local_addr()?);
        let service = RateLimitServiceServer::new(always);
        Ok(Server::builder().add_service(service).serve_with_incoming(incoming).await?)
    })
}

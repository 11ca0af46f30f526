//! The gRPC method `ShouldRateLimit` of Envoy's rate limit service.

use std::sync::Arc;

use opentelemetry::KeyValue;
use tonic::{Code, Request, Response, Status};

use crate::request_handler::{Call, Operation, RequestHandler, TraceHeaders};
use crate::rls::{
    self, CountedMessage, InvalidRequest, ParsedMessage, RateLimitRequest, RateLimitResponse,
    RateLimitService,
};
use crate::telemetry::request_result::{ClassifyResponse, RequestResult};

/// The HTTP/2 path of `ShouldRateLimit` calls.
pub const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The rate limit service.
pub struct RateLimit {
    handler: Arc<RequestHandler>,
}

impl RateLimit {
    /// Creates the service.
    pub fn new(handler: Arc<RequestHandler>) -> Self {
        Self { handler }
    }
}

#[tonic::async_trait]
impl RateLimitService for RateLimit {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let (metadata, _, message) = request.into_parts();
        if message.descriptors.is_empty() {
            self.handler.log_request_without_descriptors();
        }
        let headers = metadata.into_headers();
        let trace = TraceHeaders::Direct(&headers);
        let call =
            Call::new(Operation::Check, "slidegate.should_rate_limit", trace).returning_permit();
        let parse = || ParsedMessage::parse(message);
        let counted = self.handler.handle(call, parse, |renderer, request, decision, permit| {
            Ok(rls::respond(renderer, request, decision, permit))
        });
        match counted.await {
            Ok(counted) => Ok(Response::new(counted.message)),
            Err(error) => Err(Status::invalid_argument(error.to_string())),
        }
    }
}

impl ClassifyResponse for Result<CountedMessage, InvalidRequest> {
    fn request_result(&self) -> RequestResult {
        self.as_ref().map_or(RequestResult::Invalid, |counted| counted.result)
    }

    fn status_span_attribute(&self) -> KeyValue {
        let code = if self.is_ok() { Code::Ok } else { Code::InvalidArgument };
        KeyValue::new("rpc.grpc.status_code", code as i64)
    }
}

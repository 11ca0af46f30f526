//! The gRPC method `ShouldRateLimit` of Envoy's rate limit service.

use std::sync::Arc;

use axum::http::HeaderMap;
use opentelemetry::KeyValue;
use tonic::{Code, Request, Response, Status};

use crate::bounds::MAX_DESCRIPTORS_OF_SMALL_REQUEST;
use crate::connections::LargeCalls;
use crate::request_handler::{Call, Operation, RequestHandler, TraceHeaders};
use crate::rls::{
    self, CountedMessage, InvalidRequest, ParsedMessage, RateLimitRequest, RateLimitResponse,
    RateLimitService,
};
use crate::telemetry::request_result::{ClassifyResponse, RequestResult};

/// The HTTP/2 path of `ShouldRateLimit` calls.
pub const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Marks a call that is already handled as a large call.
#[derive(Clone, Copy)]
pub struct OnLargeCallThread;

/// The rate limit service.
pub struct RateLimit {
    handler: Arc<RequestHandler>,
    large_calls: LargeCalls,
}

impl RateLimit {
    /// Creates the service.
    pub fn new(handler: Arc<RequestHandler>, large_calls: LargeCalls) -> Self {
        Self { handler, large_calls }
    }
}

#[tonic::async_trait]
impl RateLimitService for RateLimit {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let (metadata, extensions, message) = request.into_parts();
        let is_large = message.descriptors.len() > MAX_DESCRIPTORS_OF_SMALL_REQUEST
            && extensions.get::<OnLargeCallThread>().is_none();
        let response = decide(self.handler.clone(), metadata.into_headers(), message);
        match is_large {
            false => response.await,
            true => Box::pin(self.large_calls.handle(response))
                .await
                .unwrap_or_else(|panicked| Err(Status::internal(panicked.to_string()))),
        }
    }
}

async fn decide(
    handler: Arc<RequestHandler>,
    headers: HeaderMap,
    message: RateLimitRequest,
) -> Result<Response<RateLimitResponse>, Status> {
    if message.descriptors.is_empty() {
        handler.log_request_without_descriptors();
    }
    let trace = TraceHeaders::Direct(&headers);
    let call = Call::new(Operation::Check, "slidegate.should_rate_limit", trace).returning_permit();
    let parse = || ParsedMessage::parse(message);
    let counted = handler.handle(call, parse, |renderer, request, decision, permit| {
        Ok(rls::respond(renderer, request, decision, permit))
    });
    match counted.await {
        Ok(counted) => Ok(Response::new(counted.message)),
        Err(error) => Err(Status::invalid_argument(error.to_string())),
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

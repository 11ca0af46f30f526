//! The gRPC method `ShouldRateLimit` of Envoy's rate limit service.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use tonic::{Code, Request, Response, Status};

use crate::bounds::MAX_DESCRIPTORS_OF_SMALL_REQUEST;
use crate::connections::LargeCallThread;
use crate::decide::Service;
use crate::decide::error::CallError;
use crate::render::{ResponseRenderer, with_request_result};
use crate::telemetry::recorder::{RequestRecorder, TraceHeaders};
use crate::telemetry::results::{ClassifyResponse, RequestResult, ResponseWithResult};
use crate::wire::grpc::status_of_panic;
use crate::wire::rls::{
    ParsedMessage, RateLimitRequest, RateLimitResponse, RateLimitService, build_response,
};

/// The HTTP/2 path of `ShouldRateLimit` calls.
pub const SHOULD_RATE_LIMIT_PATH: &str =
    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The name of the trace spans of `ShouldRateLimit` calls.
const SPAN_NAME: &str = "slidegate.should_rate_limit";

/// Marks a request that already runs on the thread for large calls, so that it is not moved there again.
#[derive(Clone, Copy)]
pub struct LargeCallThreadMarker;

/// The rate limit service.
pub struct RateLimitGrpcService {
    caller: CallHandler,
    large_calls: LargeCallThread,
}

/// The service, renderer and recorder of all calls. Clones share them.
#[derive(Clone)]
struct CallHandler {
    service: Arc<Service>,
    renderer: ResponseRenderer,
    recorder: Arc<RequestRecorder>,
}

impl RateLimitGrpcService {
    /// Creates the service.
    pub fn new(
        service: Arc<Service>,
        renderer: ResponseRenderer,
        recorder: Arc<RequestRecorder>,
        large_calls: LargeCallThread,
    ) -> Self {
        Self { caller: CallHandler { service, renderer, recorder }, large_calls }
    }
}

#[tonic::async_trait]
impl RateLimitService for RateLimitGrpcService {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let (metadata, extensions, message) = request.into_parts();
        let is_large = message.descriptors.len() > MAX_DESCRIPTORS_OF_SMALL_REQUEST
            && extensions.get::<LargeCallThreadMarker>().is_none();
        let response = self.caller.clone().respond_and_record(metadata.into_headers(), message);
        if is_large {
            let response = Box::pin(self.large_calls.handle(response)).await;
            response.unwrap_or_else(|panicked| Err(status_of_panic(panicked)))
        } else {
            response.await
        }
    }
}

impl CallHandler {
    /// Responds to a call: parses it, decides, and renders the decision.
    async fn respond(
        &self,
        message: RateLimitRequest,
    ) -> Result<ResponseWithResult<RateLimitResponse>, CallError> {
        let message = ParsedMessage::parse(message)?;
        let policy = self.service.active_policy();
        let decided = self.service.decide(&policy, &message.to_call()).await?;
        Ok(with_request_result(&decided, build_response(&message, &decided, &self.renderer)))
    }

    /// Responds to a call, and records it in metrics and traces.
    async fn respond_and_record(
        self,
        headers: HeaderMap,
        message: RateLimitRequest,
    ) -> Result<Response<RateLimitResponse>, Status> {
        if message.descriptors.is_empty() {
            self.service.log_request_without_descriptors();
        }
        let response = pin!(self.respond(message));
        let response =
            self.recorder.record(SPAN_NAME, TraceHeaders::Direct(&headers), response).await;
        match response {
            Ok(counted) => Ok(Response::new(counted.response)),
            Err(error) => Err(Status::invalid_argument(error.to_string())),
        }
    }
}

impl ClassifyResponse for Result<ResponseWithResult<RateLimitResponse>, CallError> {
    fn request_result(&self) -> RequestResult {
        self.as_ref().map_or(RequestResult::Invalid, |counted| counted.result)
    }

    fn span_status_attribute(&self) -> (&'static str, i64) {
        let code = if self.is_ok() { Code::Ok } else { Code::InvalidArgument };
        ("rpc.grpc.status_code", code as i64)
    }

    fn wait_time(&self) -> Duration {
        self.as_ref().map_or(Duration::ZERO, |counted| counted.waited)
    }
}

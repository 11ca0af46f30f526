//! The gRPC method `ShouldRateLimit` of Envoy's rate limit service.

use std::sync::atomic::{AtomicBool, Ordering};

use axum::http;
use opentelemetry::KeyValue;
use tonic::body::Body;
use tonic::server::Grpc;
use tonic::{Code, Request, Response, Status};
use tower::service_fn;

use super::codec::RateLimitCodec;
use super::timeout_body::TimeoutBody;
use crate::bounds::MAX_BODY_BYTES;
use crate::request_handler::{Call, Operation, RequestHandler, TraceHeaders};
use crate::rls::{
    self, CountedMessage, InvalidRequest, ParsedMessage, RateLimitRequest, RateLimitResponse,
};
use crate::telemetry::request_result::{ClassifyResponse, RequestResult};

/// The HTTP/2 path of `ShouldRateLimit` calls.
pub const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Handles a call of `ShouldRateLimit`, and counts its result in the metrics.
pub async fn handle(
    handler: &RequestHandler,
    call: http::Request<TimeoutBody>,
) -> http::Response<Body> {
    let mut grpc = Grpc::new(RateLimitCodec).max_decoding_message_size(MAX_BODY_BYTES);
    let is_handled = AtomicBool::new(false);
    let decide = service_fn(|request| {
        is_handled.store(true, Ordering::Relaxed);
        decide_rate_limit_call(handler, request)
    });
    let response = grpc.unary(decide, call).await;
    // The handler has counted the calls whose message was read.
    if let Some(status) = Status::from_header_map(response.headers())
        && !is_handled.load(Ordering::Relaxed)
    {
        handler.count_rejected(request_result_from_grpc_code(status.code()));
    }
    response
}

async fn decide_rate_limit_call(
    handler: &RequestHandler,
    request: Request<RateLimitRequest>,
) -> Result<Response<RateLimitResponse>, Status> {
    let (metadata, _, message) = request.into_parts();
    let trace = TraceHeaders::Direct(metadata.as_ref());
    let call = Call::new(Operation::Check, "slidegate.should_rate_limit", trace).returning_permit();
    let counted = handler
        .handle(
            call,
            || ParsedMessage::parse(message),
            |renderer, request, decision, permit| {
                Ok(rls::respond(renderer, request, decision, permit))
            },
        )
        .await;
    let counted = counted.map_err(|error| Status::invalid_argument(error.to_string()))?;
    Ok(Response::new(counted.message))
}

/// Returns the result that metrics record for a call without a decision. `code` is the gRPC status code with which the
/// call ended.
fn request_result_from_grpc_code(code: Code) -> RequestResult {
    match code {
        Code::Internal | Code::Unknown => RequestResult::Error,
        _ => RequestResult::Invalid,
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

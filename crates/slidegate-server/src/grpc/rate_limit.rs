//! The gRPC method `ShouldRateLimit` of Envoy's rate limit service.

use std::pin::pin;

use axum::http;
use opentelemetry::KeyValue;
use tonic::body::Body;
use tonic::server::Grpc;
use tonic::{Code, Request, Response, Status};
use tower::service_fn;

use super::codec::RateLimitCodec;
use super::timeout_body::TimeoutBody;
use crate::bounds::MAX_BODY_BYTES;
use crate::request_handler::RequestHandler;
use crate::rls::{self, CountedMessage, InvalidRequest, RateLimitRequest, RateLimitResponse};
use crate::telemetry::request_result::{ClassifyResponse, RequestResult};

/// The HTTP/2 path of `ShouldRateLimit` calls.
pub const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Handles a call of `ShouldRateLimit`, and counts its result in the metrics.
pub async fn handle(
    handler: &RequestHandler,
    call: http::Request<TimeoutBody>,
) -> http::Response<Body> {
    let mut grpc = Grpc::new(RateLimitCodec).max_decoding_message_size(MAX_BODY_BYTES);
    let response =
        grpc.unary(service_fn(|request| decide_rate_limit_call(handler, request)), call).await;
    // Calls with a decision have been counted. A status in the headers means that there is no decision.
    if let Some(status) = Status::from_header_map(response.headers()) {
        count_result_in_metrics(handler, request_result_from_grpc_code(status.code()));
    }
    response
}

async fn decide_rate_limit_call(
    handler: &RequestHandler,
    request: Request<RateLimitRequest>,
) -> Result<Response<RateLimitResponse>, Status> {
    let (metadata, _, message) = request.into_parts();
    let scope =
        handler.begin("slidegate.should_rate_limit", handler.trace_context(metadata.as_ref()));
    let counted = scope.run(pin!(rls::decide(handler, &scope, message))).await;
    let counted = counted.map_err(|error| Status::invalid_argument(error.to_string()))?;
    count_result_in_metrics(handler, counted.result);
    Ok(Response::new(counted.message))
}

/// Adds the result of a call to the metrics, if metrics are collected.
fn count_result_in_metrics(handler: &RequestHandler, result: RequestResult) {
    if let Some(metrics) = handler.metrics() {
        metrics.count_result(result);
    }
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

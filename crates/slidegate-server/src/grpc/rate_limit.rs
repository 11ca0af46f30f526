//! The gRPC method `ShouldRateLimit` of Envoy's rate limit service.

use axum::http::{HeaderMap, Request, Response};
use http_body_util::Either;
use opentelemetry::KeyValue;
use prost::Message;
use prost::bytes::Bytes;
use tonic::{Code, Status};

use super::timeout_body::TimeoutBody;
use super::{ResponseBody, unary};
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
    call: Request<TimeoutBody>,
) -> Response<ResponseBody> {
    let (head, body) = call.into_parts();
    let response = match unary::receive_message(&head.headers, body).await.and_then(decode) {
        Ok(message) => decide(handler, &head.headers, message).await,
        Err(status) => {
            handler.count_rejected(request_result_from_grpc_code(status.code()));
            Err(status)
        }
    };
    match response {
        Ok(message) => unary::respond(&message).map(Either::Left),
        Err(status) => status.into_http().map(Either::Right),
    }
}

fn decode(message: Bytes) -> Result<RateLimitRequest, Status> {
    RateLimitRequest::decode(message).map_err(|error| {
        Status::invalid_argument(format!(
            "not a RateLimitRequest of envoy.service.ratelimit.v3: {error}; generate the client from \
             Envoy's proto files"
        ))
    })
}

async fn decide(
    handler: &RequestHandler,
    headers: &HeaderMap,
    message: RateLimitRequest,
) -> Result<RateLimitResponse, Status> {
    if message.descriptors.is_empty() {
        handler.log_request_without_descriptors();
    }
    let trace = TraceHeaders::Direct(headers);
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
    Ok(counted.message)
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

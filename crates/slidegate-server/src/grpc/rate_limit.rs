//! `ShouldRateLimit`: may this request pass?

use std::pin::pin;

use axum::http;
use opentelemetry::KeyValue;
use tonic::body::Body;
use tonic::server::Grpc;
use tonic::{Code, Request, Response, Status};
use tower::service_fn;

use super::body::PatientBody;
use super::codec::RateLimitCodec;
use crate::decisions::{Decisions, Told};
use crate::http::MAX_BODY;
use crate::rls::{self, Invalid, RateLimitRequest, RateLimitResponse, Reply};
use crate::watch::metrics::Answered;

/// Where it is asked.
pub const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Answers a call.
pub async fn answer(face: &Decisions, call: http::Request<PatientBody>) -> http::Response<Body> {
    let mut grpc = Grpc::new(RateLimitCodec).max_decoding_message_size(MAX_BODY);
    let response = grpc.unary(service_fn(|request| decide(face, request)), call).await;
    // What was decided has been counted. A status in the head says why something was not.
    if let Some(status) = Status::from_header_map(response.headers()) {
        count(face, undecided(status.code()));
    }
    response
}

async fn decide(
    face: &Decisions,
    request: Request<RateLimitRequest>,
) -> Result<Response<RateLimitResponse>, Status> {
    let (metadata, _, message) = request.into_parts();
    let question = face.begin("slidegate.should_rate_limit", face.caller(metadata.as_ref()));
    let reply = question.answer(pin!(rls::decide(face, &question, message))).await;
    let reply = reply.map_err(|error| Status::invalid_argument(error.to_string()))?;
    count(face, reply.answered);
    Ok(Response::new(reply.message))
}

fn count(face: &Decisions, answered: Answered) {
    if let Some(metrics) = face.metrics() {
        metrics.answered(answered);
    }
}

/// How a call with this status was answered.
fn undecided(code: Code) -> Answered {
    match code {
        Code::Internal | Code::Unknown => Answered::Error,
        _ => Answered::Invalid,
    }
}

impl Told for Result<Reply, Invalid> {
    fn answered(&self) -> Answered {
        self.as_ref().map_or(Answered::Invalid, |reply| reply.answered)
    }

    fn code(&self) -> KeyValue {
        let code = if self.is_ok() { Code::Ok } else { Code::InvalidArgument };
        KeyValue::new("rpc.grpc.status_code", code as i64)
    }
}

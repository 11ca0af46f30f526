//! The gRPC listener: Envoy's rate limit service, health and reflection.

mod connection;
mod health;
mod open_calls;
mod rate_limit;

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Uri};
use axum::response::IntoResponse;
use http_body_util::{BodyExt, Full};
use thiserror::Error;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::BoxFuture;
use tonic::service::Routes;
use tonic_reflection::server::Builder;
use tower::{Service as TowerService, ServiceExt};

pub use self::connection::GrpcProtocol;
use self::open_calls::OpenCalls;
use self::rate_limit::{LargeCallThreadMarker, RateLimitGrpcService};
use crate::bounds::MAX_BODY_BYTES;
use crate::connections::bodies::{BodyError, ConnectionBodyBudget};
use crate::connections::{LargeCallPanic, LargeCallThread};
use crate::decide::Service;
use crate::render::ResponseRenderer;
use crate::telemetry::metrics::ListenerKind;
use crate::telemetry::recorder::RequestRecorder;
use crate::telemetry::results::RequestResult;
use crate::wire::rls::{self, RateLimitServiceServer};

/// The error if the gRPC reflection service cannot be created.
#[derive(Debug, Error)]
#[error("cannot set up gRPC reflection: {0}")]
pub struct ReflectionError(#[from] tonic_reflection::server::Error);

/// The maximum size of a message in bytes whose call is handled on the thread of its connection.
const MAX_SMALL_MESSAGE_BYTES: usize = 16 * 1024;

/// The maximum size of a header's value in bytes that a call keeps while it waits. The server reads no longer header.
const MAX_KEPT_HEADER_BYTES: usize = 1024;

/// The maximum size of a message of the health and reflection services in bytes. Such messages contain only a name.
const MAX_HEALTH_OR_REFLECTION_MESSAGE_BYTES: usize = 4 * 1024;

/// All gRPC services of the listener. The path of a call selects the service.
pub struct GrpcServices {
    recorder: Arc<RequestRecorder>,
    rate_limit: RateLimitServiceServer<RateLimitGrpcService>,
    /// Health and reflection. Calls of the rate limit service do not pass through this router, which allocates several
    /// boxes per call.
    other_services: Router,
    large_calls: LargeCallThread,
}

impl GrpcServices {
    /// Creates the services.
    pub async fn new(
        service: Arc<Service>,
        renderer: ResponseRenderer,
        large_calls: LargeCallThread,
    ) -> Result<Self, ReflectionError> {
        let max_bytes = MAX_HEALTH_OR_REFLECTION_MESSAGE_BYTES;
        let health = health::start(&service).await.max_decoding_message_size(max_bytes);
        let v1 = reflection_service_builder().build_v1()?.max_decoding_message_size(max_bytes);
        let v1alpha =
            reflection_service_builder().build_v1alpha()?.max_decoding_message_size(max_bytes);
        let recorder = RequestRecorder::new(service.telemetry(), ListenerKind::Grpc);
        let recorder = Arc::new(recorder);
        let rate_limit =
            RateLimitGrpcService::new(service, renderer, recorder.clone(), large_calls.clone());
        let rate_limit =
            RateLimitServiceServer::new(rate_limit).max_decoding_message_size(MAX_BODY_BYTES);
        let other_services = Routes::new(health).add_service(v1).add_service(v1alpha);
        let other_services = other_services.into_axum_router().fallback(unknown_method);
        Ok(Self { recorder, rate_limit, other_services, large_calls })
    }
}

/// The services for the calls of one connection, with the space for its messages and the count of its open calls.
#[derive(Clone)]
pub struct ConnectionServices(Arc<ConnectionState>);

struct ConnectionState {
    services: Arc<GrpcServices>,
    bodies: ConnectionBodyBudget,
    calls: OpenCalls,
}

impl ConnectionServices {
    /// Creates the services of a connection. Its messages occupy the space of `bodies`, and its calls are counted in
    /// `calls`.
    pub fn new(
        services: Arc<GrpcServices>,
        bodies: ConnectionBodyBudget,
        calls: OpenCalls,
    ) -> Self {
        Self(Arc::new(ConnectionState { services, bodies, calls }))
    }
}

impl TowerService<Request<Body>> for ConnectionServices {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut call: Request<Body>) -> Self::Future {
        let open_call = self.0.calls.start();
        let connection = self.0.clone();
        if call.uri().path() == rate_limit::SHOULD_RATE_LIMIT_PATH {
            remove_long_headers(call.headers_mut());
            return Box::pin(async move {
                let _open_call = open_call;
                Ok(connection.respond_to_rate_limit_call(call).await)
            });
        }
        let response = connection.services.other_services.clone().oneshot(call);
        Box::pin(async move {
            // The call counts as open until the stream of its response messages ends.
            let keep_open = move |messages| {
                let _open_call = &open_call;
                messages
            };
            Ok(response.await?.map(|body| Body::new(body.map_frame(keep_open))))
        })
    }
}

/// Removes headers that no part of the server reads. A client of Envoy may have chosen them, such as a `tracestate` of
/// many KiB, and they would occupy memory until the call ends.
fn remove_long_headers(headers: &mut HeaderMap) {
    let is_long = |value: &HeaderValue| value.len() > MAX_KEPT_HEADER_BYTES;
    let long = headers.iter().filter(|(_, value)| is_long(value));
    let names: Vec<HeaderName> = long.map(|(name, _)| name.clone()).collect();
    names.iter().for_each(|name| drop(headers.remove(name)));
}

impl ConnectionState {
    /// Responds to a call of the rate limit service.
    async fn respond_to_rate_limit_call(&self, call: Request<Body>) -> Response<Body> {
        let GrpcServices { recorder, rate_limit, large_calls, .. } = &*self.services;
        let (head, body) = call.into_parts();
        let body = match self.bodies.read(body, stated_message_length).await {
            Ok(body) => body,
            Err(error) => {
                recorder.count_rejected(RequestResult::Invalid);
                return status_of_body_error(&error).into_http();
            }
        };
        let message = Full::new(body.bytes.clone());
        let mut call = Request::from_parts(head, Body::new(message));
        let mut rate_limit = rate_limit.clone();
        let response = if body.bytes.len() > MAX_SMALL_MESSAGE_BYTES {
            call.extensions_mut().insert(LargeCallThreadMarker);
            let response = Box::pin(large_calls.handle(rate_limit.call(call))).await;
            response.unwrap_or_else(|panicked| Ok(status_of_panic(panicked).into_http()))
        } else {
            rate_limit.call(call).await
        };
        let Ok(response) = response;
        if let Some(result) = result_of_uncounted_call(&response) {
            recorder.count_rejected(result);
        }
        response
    }
}

/// Returns the length of a gRPC message, including its prefix of five bytes: a flag and the length. `start` is the
/// first part of the body.
fn stated_message_length(start: &[u8]) -> Option<usize> {
    let length = u32::from_be_bytes(start.get(1..5)?.try_into().ok()?);
    usize::try_from(length).ok()?.checked_add(5)
}

fn status_of_body_error(error: &BodyError) -> Status {
    let code = match error {
        BodyError::TooLarge { .. } => tonic::Code::OutOfRange,
        BodyError::Slow { .. } => tonic::Code::DeadlineExceeded,
        BodyError::Overlong(_) | BodyError::Unreadable(_) => tonic::Code::Internal,
    };
    Status::new(code, error.to_string())
}

/// Returns the status of a call that panicked. gRPC has the code UNKNOWN for this.
fn status_of_panic(panicked: LargeCallPanic) -> Status {
    Status::unknown(panicked.to_string())
}

/// Returns the result of a call that was not counted yet: its message could not be read, or it panicked. The rate limit
/// service counts all other calls, and its only error status is `INVALID_ARGUMENT`.
fn result_of_uncounted_call(response: &Response<Body>) -> Option<RequestResult> {
    match Status::from_header_map(response.headers())?.code() {
        tonic::Code::InvalidArgument => None,
        tonic::Code::Unknown => Some(RequestResult::Error),
        _ => Some(RequestResult::Invalid),
    }
}

/// Responds to a call of a method that the listener does not have.
async fn unknown_method(uri: Uri) -> axum::response::Response {
    let message = format!(
        "unknown method `{}`; call {}, or list all services by gRPC reflection",
        uri.path(),
        rate_limit::SHOULD_RATE_LIMIT_PATH
    );
    Status::unimplemented(message).into_http::<axum::body::Body>().into_response()
}

/// Returns a builder of the reflection service that contains the definitions of all services.
fn reflection_service_builder<'d>() -> Builder<'d> {
    Builder::configure()
        .register_encoded_file_descriptor_set(rls::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

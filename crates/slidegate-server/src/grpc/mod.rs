//! The gRPC listener: Envoy's rate limit service, health and reflection.

mod health;
pub mod protocol;
mod rate_limit;

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::http::{Request, Response, Uri};
use axum::response::IntoResponse;
use thiserror::Error;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::BoxFuture;
use tonic::service::Routes;
use tonic_reflection::server::Builder;
use tower::{Service as TowerService, ServiceExt};

use self::rate_limit::RateLimit;
use crate::bounds::MAX_BODY_BYTES;
use crate::rendering::ResponseRenderer;
use crate::request_handler::RequestHandler;
use crate::rls::{self, RateLimitServiceServer};
use crate::service::Service;
use crate::telemetry::metrics::ListenerKind;
use crate::telemetry::request_result::RequestResult;

/// The error if the gRPC reflection service cannot be created.
#[derive(Debug, Error)]
#[error("cannot set up gRPC reflection: {0}")]
pub struct ReflectionError(#[from] tonic_reflection::server::Error);

/// All gRPC services of the listener. The path of a call selects the service.
#[derive(Clone)]
pub struct GrpcServices {
    handler: Arc<RequestHandler>,
    rate_limit: RateLimitServiceServer<RateLimit>,
    /// Health and reflection. Calls of the rate limit service do not pass through this router, which allocates several
    /// boxes per call.
    other_services: Router,
}

impl GrpcServices {
    /// Creates the services.
    pub async fn new(
        service: Arc<Service>,
        renderer: ResponseRenderer,
    ) -> Result<Self, ReflectionError> {
        let health = health::start(&service).await.max_decoding_message_size(MAX_BODY_BYTES);
        let v1 = reflection_service_builder().build_v1()?.max_decoding_message_size(MAX_BODY_BYTES);
        let v1alpha =
            reflection_service_builder().build_v1alpha()?.max_decoding_message_size(MAX_BODY_BYTES);
        let handler = Arc::new(RequestHandler::new(service, renderer, ListenerKind::Grpc));
        let rate_limit = RateLimitServiceServer::new(RateLimit::new(handler.clone()))
            .max_decoding_message_size(MAX_BODY_BYTES);
        let other_services = Routes::new(health).add_service(v1).add_service(v1alpha);
        let other_services = other_services.into_axum_router().fallback(unknown_method);
        Ok(Self { handler, rate_limit, other_services })
    }
}

impl TowerService<Request<Body>> for GrpcServices {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: Request<Body>) -> Self::Future {
        if call.uri().path() != rate_limit::PATH {
            let response = self.other_services.clone().oneshot(call);
            return Box::pin(async { Ok(response.await?.map(Body::new)) });
        }
        let (handler, response) = (self.handler.clone(), self.rate_limit.call(call));
        Box::pin(async move {
            let response = response.await?;
            if is_rejected_by_tonic(&response) {
                handler.count_rejected(RequestResult::Invalid);
            }
            Ok(response)
        })
    }
}

/// Returns `true` if the message of a call could not be read. All other calls reach the handler, which counts them, and
/// whose only error status is `INVALID_ARGUMENT`.
fn is_rejected_by_tonic(response: &Response<Body>) -> bool {
    Status::from_header_map(response.headers())
        .is_some_and(|status| status.code() != tonic::Code::InvalidArgument)
}

/// Responds to a call of a method that the listener does not have.
async fn unknown_method(uri: Uri) -> axum::response::Response {
    let message = format!(
        "unknown method `{}`; call {}, or list all services by gRPC reflection",
        uri.path(),
        rate_limit::PATH
    );
    Status::unimplemented(message).into_http::<axum::body::Body>().into_response()
}

/// Returns a builder of the reflection service that contains the definitions of all services.
fn reflection_service_builder<'d>() -> Builder<'d> {
    Builder::configure()
        .register_encoded_file_descriptor_set(rls::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

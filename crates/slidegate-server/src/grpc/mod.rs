//! The gRPC listener: Envoy's rate limit service, health and reflection.
//!
//! The listener uses hyper directly. tonic's server bounds neither slow clients nor the number of connections, and adds
//! layers that are not needed here. `ShouldRateLimit` is handled without tonic, the other services with it.

mod call_queue;
mod health;
mod preface_timeout;
pub mod protocol;
mod rate_limit;
mod timeout_body;
mod unary;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{Request, Response};
use http_body_util::Either;
use hyper::body::Incoming;
use thiserror::Error;
use tonic::Status;
use tonic::body::Body;
use tonic_health::pb::health_server::HealthServer;
use tonic_reflection::server::Builder;
use tower::ServiceExt;
use tower::util::BoxCloneSyncService;

use self::health::HealthService;
use self::timeout_body::TimeoutBody;
use self::unary::UnaryBody;
use crate::bounds::MAX_BODY_BYTES;
use crate::rendering::ResponseRenderer;
use crate::request_handler::RequestHandler;
use crate::rls;
use crate::service::Service;
use crate::telemetry::metrics::ListenerKind;

/// The error if the gRPC reflection service cannot be created.
#[derive(Debug, Error)]
#[error("cannot set up gRPC reflection: {0}")]
pub struct ReflectionError(#[from] tonic_reflection::server::Error);

/// A gRPC service on the heap. Each call needs one heap allocation, which is acceptable because these services, such as
/// health, are called rarely.
type BoxedGrpcService = BoxCloneSyncService<Request<TimeoutBody>, Response<Body>, Infallible>;

/// The body of a response: a message of the rate limit service, or the body of a response that tonic created.
type ResponseBody = Either<UnaryBody, Body>;

/// All gRPC services of the listener. The path of a call selects the service.
pub struct GrpcServices {
    handler: RequestHandler,
    other_services: [(&'static str, BoxedGrpcService); 3],
    client_timeout: Duration,
}

impl GrpcServices {
    /// Creates the services. `client_timeout` is the maximum time to receive the message of a call.
    pub fn new(
        service: Arc<Service>,
        renderer: ResponseRenderer,
        client_timeout: Duration,
    ) -> Result<Self, ReflectionError> {
        let health = HealthServer::new(HealthService::new(service.clone()));
        let health = health.max_decoding_message_size(MAX_BODY_BYTES);
        let v1 = reflection_service_builder().build_v1()?.max_decoding_message_size(MAX_BODY_BYTES);
        let v1alpha =
            reflection_service_builder().build_v1alpha()?.max_decoding_message_size(MAX_BODY_BYTES);
        Ok(Self {
            handler: RequestHandler::new(service, renderer, ListenerKind::Grpc),
            other_services: [
                ("grpc.health.v1.Health", BoxCloneSyncService::new(health)),
                ("grpc.reflection.v1.ServerReflection", BoxCloneSyncService::new(v1)),
                ("grpc.reflection.v1alpha.ServerReflection", BoxCloneSyncService::new(v1alpha)),
            ],
            client_timeout,
        })
    }

    /// Passes a gRPC call to the service that its path names, and returns the response of the service.
    async fn dispatch_call_to_service(&self, call: Request<Incoming>) -> Response<ResponseBody> {
        let call = call.map(|body| TimeoutBody::new(body, self.client_timeout));
        if call.uri().path() == rate_limit::PATH {
            return rate_limit::handle(&self.handler, call).await;
        }
        // Boxed, because this future is large and rarely used.
        Box::pin(self.dispatch_call_to_other_service(call)).await.map(Either::Right)
    }

    async fn dispatch_call_to_other_service(&self, call: Request<TimeoutBody>) -> Response<Body> {
        let path = call.uri().path().strip_prefix('/').and_then(|path| path.split_once('/'));
        let Some((service, method)) = path else {
            return unimplemented_response(format!(
                "path `{}` is not of the form /service/method; call {}",
                call.uri().path(),
                rate_limit::PATH
            ));
        };
        let Some((_, other)) = self.other_services.iter().find(|(name, _)| *name == service) else {
            return unimplemented_response(match service {
                rls::SERVICE_NAME => {
                    format!("{service} has no method `{method}`; call ShouldRateLimit")
                }
                _ => format!("unknown service `{service}`; gRPC reflection lists all services"),
            });
        };
        match other.clone().oneshot(call).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

fn unimplemented_response(message: String) -> Response<Body> {
    Status::unimplemented(message).into_http()
}

/// Returns a builder of the reflection service that contains the definitions of all services.
fn reflection_service_builder<'d>() -> Builder<'d> {
    Builder::configure()
        .register_encoded_file_descriptor_set(rls::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

//! The gRPC face: Envoy's rate limit service, health and reflection.
//!
//! On hyper, below tonic's own server: that has no bounds on slow clients and on connections, and layers that
//! are not needed here.

mod body;
mod codec;
mod greeting;
mod health;
mod protocol;
mod rate_limit;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{Request, Response};
use hyper::body::Incoming;
use thiserror::Error;
use tonic::Status;
use tonic::body::Body;
use tonic_health::pb::health_server::HealthServer;
use tonic_reflection::server::Builder;
use tower::ServiceExt;
use tower::util::BoxCloneSyncService;

use self::body::PatientBody;
use self::health::HealthService;
pub use self::protocol::Grpc;
use crate::decisions::Decisions;
use crate::http::{Answers, MAX_BODY};
use crate::rls;
use crate::service::Service;
use crate::watch::metrics::Face;

/// There is no reflection.
#[derive(Debug, Error)]
#[error("cannot tell of the gRPC services: {0}")]
pub struct ReflectionError(#[from] tonic_reflection::server::Error);

/// A service beside the one that decides: it is asked rarely.
type Other = BoxCloneSyncService<Request<PatientBody>, Response<Body>, Infallible>;

/// What is answered on each path.
pub struct Services {
    decisions: Decisions,
    others: [(&'static str, Other); 3],
    patience: Duration,
}

impl Services {
    /// `patience` is how long a message may take to come.
    pub fn new(
        service: Arc<Service>,
        answers: Answers,
        patience: Duration,
    ) -> Result<Self, ReflectionError> {
        let health = HealthServer::new(HealthService::new(service.clone()));
        let health = health.max_decoding_message_size(MAX_BODY);
        let v1 = described().build_v1()?.max_decoding_message_size(MAX_BODY);
        let v1alpha = described().build_v1alpha()?.max_decoding_message_size(MAX_BODY);
        Ok(Self {
            decisions: Decisions::new(service, answers, Face::Grpc),
            others: [
                ("grpc.health.v1.Health", BoxCloneSyncService::new(health)),
                ("grpc.reflection.v1.ServerReflection", BoxCloneSyncService::new(v1)),
                ("grpc.reflection.v1alpha.ServerReflection", BoxCloneSyncService::new(v1alpha)),
            ],
            patience,
        })
    }

    /// Answers a call.
    async fn answer(&self, call: Request<Incoming>) -> Response<Body> {
        let call = call.map(|body| PatientBody::new(body, self.patience));
        if call.uri().path() == rate_limit::PATH {
            return rate_limit::answer(&self.decisions, call).await;
        }
        let path = call.uri().path().strip_prefix('/').and_then(|path| path.split_once('/'));
        let Some((service, method)) = path else {
            return unknown(format!("`{}` is no path of a method", call.uri().path()));
        };
        let Some((_, other)) = self.others.iter().find(|(name, _)| *name == service) else {
            return unknown(match service {
                rls::SERVICE => format!("{service} has no method `{method}`"),
                _ => format!("there is no service `{service}`: ask reflection for what there is"),
            });
        };
        match other.clone().oneshot(call).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

fn unknown(why: String) -> Response<Body> {
    Status::unimplemented(why).into_http()
}

/// All that reflection tells of.
fn described<'d>() -> Builder<'d> {
    Builder::configure()
        .register_encoded_file_descriptor_set(rls::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

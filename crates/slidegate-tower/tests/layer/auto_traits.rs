//! What the compiler holds to be true.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Response};
use slidegate::{Gate, Limiter, MemoryStore, Policy};
use slidegate_tower::{Attributes, Grpc, RateLimitLayer, WhenMissing, extract};
use tower::{Layer, Service, service_fn};

fn is_shared<T: Clone + Send + Sync + 'static>(_: &T) {}

fn is_sent<T: Send + 'static>(_: &T) {}

/// The layer, the service and its future, over a service that is `Clone + Send + Sync`.
macro_rules! holds {
    ($layer:expr) => {{
        let layer = $layer;
        is_shared(&layer);
        let mut service = layer.layer(service_fn(async |_: Request<Body>| {
            Ok::<_, Infallible>(Response::new(Body::empty()))
        }));
        is_shared(&service);
        is_sent(&service.call(Request::new(Body::empty())));
    }};
}

#[test]
fn layers_and_services_are_cloned_and_sent_between_threads_and_so_are_futures() {
    let gate = || {
        let policy = Policy::from_yaml("rules: [{ name: all, limits: [10/s] }]").unwrap();
        Gate::new(policy, MemoryStore::new())
    };
    let limiter = || Limiter::new(["10/s"]).unwrap();
    holds!(RateLimitLayer::new(gate(), Attributes::new()));
    holds!(RateLimitLayer::new(Arc::new(gate()), Attributes::new()));
    holds!(RateLimitLayer::keyed_by(limiter(), extract::api_key(), WhenMissing::Skip));
    holds!(RateLimitLayer::keyed_by(Arc::new(limiter()), extract::api_key(), WhenMissing::Deny));
    let awaited = crate::rig::Rig::awaited();
    let over_any = awaited.gate("rules: [{ name: all, limits: [10/s] }]");
    holds!(RateLimitLayer::new(over_any, Attributes::new()).respond_with(Grpc));
}

//! Checks at compile time that the layer, its services and futures are `Send`, and that layer and services are also
//! `Sync` and `Clone`.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Response};
use slidegate::{Gate, Limiter, MemoryStore, Policy};
use slidegate_tower::{Attributes, Grpc, RateLimitLayer, WhenMissing, extract};
use tower::{Layer, Service, service_fn};

fn assert_clone_send_sync<T: Clone + Send + Sync + 'static>(_: &T) {}

fn assert_send<T: Send + 'static>(_: &T) {}

/// Checks the traits of the layer, its service and its future. The inner service is `Clone + Send + Sync`.
macro_rules! assert_traits {
    ($layer:expr) => {{
        let layer = $layer;
        assert_clone_send_sync(&layer);
        let mut service = layer.layer(service_fn(async |_: Request<Body>| {
            Ok::<_, Infallible>(Response::new(Body::empty()))
        }));
        assert_clone_send_sync(&service);
        assert_send(&service.call(Request::new(Body::empty())));
    }};
}

#[test]
fn layers_services_and_futures_are_send() {
    let gate = || {
        let policy = Policy::from_yaml("rules: [{ name: all, limits: [10/s] }]").unwrap();
        Gate::new(policy, MemoryStore::new())
    };
    let limiter = || Limiter::new(["10/s"]).unwrap();
    assert_traits!(RateLimitLayer::new(gate(), Attributes::new()));
    assert_traits!(RateLimitLayer::new(Arc::new(gate()), Attributes::new()));
    assert_traits!(RateLimitLayer::keyed_by(limiter(), extract::api_key(), WhenMissing::Skip));
    assert_traits!(RateLimitLayer::keyed_by(
        Arc::new(limiter()),
        extract::api_key(),
        WhenMissing::Deny
    ));
    let fixture = crate::layer::fixture::StoreFixture::with_async_store();
    let async_gate = fixture.gate("rules: [{ name: all, limits: [10/s] }]");
    assert_traits!(RateLimitLayer::new(async_gate, Attributes::new()).respond_with(Grpc));
}

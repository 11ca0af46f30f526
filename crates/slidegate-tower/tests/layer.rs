//! Tests of `RateLimitLayer` with axum and tonic servers and clients on sockets.
//!
//! Clocks are manual. Behaviour that does not depend on the store is tested with a synchronous store, for which `call`
//! makes the decision, and with an asynchronous store.

#[macro_use]
mod fixture;
mod log;

mod costs;
mod examples;
mod responses;

mod auto_traits;
mod client_identity;
mod dropped_calls;
mod grpc;
mod key_plans;
mod llm_gateway;
mod missing_extensions;
mod names;
mod nested_layers;
mod observe_mode;
mod permits;
mod readiness;
mod reservation;
mod routes;
mod settlement;
mod store_outage;

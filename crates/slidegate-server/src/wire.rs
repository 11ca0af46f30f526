//! The protocols of the listeners. Each parses a request to a [`Call`](crate::decide::Call), awaits the decision of
//! [`Service::decide`](crate::decide::Service::decide), and renders it.

pub mod grpc;
pub mod http;
pub mod rls;

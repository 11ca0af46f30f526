//! Tests of the gRPC listener with a real server process. The clients use tonic or h2.

mod bursts;
pub mod client;
mod client_values;
mod costs;
mod health;
mod hostile;
mod names;
mod permits;
mod raw;
mod responses;
mod tls;
mod unix_socket;

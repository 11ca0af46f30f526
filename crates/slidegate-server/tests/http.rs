//! Tests of the HTTP listener, with a real server process and real sockets.

mod attribute_values;
mod auth;
mod bad_input;
mod call_records;
pub mod client;
mod client_values;
mod connection;
mod counting;
mod headers;
mod lifecycle;
mod malformed;
mod names;
mod openapi;
mod other_languages;
mod permits;
mod report;
mod reservations;
mod responses;
mod slow_clients;
mod waiting;

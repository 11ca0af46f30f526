//! Tests of the HTTP listener, with a real server process and real sockets.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod attribute_values;
mod auth;
mod bad_input;
mod call_records;
mod client;
mod client_values;
#[path = "../common/mod.rs"]
mod common;
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

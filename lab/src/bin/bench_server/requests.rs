//! Defines the requests of the benchmarks. All load tools send the same requests.

use prost::Message;

use crate::messages::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::messages::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use crate::messages::envoy::service::ratelimit::v3::RateLimitRequest;

/// The path of slidegate's check endpoint, which decides a request in JSON.
pub const CHECK_PATH: &str = "/v1/check";

/// The path of slidegate's forward-auth endpoint, which proxies call for each of their requests.
pub const AUTH_PATH: &str = "/v1/auth";

/// The length of the header before the message of a gRPC call: a flag for compression, and the length.
pub const GRPC_FRAME_HEADER_LEN: usize = 5;

/// The protocol over which a request is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    Http,
    /// gRPC over HTTP/2.
    Grpc,
}

/// A request of the benchmarks.
#[derive(Clone)]
pub struct BenchRequest {
    pub protocol: Protocol,
    pub path: &'static str,
    pub headers: Vec<(&'static str, &'static str)>,
    /// The request body. If it is empty, the request is a GET request, otherwise a POST request.
    pub body: Vec<u8>,
}

impl BenchRequest {
    /// Returns a request to slidegate's check endpoint, which matches three rules.
    pub fn check() -> Self {
        let body =
            r#"{"attributes":{"tenant":"tenant-0042","method":"POST","route":"/v1/orders"}}"#;
        Self::new_json_request(CHECK_PATH, body)
    }

    /// Returns a request like [`check`](Self::check) with an additional attribute, so that the body has about
    /// `body_bytes` bytes.
    pub fn check_with_body_bytes(body_bytes: usize) -> Self {
        let filler = "x".repeat(body_bytes.saturating_sub(100));
        let body = format!(
            r#"{{"attributes":{{"tenant":"tenant-0042","method":"POST","route":"/v1/orders","agent":"{filler}"}}}}"#
        );
        Self::new_json_request(CHECK_PATH, &body)
    }

    /// Returns a forward-auth request as sent by proxies, which matches the same three rules.
    pub fn auth() -> Self {
        let headers = vec![
            ("x-forwarded-for", "192.0.2.7"),
            ("x-forwarded-method", "POST"),
            ("x-forwarded-host", "shop.example"),
            ("x-forwarded-uri", "/v1/orders"),
            ("x-tenant", "tenant-0042"),
        ];
        Self { protocol: Protocol::Http, path: AUTH_PATH, headers, body: Vec::new() }
    }

    /// Returns an HTTP request to throttlecrab. The request itself contains the limit.
    pub fn throttle() -> Self {
        let body = r#"{"key":"tenant-0042","max_burst":1000000,"count_per_period":1000000,"period":1,"quantity":1}"#;
        Self::new_json_request("/throttle", body)
    }

    /// Returns a gRPC call of Envoy's rate limit service with this number of descriptors. Each descriptor matches a
    /// different rule.
    pub fn should_rate_limit(descriptors: usize) -> Self {
        let tenant = ("tenant", "tenant-0042");
        let rules: [&[(&str, &str)]; 3] = [
            &[tenant],
            &[tenant, ("method", "POST"), ("route", "/v1/orders")],
            &[("generic_key", "all")],
        ];
        let message = RateLimitRequest {
            domain: "bench".into(),
            descriptors: rules
                .iter()
                .take(descriptors)
                .map(|rule| new_rate_limit_descriptor(rule))
                .collect(),
            hits_addend: 0,
        };
        Self::new_grpc_request(
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
            &message,
        )
    }

    /// Returns a gRPC call to throttlecrab. The call itself contains the limit.
    pub fn throttle_call() -> Self {
        let message = ThrottleRequest {
            key: "tenant-0042".into(),
            max_burst: 1_000_000,
            count_per_period: 1_000_000,
            period: 1,
            quantity: 1,
        };
        Self::new_grpc_request("/throttlecrab.RateLimiter/Throttle", &message)
    }

    fn new_json_request(path: &'static str, body: &str) -> Self {
        let headers = vec![("content-type", "application/json")];
        Self { protocol: Protocol::Http, path, headers, body: body.into() }
    }

    fn new_grpc_request(path: &'static str, message: &impl Message) -> Self {
        let headers = vec![("content-type", "application/grpc"), ("te", "trailers")];
        let message = message.encode_to_vec();
        // The frame header is a flag (0: not compressed) and the length. No message exceeds 4 GiB, so the conversion
        // cannot fail.
        let length = u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes();
        let body = [&[0], &length[..], &message].concat();
        Self { protocol: Protocol::Grpc, path, headers, body }
    }
}

fn new_rate_limit_descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
    let entries = entries.iter().map(entry).collect();
    RateLimitDescriptor { entries, ..Default::default() }
}

/// The request message of throttlecrab's gRPC service.
#[derive(Clone, PartialEq, Message)]
struct ThrottleRequest {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(int32, tag = "2")]
    max_burst: i32,
    #[prost(int32, tag = "3")]
    count_per_period: i32,
    #[prost(int32, tag = "4")]
    period: i32,
    #[prost(int32, tag = "5")]
    quantity: i32,
}

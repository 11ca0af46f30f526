//! Tests of hostile descriptor values. End clients can choose the values. Envoy allows a request if the call to
//! slidegate fails, so no value may cause a failure.

use crate::common::Server;
use crate::grpc::client::{
    Client, Code, RateLimitDescriptor, RateLimitRequest, RateLimitResponse, SHOULD_RATE_LIMIT_PATH,
    new_descriptor, new_request,
};
use crate::grpc::raw::RawGrpcConnection;

const POLICY: &str = "
defaults: { algorithm: sliding_log }
rules:
  - { name: banned, domain: api, when: { agent: ['evil*', '*worse'] }, limits: denied }
  - { name: per-user, domain: api, per: [user], limits: [1/h] }
  - { name: requested, domain: other, limits: requested }
";

/// Returns a descriptor with one entry, whose key and value may be any bytes.
fn one_entry_descriptor(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> RateLimitDescriptor {
    let mut descriptor = new_descriptor(&[("", "")]);
    descriptor.entries[0].key = key.into().into();
    descriptor.entries[0].value = value.into().into();
    descriptor
}

/// Returns a request with one descriptor, whose entry `user` has this value.
fn request_with_user(value: impl Into<Vec<u8>>) -> RateLimitRequest {
    new_request([one_entry_descriptor("user", value)])
}

#[tokio::test]
async fn long_or_non_utf8_values_have_separate_counters() {
    let server = Server::start_with_grpc(POLICY, &[]);
    let client = RawGrpcConnection::connect(server.grpc_address()).await;
    let check = async |value: &[u8]| client.check(&request_with_user(value)).await.overall_code();
    let long = |end: u8| [&[b'x'; 1024][..], &[end]].concat();
    let values = [
        long(b'a'),
        long(b'b'),
        vec![b'x'; 1024],
        [vec![b'x'; 1024], vec![0xff]].concat(),
        vec![b'*'; 15_000],
        vec![b'y'; (1 << 20) - 100],
        b"\xff".into(),
        b"\xfe".into(),
        b"k\xff".into(),
        "k\u{fffd}".into(),
        b"\0\x01\x7f".into(),
        b"".into(),
    ];
    for value in &values {
        assert_eq!(check(value).await, Code::Ok, "{:?}", &value[..value.len().min(20)]);
    }
    for value in &values {
        assert_eq!(check(value).await, Code::OverLimit, "{:?}", &value[..value.len().min(20)]);
    }
}

/// With tracing, Envoy copies `tracestate` from the request of its client, which has up to 60 KiB of headers.
#[tokio::test]
async fn long_tracestate_of_client_does_not_fail_call() {
    let server = Server::start_with_grpc(POLICY, &[]);
    let client = Client::connect(&server).await;
    for expected in [Code::Ok, Code::OverLimit] {
        let mut request = tonic::Request::new(request_with_user("ann"));
        let state = format!("vendor={}", "x".repeat(59 * 1024));
        request.metadata_mut().insert("tracestate", state.parse().unwrap());
        let response: RateLimitResponse =
            client.call(SHOULD_RATE_LIMIT_PATH, request).await.unwrap();
        assert_eq!(response.overall_code(), expected);
    }
}

#[tokio::test]
async fn hostile_value_cannot_prevent_denial_by_other_descriptor() {
    let server = Server::start_with_grpc(POLICY, &[]);
    let client = RawGrpcConnection::connect(server.grpc_address()).await;
    assert_eq!(client.check(&request_with_user("ann")).await.overall_code(), Code::Ok);
    for value in [vec![b'x'; 1025], b"\xff".to_vec(), vec![b'z'; 500_000]] {
        let both = new_request([
            one_entry_descriptor("other", value),
            one_entry_descriptor("user", "ann"),
        ]);
        assert_eq!(client.check(&both).await.overall_code(), Code::OverLimit);
    }
}

#[tokio::test]
async fn long_or_non_utf8_value_does_not_evade_ban() {
    let server = Server::start_with_grpc(POLICY, &[]);
    let client = RawGrpcConnection::connect(server.grpc_address()).await;
    let padding = "x".repeat(100_000);
    for agent in [
        format!("evil{padding}").into_bytes(),
        format!("{padding}worse").into_bytes(),
        b"evil\xff".to_vec(),
        b"\xffworse".to_vec(),
    ] {
        let response = client.check(&new_request([one_entry_descriptor("agent", agent)])).await;
        assert_eq!(response.overall_code(), Code::OverLimit);
    }
    assert_eq!(
        client.check(&new_request([one_entry_descriptor("agent", "good")])).await.overall_code(),
        Code::Ok
    );
}

#[tokio::test]
async fn requests_with_unusual_keys_or_sizes_never_fail() {
    let server = Server::start_with_grpc(POLICY, &[]);
    let client = RawGrpcConnection::connect(server.grpc_address()).await;
    let in_domain = |domain: &[u8]| RateLimitRequest {
        domain: domain.to_owned().into(),
        ..request_with_user("ann")
    };
    let requests = [
        new_request([one_entry_descriptor(vec![b'k'; 1025], "v")]),
        new_request([one_entry_descriptor(vec![b'k'; 900_000], "v")]),
        new_request([one_entry_descriptor(b"\xff", "v")]),
        new_request([one_entry_descriptor("", "v")]),
        new_request([new_descriptor(&[])]),
        new_request([new_descriptor(&vec![("a", "b"); 65])]),
        new_request([new_descriptor(&vec![("a", "b"); 1_000])]),
        new_request(vec![new_descriptor(&[("a", "b")]); 100]),
        in_domain(b""),
        in_domain(b"\xff"),
        in_domain(&vec![b'd'; 900_000]),
    ];
    for message in requests {
        assert_eq!(client.check(&message).await.overall_code(), Code::Ok);
    }
}

#[tokio::test]
async fn descriptor_limit_override_counts_hostile_entries_separately() {
    let server = Server::start_with_grpc(POLICY, &[]);
    let client = Client::connect(&server).await;
    for (key, value) in [
        (vec![b'k'; 2_000], vec![b'v'; 2_000]),
        (b"k\xff".to_vec(), b"v\xff".to_vec()),
        (b"k\xfe".to_vec(), b"v\xff".to_vec()),
    ] {
        let limit = crate::grpc::client::RateLimitOverride {
            requests_per_unit: 1,
            unit: 3,
            unit_multiplier: None,
        };
        let check = || {
            let mut with_limit = one_entry_descriptor(key.clone(), value.clone());
            with_limit.limit = Some(limit);
            RateLimitRequest { domain: "other".into(), ..new_request([with_limit]) }
        };
        assert_eq!(client.check(check()).await.overall_code(), Code::Ok);
        assert_eq!(client.check(check()).await.overall_code(), Code::OverLimit);
    }
}

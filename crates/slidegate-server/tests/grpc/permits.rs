//! Tests of permits over gRPC: the metadata of responses, and the descriptors that release a permit.

use crate::common::Server;
use crate::grpc::client::{
    Client, Code, RateLimitDescriptor, RateLimitResponse, new_descriptor, new_release, new_request,
    permit_of_response,
};

const POLICY: &str = "
rules:
  - { name: streams, domain: api, per: [user], limits: [{ name: in-flight, concurrent: 1, permit_ttl: 60s }] }
  - { name: requests, domain: api, per: [key], limits: [2/h] }
  - { name: own, domain: api, per: [permit], limits: [1/h] }
";

fn user(name: &str) -> RateLimitDescriptor {
    new_descriptor(&[("user", name)])
}

fn codes(response: &RateLimitResponse) -> (Code, Vec<Code>) {
    (response.overall_code(), response.statuses.iter().map(|status| status.code()).collect())
}

#[tokio::test]
async fn released_permit_is_free_for_next_call() {
    let server = Server::start_with_grpc(POLICY, &[]);
    let client = Client::connect(&server).await;
    for _ in 0..3 {
        let allowed = client.check(new_request([user("ann")])).await;
        let token = permit_of_response(&allowed).expect("a permit").to_owned();
        let denied = client.check(new_request([user("ann")])).await;
        assert_eq!(codes(&denied), (Code::OverLimit, vec![Code::OverLimit]));
        assert_eq!(permit_of_response(&denied), None);
        // The second release has no effect.
        for _ in 0..2 {
            let released = client.check(new_request([new_release(&token)])).await;
            assert_eq!(codes(&released), (Code::Ok, vec![Code::Ok]));
            assert!(released.response_headers_to_add.is_empty());
        }
    }
    let other = client.check(new_request([new_descriptor(&[("key", "k")])])).await;
    assert_eq!(permit_of_response(&other), None, "no limit on requests in flight applies");
}

/// Each descriptor has a status at its position, also if it releases a permit.
#[tokio::test]
async fn message_releases_permits_and_charges_other_descriptors() {
    let server = Server::start_with_grpc(POLICY, &[]);
    let client = Client::connect(&server).await;
    let first = client.check(new_request([user("ann")])).await;
    let token = permit_of_response(&first).unwrap();
    let key = || new_descriptor(&[("key", "k")]);
    // The permit is released before the other descriptors are decided.
    let mixed = client.check(new_request([new_release(token), user("ann"), key()])).await;
    assert_eq!(codes(&mixed), (Code::Ok, vec![Code::Ok; 3]));
    let names: Vec<_> = mixed.statuses.iter().map(|status| &status.current_limit).collect();
    let name = |index: usize| names[index].as_ref().map(|limit| &*limit.name);
    assert_eq!([name(0), name(1), name(2)], [None, Some("streams"), Some("requests")]);
    let denied = client.check(new_request([key(), user("ann"), new_release("x")])).await;
    assert_eq!(codes(&denied), (Code::OverLimit, vec![Code::Ok, Code::OverLimit, Code::Ok]));
    assert_eq!(denied.statuses[0].limit_remaining, 1, "the denial has charged nothing");
}

/// No entry that an end client chooses releases a permit, fails a call, or exempts a descriptor from its limits.
#[tokio::test]
async fn permit_entry_of_client_has_no_effect() {
    let server = Server::start_with_grpc(POLICY, &[]);
    let client = Client::connect(&server).await;
    let held = client.check(new_request([user("ann")])).await;
    let token = permit_of_response(&held).unwrap();
    let long = "x".repeat(100_000);
    let truncated = &token[..token.len() - 1];
    for value in ["", "same", "../..", truncated, &long] {
        let released = client.check(new_request([new_release(value)])).await;
        assert_eq!(codes(&released), (Code::Ok, vec![Code::Ok]));
    }
    // Without is_negative_hits the entry is an attribute: each value is counted, also a token.
    for value in ["same", token] {
        let entry = || new_request([new_descriptor(&[("permit", value)])]);
        assert_eq!(client.check(entry()).await.overall_code(), Code::Ok);
        assert_eq!(client.check(entry()).await.overall_code(), Code::OverLimit);
    }
    let denied = client.check(new_request([user("ann")])).await;
    assert_eq!(denied.overall_code(), Code::OverLimit, "the permit is still live");
}

/// A charge after the end of a request, such as the tokens of a response, takes no permit.
#[tokio::test]
async fn charge_of_consumed_units_takes_no_permit() {
    let server = Server::start_with_grpc(
        "rules: [{ name: a, domain: api, per: [user], limits: [100/h, { concurrent: 1, permit_ttl: 60s }] }]",
        &[],
    );
    let client = Client::connect(&server).await;
    let consumed = RateLimitDescriptor { hits_addend: Some(3), ..user("ann") };
    for _ in 0..2 {
        let charged = client.check(new_request([consumed.clone()])).await;
        assert_eq!((charged.overall_code(), permit_of_response(&charged)), (Code::Ok, None));
    }
    let request = client.check(new_request([user("ann")])).await;
    let token = permit_of_response(&request).expect("a permit");
    // The stream ends: its units are charged, and its permit is released, in one call.
    let end = client.check(new_request([consumed, new_release(token)])).await;
    assert_eq!(end.overall_code(), Code::Ok);
    let check = RateLimitDescriptor { hits_addend: Some(0), ..user("ann") };
    let checked = client.check(new_request([check])).await;
    assert_eq!((checked.overall_code(), permit_of_response(&checked)), (Code::Ok, None));
}

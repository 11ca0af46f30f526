//! What is decided, and what is told of it.

use serde_json::{Value, json};

use crate::client::{
    Client, Code, DescriptorStatus, RateLimitDescriptor, RateLimitOverride, descriptor, header,
    request,
};
use crate::common::Server;

fn codes(statuses: &[DescriptorStatus]) -> Vec<Code> {
    statuses.iter().map(DescriptorStatus::code).collect()
}

/// Limit, remaining.
fn standing(status: &DescriptorStatus) -> (u32, &str, &str, u32) {
    let limit = status.current_limit.as_ref().unwrap();
    (limit.requests_per_unit, limit.unit().as_str_name(), &limit.name, status.limit_remaining)
}

#[tokio::test]
async fn an_answer_tells_the_limit_that_binds_and_a_denial_its_wait_headers_and_body() {
    let server = Server::start_with_grpc(
        "rules: [{ name: per-user, domain: api, per: [user], limits: [2/min, 100/h] }]",
        &[],
    );
    let client = Client::of(&server).await;
    let ask = || request([descriptor(&[("user", "ann")])]);
    let allowed = client.ask(ask()).await;
    assert_eq!(allowed.overall_code(), Code::Ok);
    assert_eq!(codes(&allowed.statuses), [Code::Ok]);
    assert_eq!(standing(&allowed.statuses[0]), (2, "MINUTE", "per-user.1m", 1));
    let until = allowed.statuses[0].duration_until_reset.unwrap();
    assert!((60..=120).contains(&until.seconds) && until.nanos == 0, "{until:?}");
    assert!(header(&allowed, "ratelimit").unwrap().starts_with("\"per-user.1m\";r=1;t="));
    assert!(allowed.raw_body.is_empty() && header(&allowed, "content-type").is_none());

    client.ask(ask()).await;
    let denied = client.ask(ask()).await;
    assert_eq!(denied.overall_code(), Code::OverLimit);
    assert_eq!(codes(&denied.statuses), [Code::OverLimit]);
    let wait = denied.statuses[0].duration_until_reset.unwrap().seconds;
    assert_eq!(header(&denied, "retry-after"), Some(&*wait.to_string()));
    assert_eq!(header(&denied, "content-type"), Some("application/problem+json"));
    let body: Value = serde_json::from_slice(&denied.raw_body).unwrap();
    assert_eq!(body["violated-policies"], json!(["per-user.1m"]));
}

#[tokio::test]
async fn descriptors_are_one_decision_and_have_their_statuses_in_order() {
    let server = Server::start_with_grpc(
        "
        rules:
          - { name: per-user, domain: api, per: [user], limits: [5/h] }
          - { name: per-plan, domain: api, per: [plan], limits: [1/h] }
        ",
        &[],
    );
    let client = Client::of(&server).await;
    let ask = |user: &str| {
        request([
            descriptor(&[("nobody", "knows")]),
            descriptor(&[("user", user)]),
            descriptor(&[("plan", "pro")]),
        ])
    };
    let allowed = client.ask(ask("ann")).await;
    assert_eq!(codes(&allowed.statuses), [Code::Ok; 3]);
    assert_eq!(allowed.statuses[0], DescriptorStatus { code: 1, ..Default::default() });
    assert_eq!(standing(&allowed.statuses[1]), (5, "HOUR", "per-user", 4));
    let denied = client.ask(ask("ann")).await;
    assert_eq!(denied.overall_code(), Code::OverLimit);
    assert_eq!(codes(&denied.statuses), [Code::Ok, Code::Ok, Code::OverLimit]);
    let alone = client.ask(request([descriptor(&[("user", "ann")])])).await;
    assert_eq!(alone.statuses[0].limit_remaining, 3, "a denial charged it");
}

#[tokio::test]
async fn a_rule_is_for_descriptors_that_it_names_whole() {
    let policy = "rules: [{ name: per-user, domain: api, per: [user], limits: [1/h] }]";
    let server = Server::start_with_grpc(policy, &[]);
    let client = Client::of(&server).await;
    let other = descriptor(&[("user", "ann"), ("path", "/")]);
    assert_eq!(client.ask(request([other])).await.statuses[0].current_limit, None);
    let mut elsewhere = request([descriptor(&[("user", "ann")])]);
    elsewhere.domain = "other".into();
    assert_eq!(client.ask(elsewhere).await.statuses[0].current_limit, None);
}

#[tokio::test]
async fn a_descriptor_to_which_all_is_allowed_has_all_remaining() {
    let policy = "rules: [{ name: staff, domain: api, when: { user: root }, limits: unlimited }]";
    let server = Server::start_with_grpc(policy, &[]);
    let answer = Client::of(&server).await.ask(request([descriptor(&[("user", "root")])])).await;
    assert_eq!(answer.statuses[0].limit_remaining, u32::MAX);
    assert_eq!(answer.statuses[0].current_limit, None);
}

#[tokio::test]
async fn costs_are_of_the_request_or_of_the_descriptor_and_0_asks_only() {
    let policy = "rules: [{ name: per-user, domain: api, per: [user], limits: [10/h] }]";
    let server = Server::start_with_grpc(policy, &[]);
    let client = Client::of(&server).await;
    let take = async |request_hits: u32, own: Option<u64>| {
        let ann = RateLimitDescriptor { hits_addend: own, ..descriptor(&[("user", "ann")]) };
        let mut message = request([ann]);
        message.hits_addend = request_hits;
        let answer = client.ask(message).await;
        (answer.overall_code(), answer.statuses[0].limit_remaining)
    };
    assert_eq!(take(0, None).await, (Code::Ok, 9));
    assert_eq!(take(3, None).await, (Code::Ok, 6));
    assert_eq!(take(3, Some(4)).await, (Code::Ok, 2));
    assert_eq!(take(3, Some(0)).await, (Code::Ok, 2));
    assert_eq!(take(3, None).await, (Code::OverLimit, 2));
    assert_eq!(take(2, None).await, (Code::Ok, 0));
    assert_eq!(take(1, Some(0)).await, (Code::OverLimit, 0));
    let never = take(u32::MAX, None).await;
    assert_eq!(never, (Code::OverLimit, 0));
    assert_eq!(take(0, Some(u64::MAX)).await, (Code::OverLimit, 0));
}

#[tokio::test]
async fn a_limit_that_is_only_watched_is_over_in_its_status_and_the_request_passes() {
    let server = Server::start_with_grpc(
        "rules: [{ name: shadow, domain: api, per: [user], limits: [1/h], mode: observe }]",
        &[],
    );
    let client = Client::of(&server).await;
    let ask = || request([descriptor(&[("user", "ann")])]);
    client.ask(ask()).await;
    let answer = client.ask(ask()).await;
    assert_eq!(answer.overall_code(), Code::Ok);
    assert_eq!(codes(&answer.statuses), [Code::OverLimit]);
    assert_eq!(standing(&answer.statuses[0]), (1, "HOUR", "shadow", 0));
}

#[tokio::test]
async fn windows_have_their_unit_if_there_is_one() {
    let server = Server::start_with_grpc(
        "
        rules:
          - { name: week, domain: api, per: [week], limits: [1/w] }
          - { name: month, domain: api, per: [month], limits: [1/30d] }
          - { name: ten, domain: api, per: [ten], limits: [1/10s] }
        ",
        &[],
    );
    let names = ["week", "month", "ten"];
    let ask = request(names.map(|name| descriptor(&[(name, "x")])));
    let answer = Client::of(&server).await.ask(ask).await;
    let units: Vec<&str> = answer.statuses.iter().map(|status| standing(status).1).collect();
    assert_eq!(units, ["WEEK", "MONTH", "SECOND"]);
}

#[tokio::test]
async fn a_descriptor_may_bring_its_limit_along() {
    let policy = "rules: [{ name: per-user, domain: api, per: [user], limits: [1/h] }]";
    let server = Server::start_with_grpc(policy, &[]);
    let client = Client::of(&server).await;
    let limit =
        |unit| Some(RateLimitOverride { requests_per_unit: 7, unit, unit_multiplier: None });
    let brought =
        |unit| RateLimitDescriptor { limit: limit(unit), ..descriptor(&[("user", "ann")]) };
    let answer = client.ask(request([brought(4)])).await;
    let (max, unit, _, remaining) = standing(&answer.statuses[0]);
    assert_eq!((max, unit, remaining), (7, "DAY", 6));
    let refused = client.refused(request([brought(4), brought(0)])).await;
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    assert!(refused.message().starts_with("descriptors[1].limit has unit 0"), "{refused}");
}

#[tokio::test]
async fn names_that_stand_there_twice_are_told_apart() {
    let server = Server::start_with_grpc(
        "rules: [{ name: two, domain: api, per: ['ip', 'ip#2'], limits: [1/h] }]",
        &[],
    );
    let client = Client::of(&server).await;
    let ask = |second| request([descriptor(&[("ip", "a"), ("ip", second)])]);
    assert_eq!(client.ask(ask("b")).await.overall_code(), Code::Ok);
    assert_eq!(client.ask(ask("c")).await.overall_code(), Code::Ok);
    assert_eq!(client.ask(ask("b")).await.overall_code(), Code::OverLimit);
}

#[tokio::test]
async fn a_denial_for_want_of_a_store_says_so() {
    let server = Server::start_with_grpc(
        "rules: [{ name: per-user, domain: api, per: [user], limits: [9/h], on_store_error: deny }]",
        &["--store", "redis://127.0.0.1:1"],
    );
    let ask = request([descriptor(&[("user", "ann")]), descriptor(&[("x", "y")])]);
    let answer = Client::of(&server).await.ask(ask).await;
    assert_eq!(answer.overall_code(), Code::OverLimit);
    assert_eq!(codes(&answer.statuses), [Code::OverLimit; 2]);
    let body: Value = serde_json::from_slice(&answer.raw_body).unwrap();
    let kind = body["type"].as_str().unwrap();
    assert!(kind.ends_with("#temporary-reduced-capacity"), "{kind}");
}

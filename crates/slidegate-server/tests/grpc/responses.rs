//! Tests of the decisions and of all response fields of `ShouldRateLimit`.

use serde_json::{Value, json};

use crate::common::Server;
use crate::grpc::client::{
    Client, Code, DescriptorStatus, RateLimitDescriptor, RateLimitOverride, RateLimitRequest,
    new_descriptor, new_request, response_header,
};

fn descriptor_status_codes(statuses: &[DescriptorStatus]) -> Vec<Code> {
    statuses.iter().map(DescriptorStatus::code).collect()
}

/// Returns four fields from the status of a descriptor: the max, the time unit and the name of the limit, and the
/// remaining units.
fn limit_fields_of_status(status: &DescriptorStatus) -> (u32, &str, &str, u32) {
    let limit = status.current_limit.as_ref().unwrap();
    (limit.requests_per_unit, limit.unit().as_str_name(), &limit.name, status.limit_remaining)
}

#[tokio::test]
async fn response_has_binding_limit_and_denial_details() {
    let server = Server::start_with_grpc(
        "rules: [{ name: per-user, domain: api, per: [user], limits: [2/min, 100/h] }]",
        &[],
    );
    let client = Client::connect(&server).await;
    let check_request = || new_request([new_descriptor(&[("user", "ann")])]);
    let allowed = client.check(check_request()).await;
    assert_eq!(allowed.overall_code(), Code::Ok);
    assert_eq!(descriptor_status_codes(&allowed.statuses), [Code::Ok]);
    assert_eq!(limit_fields_of_status(&allowed.statuses[0]), (2, "MINUTE", "per-user.1m", 1));
    let until = allowed.statuses[0].duration_until_reset.unwrap();
    assert_eq!((until.seconds, until.nanos), (60, 0));
    assert!(response_header(&allowed, "ratelimit").unwrap().starts_with("\"per-user.1m\";r=1;t="));
    assert!(allowed.raw_body.is_empty() && response_header(&allowed, "content-type").is_none());
    assert_eq!(response_header(&allowed, "cache-control"), None);

    client.check(check_request()).await;
    let denied = client.check(check_request()).await;
    assert_eq!(denied.overall_code(), Code::OverLimit);
    assert_eq!(descriptor_status_codes(&denied.statuses), [Code::OverLimit]);
    let wait = denied.statuses[0].duration_until_reset.unwrap().seconds;
    assert_eq!(response_header(&denied, "retry-after"), Some(&*wait.to_string()));
    assert_eq!(response_header(&denied, "content-type"), Some("application/problem+json"));
    assert_eq!(response_header(&denied, "cache-control"), Some("no-store"));
    let body: Value = serde_json::from_slice(&denied.raw_body).unwrap();
    assert_eq!(body["violated-policies"], json!(["per-user.1m"]));
}

#[tokio::test]
async fn response_has_one_decision_and_ordered_descriptor_statuses() {
    let server = Server::start_with_grpc(
        "
        rules:
          - { name: per-user, domain: api, per: [user], limits: [5/h] }
          - { name: per-plan, domain: api, per: [plan], limits: [1/h] }
        ",
        &[],
    );
    let client = Client::connect(&server).await;
    let check_request = |user: &str| {
        new_request([
            new_descriptor(&[("unknown", "value")]),
            new_descriptor(&[("user", user)]),
            new_descriptor(&[("plan", "pro")]),
        ])
    };
    let allowed = client.check(check_request("ann")).await;
    assert_eq!(descriptor_status_codes(&allowed.statuses), [Code::Ok; 3]);
    assert_eq!(allowed.statuses[0], DescriptorStatus { code: 1, ..Default::default() });
    assert_eq!(limit_fields_of_status(&allowed.statuses[1]), (5, "HOUR", "per-user", 4));
    let denied = client.check(check_request("ann")).await;
    assert_eq!(denied.overall_code(), Code::OverLimit);
    assert_eq!(descriptor_status_codes(&denied.statuses), [Code::Ok, Code::Ok, Code::OverLimit]);
    let alone = client.check(new_request([new_descriptor(&[("user", "ann")])])).await;
    assert_eq!(alone.statuses[0].limit_remaining, 3, "the denial charged nothing");
}

/// A request that does not fit has nothing left, like in the reference server. The status has a reset even if waiting does not
/// help.
#[tokio::test]
async fn denied_status_has_no_remaining_units_and_a_duration() {
    let policy = "
rules:
  - { name: per-user, domain: api, per: [user], limits: [10/h] }
  - { name: banned, domain: api, per: [banned], limits: [0/min] }
";
    let server = Server::start_with_grpc(policy, &[]);
    let client = Client::connect(&server).await;
    let check = async |key: &str, hits: u32| {
        let message = new_request([new_descriptor(&[(key, "ann")])]);
        let response = client.check(RateLimitRequest { hits_addend: hits, ..message }).await;
        let status = &response.statuses[0];
        let seconds = status.duration_until_reset.map(|duration| duration.seconds);
        (status.code(), status.limit_remaining, seconds.unwrap_or_default())
    };
    assert_eq!(check("user", 11).await, (Code::OverLimit, 0, 3600), "unused");
    assert_eq!((check("user", 4).await).1, 6);
    for hits in [7, 11] {
        let (code, remaining, seconds) = check("user", hits).await;
        assert_eq!((code, remaining), (Code::OverLimit, 0), "{hits}");
        assert!((3590..=3720).contains(&seconds), "{hits}: {seconds}");
    }
    assert_eq!(check("banned", 1).await, (Code::OverLimit, 0, 60));
}

/// Envoy writes its headers from the limits in the statuses.
#[tokio::test]
async fn rule_without_headers_has_status_without_limit() {
    let policy = "
rules:
  - { name: per-user, domain: api, per: [user], limits: [2/h] }
  - { name: total, domain: api, per: [scope], limits: [1/h], headers: false, problem: abnormal-usage-detected }
";
    let server = Server::start_with_grpc(policy, &[]);
    let client = Client::connect(&server).await;
    let descriptors = ["user", "scope"].map(|key| new_descriptor(&[(key, "a")]));
    for code in [Code::Ok, Code::OverLimit] {
        let response = client.check(new_request(descriptors.clone())).await;
        let [user, total] = &response.statuses[..] else { panic!("two statuses") };
        assert_eq!((response.overall_code(), total.code()), (code, code));
        assert!(user.current_limit.is_some() && total.current_limit.is_none());
        assert_eq!(response_header(&response, "ratelimit-policy"), Some("\"per-user\";q=2;w=3600"));
        assert!(response_header(&response, "ratelimit").unwrap().starts_with("\"per-user\";r=1"));
        assert_eq!(response_header(&response, "retry-after").is_some(), code == Code::OverLimit);
        if code == Code::OverLimit {
            let body: Value = serde_json::from_slice(&response.raw_body).unwrap();
            assert!(body["type"].as_str().unwrap().ends_with("#abnormal-usage-detected"), "{body}");
        }
    }
}

#[tokio::test]
async fn rule_applies_only_to_exact_descriptor_and_domain() {
    let policy = "rules: [{ name: per-user, domain: api, per: [user], limits: [1/h] }]";
    let server = Server::start_with_grpc(policy, &[]);
    let client = Client::connect(&server).await;
    let other = new_descriptor(&[("user", "ann"), ("path", "/")]);
    assert_eq!(client.check(new_request([other])).await.statuses[0].current_limit, None);
    let mut other_domain = new_request([new_descriptor(&[("user", "ann")])]);
    other_domain.domain = "other".into();
    assert_eq!(client.check(other_domain).await.statuses[0].current_limit, None);
}

#[tokio::test]
async fn unlimited_descriptor_reports_maximum_remaining_units() {
    let policy = "rules: [{ name: staff, domain: api, when: { user: root }, limits: unlimited }]";
    let server = Server::start_with_grpc(policy, &[]);
    let response = Client::connect(&server)
        .await
        .check(new_request([new_descriptor(&[("user", "root")])]))
        .await;
    assert_eq!(response.statuses[0].limit_remaining, u32::MAX);
    assert_eq!(response.statuses[0].current_limit, None);
}

#[tokio::test]
async fn descriptor_cost_overrides_request_cost() {
    let policy = "rules: [{ name: per-user, domain: api, per: [user], limits: [10/h] }]";
    let server = Server::start_with_grpc(policy, &[]);
    let client = Client::connect(&server).await;
    let check = async |request_hits: u32, own: Option<u64>| {
        let ann = RateLimitDescriptor { hits_addend: own, ..new_descriptor(&[("user", "ann")]) };
        let mut message = new_request([ann]);
        message.hits_addend = request_hits;
        let response = client.check(message).await;
        (response.overall_code(), response.statuses[0].limit_remaining)
    };
    assert_eq!(check(0, None).await, (Code::Ok, 9));
    assert_eq!(check(3, None).await, (Code::Ok, 6));
    assert_eq!(check(3, Some(4)).await, (Code::Ok, 2));
    assert_eq!(check(3, Some(0)).await, (Code::Ok, 2));
    assert_eq!(check(3, None).await, (Code::OverLimit, 0));
    // The denial has charged nothing.
    assert_eq!(check(2, None).await, (Code::Ok, 0));
    assert_eq!(check(1, Some(0)).await, (Code::OverLimit, 0));
    let denied = check(u32::MAX, None).await;
    assert_eq!(denied, (Code::OverLimit, 0));
    assert_eq!(check(0, Some(u64::MAX)).await, (Code::OverLimit, 0));
}

#[tokio::test]
async fn observing_rule_reports_over_limit_but_allows_request() {
    let server = Server::start_with_grpc(
        "rules: [{ name: shadow, domain: api, per: [user], limits: [1/h], mode: observe }]",
        &[],
    );
    let client = Client::connect(&server).await;
    let check_request = || new_request([new_descriptor(&[("user", "ann")])]);
    client.check(check_request()).await;
    let response = client.check(check_request()).await;
    assert_eq!(response.overall_code(), Code::Ok);
    assert_eq!(descriptor_status_codes(&response.statuses), [Code::OverLimit]);
    assert_eq!(limit_fields_of_status(&response.statuses[0]), (1, "HOUR", "shadow", 0));
}

#[tokio::test]
async fn limit_windows_are_sent_in_envoy_time_units() {
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
    let check_request = new_request(names.map(|name| new_descriptor(&[(name, "x")])));
    let response = Client::connect(&server).await.check(check_request).await;
    let units: Vec<&str> =
        response.statuses.iter().map(|status| limit_fields_of_status(status).1).collect();
    assert_eq!(units, ["WEEK", "MONTH", "SECOND"]);
}

#[tokio::test]
async fn descriptor_override_replaces_limit() {
    let policy = "rules: [{ name: per-user, domain: api, per: [user], limits: [1/h] }]";
    let server = Server::start_with_grpc(policy, &[]);
    let client = Client::connect(&server).await;
    let limit =
        |unit| Some(RateLimitOverride { requests_per_unit: 7, unit, unit_multiplier: None });
    let with_override =
        |unit| RateLimitDescriptor { limit: limit(unit), ..new_descriptor(&[("user", "ann")]) };
    let response = client.check(new_request([with_override(4)])).await;
    let (max, unit, _, remaining) = limit_fields_of_status(&response.statuses[0]);
    assert_eq!((max, unit, remaining), (7, "DAY", 6));
    let error = client.check_error(new_request([with_override(4), with_override(0)])).await;
    assert_eq!(error.code(), tonic::Code::InvalidArgument);
    assert!(error.message().starts_with("descriptors[1].limit: unknown unit 0"), "{error}");
}

#[tokio::test]
async fn rule_can_count_by_repeated_descriptor_entry() {
    let server = Server::start_with_grpc(
        "rules: [{ name: two, domain: api, per: ['ip', 'ip#2'], limits: [1/h] }]",
        &[],
    );
    let client = Client::connect(&server).await;
    let check_request = |second| new_request([new_descriptor(&[("ip", "a"), ("ip", second)])]);
    assert_eq!(client.check(check_request("b")).await.overall_code(), Code::Ok);
    assert_eq!(client.check(check_request("c")).await.overall_code(), Code::Ok);
    assert_eq!(client.check(check_request("b")).await.overall_code(), Code::OverLimit);
}

#[tokio::test]
async fn denial_during_store_outage_has_problem_type() {
    let server = Server::start_with_grpc(
        "rules: [{ name: per-user, domain: api, per: [user], limits: [9/h], on_store_error: deny }]",
        &["--store", "redis://127.0.0.1:1"],
    );
    let check_request =
        new_request([new_descriptor(&[("user", "ann")]), new_descriptor(&[("x", "y")])]);
    let response = Client::connect(&server).await.check(check_request).await;
    assert_eq!(response.overall_code(), Code::OverLimit);
    assert_eq!(descriptor_status_codes(&response.statuses), [Code::OverLimit; 2]);
    let body: Value = serde_json::from_slice(&response.raw_body).unwrap();
    let kind = body["type"].as_str().unwrap();
    assert!(kind.ends_with("#temporary-reduced-capacity"), "{kind}");
}

//! Tests of three features: the cost of a single descriptor (`hits_addend`), overrides with a unit multiplier, and
//! joint quotas, which allow a request if one of several quotas has capacity.

use slidegate::Algorithm;

use crate::common::Server;
use crate::grpc::client::{
    Client, Code, RateLimitDescriptor, RateLimitOverride, new_descriptor, new_request,
    response_header,
};

/// Returns a descriptor of user `ann` whose cost is `hits_addend`.
fn descriptor_of_user_ann(hits_addend: Option<u64>) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend, ..new_descriptor(&[("user", "ann")]) }
}

/// Sends one request of user `ann` for each cost in `hits`, and returns the response codes.
async fn send_requests_with_costs(client: &Client, hits: &[Option<u64>]) -> Vec<Code> {
    let mut codes = Vec::new();
    for hits in hits {
        codes.push(client.check(new_request([descriptor_of_user_ann(*hits)])).await.overall_code());
    }
    codes
}

#[tokio::test]
async fn charged_cost_above_limit_max_denies_later_checks() {
    for algorithm in Algorithm::ALL {
        let policy = format!(
            "rules: [{{ name: tokens, domain: api, per: [user], limits: [10/h], algorithm: {algorithm} }}]"
        );
        let server = Server::start_with_grpc(&policy, &[]);
        let client = Client::connect(&server).await;
        let codes = send_requests_with_costs(
            &client,
            &[Some(0), Some(10_000), Some(0), Some(0), None, None],
        )
        .await;
        let over = Code::OverLimit;
        assert_eq!(codes, [Code::Ok, over, over, over, over, over], "{algorithm}");
    }
}

#[tokio::test]
async fn descriptor_hits_addend_is_charged_as_named_cost() {
    let server = Server::start_with_grpc(
        "
        rules:
          - { name: requests, domain: api, per: [user], limits: [3/h], cost: 1 }
          - { name: tokens, domain: api, per: [user], limits: [1000/h], cost: tokens }
        ",
        &[],
    );
    let client = Client::connect(&server).await;
    let rate_limit_header = async |hits: Option<u64>| {
        let response = client.check(new_request([descriptor_of_user_ann(hits)])).await;
        response_header(&response, "ratelimit").map(str::to_owned).unwrap_or_default()
    };
    // The call without hits counts the request and checks the tokens. The call with hits charges tokens only.
    assert!(rate_limit_header(None).await.contains("\"requests\";r=2;"));
    assert!(rate_limit_header(Some(400)).await.contains("\"tokens\";r=600;"));
    assert!(rate_limit_header(None).await.contains("\"requests\";r=1;"));
    assert_eq!(send_requests_with_costs(&client, &[Some(700), None]).await, [Code::OverLimit; 2]);
}

#[tokio::test]
async fn unit_multiplier_of_override_sets_window_length() {
    let policy = "rules: [{ name: per-user, domain: api, per: [user], limits: [1/h] }]";
    let server = Server::start_with_grpc(policy, &[]);
    let client = Client::connect(&server).await;
    let limit = RateLimitOverride { requests_per_unit: 10, unit: 1, unit_multiplier: Some(30) };
    let with_override =
        || RateLimitDescriptor { limit: Some(limit), ..new_descriptor(&[("user", "ann")]) };
    let response = client.check(new_request([with_override()])).await;
    let current = response.statuses[0].current_limit.clone().unwrap();
    let units = (current.requests_per_unit, current.unit().as_str_name(), current.unit_multiplier);
    assert_eq!(units, (10, "SECOND", Some(30)));
    assert!(response_header(&response, "ratelimit-policy").unwrap().contains("q=10;w=30"));
    let invalid = RateLimitOverride { unit_multiplier: Some(0), ..limit };
    let invalid = RateLimitDescriptor { limit: Some(invalid), ..descriptor_of_user_ann(None) };
    let error = client.check_error(new_request([invalid])).await;
    assert!(error.message().starts_with("descriptors[0].limit: unit_multiplier is 0"));
}

#[tokio::test]
async fn joint_limits_deny_only_if_all_are_exhausted() {
    let server = Server::start_with_grpc(
        "
        rules:
          - { name: own, domain: api, per: [user], limits: [1/h], mode: jointly }
          - { name: team, domain: api, per: [team], limits: [2/h], mode: jointly }
          - { name: all, domain: api, per: [host], limits: [100/h] }
        ",
        &[],
    );
    let client = Client::connect(&server).await;
    let check = async || {
        let names = [("user", "ann"), ("team", "red"), ("host", "a.example")];
        let response = client.check(new_request(names.map(|name| new_descriptor(&[name])))).await;
        let codes: Vec<Code> = response.statuses.iter().map(|status| status.code()).collect();
        (response.overall_code(), codes)
    };
    let (ok, over) = (Code::Ok, Code::OverLimit);
    assert_eq!(check().await, (ok, vec![ok, ok, ok]));
    assert_eq!(check().await, (ok, vec![over, ok, ok]));
    assert_eq!(check().await, (over, vec![over, over, ok]));
}

//! Costs that have been consumed already, overrides with a unit multiplier, and joint quotas.

use slidegate::Algorithm;

use crate::client::{
    Client, Code, RateLimitDescriptor, RateLimitOverride, descriptor, header, request,
};
use crate::common::Server;

/// A descriptor of user `ann` with a cost of its own.
fn ann(hits_addend: Option<u64>) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend, ..descriptor(&[("user", "ann")]) }
}

async fn codes(client: &Client, hits: &[Option<u64>]) -> Vec<Code> {
    let mut codes = Vec::new();
    for hits in hits {
        codes.push(client.ask(request([ann(*hits)])).await.overall_code());
    }
    codes
}

#[tokio::test]
async fn consumed_cost_above_max_denies_later_checks() {
    for algorithm in Algorithm::ALL {
        let policy = format!(
            "rules: [{{ name: tokens, domain: api, per: [user], limits: [10/h], algorithm: {algorithm} }}]"
        );
        let server = Server::start_with_grpc(&policy, &[]);
        let client = Client::of(&server).await;
        let codes = codes(&client, &[Some(0), Some(10_000), Some(0), Some(0), None, None]).await;
        let over = Code::OverLimit;
        assert_eq!(codes, [Code::Ok, over, over, over, over, over], "{algorithm}");
    }
}

#[tokio::test]
async fn named_and_constant_costs_are_those_of_the_descriptor() {
    let server = Server::start_with_grpc(
        "
        rules:
          - { name: requests, domain: api, per: [user], limits: [3/h], cost: 1 }
          - { name: tokens, domain: api, per: [user], limits: [1000/h], cost: tokens }
        ",
        &[],
    );
    let client = Client::of(&server).await;
    let left = async |hits: Option<u64>| {
        let answer = client.ask(request([ann(hits)])).await;
        header(&answer, "ratelimit").map(str::to_owned).unwrap_or_default()
    };
    // A request is counted and the tokens are checked; its tokens are charged, and it is not counted again.
    assert!(left(None).await.contains("\"requests\";r=2;"));
    assert!(left(Some(400)).await.contains("\"tokens\";r=600;"));
    assert!(left(None).await.contains("\"requests\";r=1;"));
    assert_eq!(codes(&client, &[Some(700), None]).await, [Code::OverLimit; 2]);
}

#[tokio::test]
async fn override_holds_for_a_multiple_of_its_unit() {
    let policy = "rules: [{ name: per-user, domain: api, per: [user], limits: [1/h] }]";
    let server = Server::start_with_grpc(policy, &[]);
    let client = Client::of(&server).await;
    let limit = RateLimitOverride { requests_per_unit: 10, unit: 1, unit_multiplier: Some(30) };
    let brought = || RateLimitDescriptor { limit: Some(limit), ..descriptor(&[("user", "ann")]) };
    let answer = client.ask(request([brought()])).await;
    let current = answer.statuses[0].current_limit.clone().unwrap();
    let units = (current.requests_per_unit, current.unit().as_str_name(), current.unit_multiplier);
    assert_eq!(units, (10, "SECOND", Some(30)));
    assert!(header(&answer, "ratelimit-policy").unwrap().contains("q=10;w=30"));
    let wrong = RateLimitOverride { unit_multiplier: Some(0), ..limit };
    let wrong = RateLimitDescriptor { limit: Some(wrong), ..ann(None) };
    let refused = client.refused(request([wrong])).await;
    assert!(refused.message().starts_with("descriptors[0].limit has unit_multiplier 0"));
}

#[tokio::test]
async fn joint_quotas_deny_if_none_fits() {
    let server = Server::start_with_grpc(
        "
        rules:
          - { name: own, domain: api, per: [user], limits: [1/h], mode: jointly }
          - { name: team, domain: api, per: [team], limits: [2/h], mode: jointly }
          - { name: all, domain: api, per: [host], limits: [100/h] }
        ",
        &[],
    );
    let client = Client::of(&server).await;
    let ask = async || {
        let names = [("user", "ann"), ("team", "red"), ("host", "a.example")];
        let answer = client.ask(request(names.map(|name| descriptor(&[name])))).await;
        let codes: Vec<Code> = answer.statuses.iter().map(|status| status.code()).collect();
        (answer.overall_code(), codes)
    };
    let (ok, over) = (Code::Ok, Code::OverLimit);
    assert_eq!(ask().await, (ok, vec![ok, ok, ok]));
    assert_eq!(ask().await, (ok, vec![over, ok, ok]));
    assert_eq!(ask().await, (over, vec![over, over, ok]));
}

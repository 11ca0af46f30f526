//! Tests of denials from the denial cache, over gRPC.

use crate::common::Server;
use crate::grpc::client::{Client, Code, new_descriptor, new_request};
use crate::redis_server::Redis;

const POLICY: &str = "
rules:
  - { name: full, domain: api, per: [full], limits: [1/h] }
  - { name: other, domain: api, per: [other], limits: [10/h] }
  - { name: observed, domain: api, per: [observed], limits: [5/h], mode: observe }
";

#[tokio::test]
async fn repeated_denial_has_status_of_fitting_descriptors() {
    let redis = Redis::start();
    let flags = ["--store", &redis.address(), "--redis-timeout", "5s", "--deny-cache-ttl", "1m"];
    let server = Server::start_with_grpc(POLICY, &flags);
    let client = Client::connect(&server).await;
    let descriptors = ["other", "full", "observed"].map(|key| new_descriptor(&[(key, "1")]));
    assert_eq!(client.check(new_request(descriptors.clone())).await.overall_code(), Code::Ok);
    let denied = client.check(new_request(descriptors.clone())).await;
    let calls = redis.calls_of("evalsha");
    let repeated = client.check(new_request(descriptors)).await;
    assert_eq!(redis.calls_of("evalsha"), calls, "the denial cache denies");
    let figures = repeated.statuses.iter().map(|status| {
        let limit = status.current_limit.as_ref().map(|limit| &*limit.name);
        (status.code(), limit, status.limit_remaining)
    });
    let expected = [
        (Code::Ok, Some("other"), 9),
        (Code::OverLimit, Some("full"), 0),
        (Code::Ok, Some("observed"), 4),
    ];
    assert_eq!(figures.collect::<Vec<_>>(), expected);
    let seconds = |status: usize| {
        [&denied, &repeated].map(|response| {
            response.statuses[status].duration_until_reset.unwrap_or_default().seconds
        })
    };
    for status in 0..3 {
        let [first, second] = seconds(status);
        assert!((first - 5..=first).contains(&second), "{status}: {first} {second}");
    }
}

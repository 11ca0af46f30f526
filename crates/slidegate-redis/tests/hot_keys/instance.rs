//! Helpers that create instances of a service, each a policy with its own Redis store, and send requests to them.

use std::time::Duration;

use slidegate::{Decision, Descriptor, Gate, ManualClock, Policy, Request};
use slidegate_redis::{RedisSettings, RedisStore};

use crate::server::LONG;
use crate::server::cluster::{Cluster, SHARDS};
use crate::server::node::Node;

pub type Instance = Gate<RedisStore>;

/// Creates an instance with a manual clock and an expiry margin that prevents keys from expiring.
pub fn new_instance(policy: &str, address: &str, clock: &ManualClock) -> Instance {
    new_instance_with_settings(policy, address, clock, RedisSettings::default())
}

/// Creates an instance with a manual clock, these settings, a long timeout, and an expiry margin that prevents keys
/// from expiring.
pub fn new_instance_with_settings(
    policy: &str,
    address: &str,
    clock: &ManualClock,
    settings: RedisSettings,
) -> Instance {
    let expiry_margin = Duration::from_secs(1_000_000);
    let settings = RedisSettings { timeout: LONG, expiry_margin, ..settings };
    let store = RedisStore::open(address, settings).unwrap().with_clock(clock.clone());
    Gate::new(Policy::from_yaml(policy).unwrap(), store)
}

/// Creates a request of a tenant for a route.
pub fn new_request<'r>(tenant: &'r str, route: &'r str) -> Request<'r> {
    Request::new("default", Descriptor::new([("tenant", tenant), ("route", route)]))
}

/// Checks a request of a tenant for a route, and asserts that Redis decided.
pub async fn check_with_redis(instance: &Instance, tenant: &str, route: &str) -> Decision<'static> {
    let decision = instance.check_async(&new_request(tenant, route)).await;
    assert!(!decision.is_degraded(), "must be decided by Redis");
    decision
}

pub async fn is_allowed(instance: &Instance, tenant: &str, route: &str) -> bool {
    check_with_redis(instance, tenant, route).await.is_allowed()
}

/// Returns the number of script calls that each master of a Cluster has run.
pub fn script_calls_per_master(cluster: &Cluster) -> [u64; SHARDS] {
    std::array::from_fn(|nth| script_call_count_of_node(&cluster.nodes[nth]))
}

fn script_call_count_of_node(node: &Node) -> u64 {
    node.calls_of("evalsha") + node.calls_of("eval")
}

//! An instance of a service: a policy over a store of its own.

use std::time::Duration;

use slidegate::{Descriptor, Gate, ManualClock, Policy, Request, Ruling};
use slidegate_redis::{RedisStore, Settings};

use crate::server::LONG;
use crate::server::cluster::{Cluster, SHARDS};
use crate::server::node::Node;

pub type Instance = Gate<RedisStore>;

/// By a clock of the test's own, on which nothing expires by itself.
pub fn instance(policy: &str, address: &str, clock: &ManualClock) -> Instance {
    instance_with(policy, address, clock, Settings::default())
}

/// The same with settings, but patient.
pub fn instance_with(
    policy: &str,
    address: &str,
    clock: &ManualClock,
    settings: Settings,
) -> Instance {
    let expiry_margin = Duration::from_secs(1_000_000);
    let settings = Settings { timeout: LONG, expiry_margin, ..settings };
    let store = RedisStore::open(address, settings).unwrap().with_clock(clock.clone());
    Gate::new(Policy::from_yaml(policy).unwrap(), store)
}

/// A request of a tenant by a route.
pub fn request<'r>(tenant: &'r str, route: &'r str) -> Request<'r> {
    Request::new("default", Descriptor::new([("tenant", tenant), ("route", route)]))
}

/// What is said of it, by Redis itself.
pub async fn check(instance: &Instance, tenant: &str, route: &str) -> Ruling {
    let ruling = instance.check(&request(tenant, route)).await;
    assert!(!ruling.decision().is_degraded(), "Redis was asked");
    ruling
}

pub async fn is_allowed(instance: &Instance, tenant: &str, route: &str) -> bool {
    check(instance, tenant, route).await.decision().is_allowed()
}

/// How often scripts were called at each of a cluster's masters.
pub fn calls(cluster: &Cluster) -> [u64; SHARDS] {
    std::array::from_fn(|nth| calls_of(&cluster.nodes[nth]))
}

fn calls_of(node: &Node) -> u64 {
    node.calls_of("evalsha") + node.calls_of("eval")
}

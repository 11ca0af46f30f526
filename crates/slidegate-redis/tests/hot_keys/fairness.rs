//! Tests of the throughput of a limit that is split over sub-keys. An exhausted sub-key denies requests although other
//! sub-keys have free units, so the throughput is lower than without a split.

use std::time::Duration;

use futures_util::future::join_all;
use slidegate::{Gate, ManualClock, MemoryStore, Policy};

use super::instance::{is_allowed, new_instance, new_request};
use crate::server::Redis;

const SPLIT_LIMIT_POLICY: &str = "rules: [{ name: hot, per: [tenant], limits: [1000/min],
    redis: { split: { by: [route], into: 8 } } }]";
const MAX_REQUESTS_PER_MINUTE: f64 = 1_000.0;

/// Number of sets of route names. The sub-key of a name is random, so results are averaged over the sets.
const ROUTE_SET_COUNT: usize = 8;
const ROUTES_PER_SET: usize = 64;

/// Numbers of sent requests, each divided by the number of requests that the limit allows.
const SENT_REQUESTS_RELATIVE_TO_LIMIT: [f64; 5] = [0.5, 0.9, 1.0, 1.5, 3.0];

/// Expected throughput of a split limit, in percent of the throughput of the same limit without a split. Each row has a
/// value for uniform traffic and a value for Zipf traffic. A value is the average over the sets of routes, with the
/// minimum in parentheses.
const EXPECTED_MEAN_AND_MIN_THROUGHPUT_TEXTS: [[&str; 2]; 5] = [
    ["100 % (100 %)", "97 % (95 %)"],
    ["97 % (95 %)", "83 % (80 %)"],
    ["94 % (91 %)", "80 % (77 %)"],
    ["100 % (99 %)", "95 % (93 %)"],
    ["100 % (100 %)", "100 % (100 %)"],
];

/// The distribution of requests over the routes of a set.
#[derive(Clone, Copy, Debug, PartialEq)]
enum RouteDistribution {
    Uniform,
    /// The nth route has 1/n of the requests of the first one.
    Zipf,
}

/// The requests of one tenant to a set of routes.
struct TenantTraffic {
    name: String,
    traffic: RouteDistribution,
    offered: f64,
    routes: Vec<String>,
    /// For each route, the total share of the traffic of this route and all routes before it.
    cumulative_share: Vec<f64>,
    /// Number of requests that are due but not sent yet, including a fraction.
    due_requests: f64,
    random: fastrand::Rng,
    allowed_by_split: u64,
    allowed_by_whole: u64,
}

impl TenantTraffic {
    fn new(traffic: RouteDistribution, offered: f64, set: usize) -> Self {
        let weight = |nth: usize| match traffic {
            RouteDistribution::Uniform => 1.0,
            RouteDistribution::Zipf => 1.0 / (nth + 1) as f64,
        };
        let all: f64 = (0..ROUTES_PER_SET).map(weight).sum();
        let mut sum = 0.0;
        let cumulative_share = (0..ROUTES_PER_SET).map(|nth| {
            sum += weight(nth) / all;
            sum
        });
        Self {
            name: format!("{traffic:?}-{offered}-{set}"),
            traffic,
            offered,
            routes: (0..ROUTES_PER_SET).map(|nth| format!("/service-{set}/route-{nth}")).collect(),
            cumulative_share: cumulative_share.collect(),
            due_requests: 0.0,
            random: fastrand::Rng::with_seed(set as u64),
            allowed_by_split: 0,
            allowed_by_whole: 0,
        }
    }

    /// Returns the route indexes of the requests that the tenant sends in the next second.
    fn draw_random_routes_for_next_second(&mut self) -> Vec<usize> {
        self.due_requests += self.offered * MAX_REQUESTS_PER_MINUTE / 60.0;
        let many = self.due_requests.floor();
        self.due_requests -= many;
        let random = &mut self.random;
        let draw = |_| {
            let drawn = random.f64();
            self.cumulative_share
                .iter()
                .position(|&cumulative_share| drawn < cumulative_share)
                .unwrap_or(ROUTES_PER_SET - 1)
        };
        (0..many as usize).map(draw).collect()
    }
}

/// Returns the throughput of the split limit: the average over the sets of routes, and the minimum. The throughput is
/// the number of requests that the split limit allowed, divided by the number that the same limit allowed without a
/// split.
fn mean_and_min_split_throughput(
    tenants: &[TenantTraffic],
    traffic: RouteDistribution,
    offered: f64,
) -> (f64, f64) {
    let shares: Vec<f64> = tenants
        .iter()
        .filter(|tenant| tenant.traffic == traffic && tenant.offered == offered)
        .map(|tenant| tenant.allowed_by_split as f64 / tenant.allowed_by_whole as f64)
        .collect();
    assert_eq!(shares.len(), ROUTE_SET_COUNT);
    let mean = shares.iter().sum::<f64>() / ROUTE_SET_COUNT as f64;
    (mean, shares.iter().copied().fold(f64::MAX, f64::min))
}

#[tokio::test]
async fn split_limit_throughput_matches_documentation() {
    let (redis, clock) = (Redis::start(), ManualClock::default());
    let split = new_instance(SPLIT_LIMIT_POLICY, &redis.address(), &clock);
    let whole = Gate::new(
        Policy::from_yaml(SPLIT_LIMIT_POLICY).unwrap(),
        MemoryStore::with_clock(clock.clone(), 1_000),
    );
    let mut tenants: Vec<TenantTraffic> = [RouteDistribution::Uniform, RouteDistribution::Zipf]
        .into_iter()
        .flat_map(|traffic| SENT_REQUESTS_RELATIVE_TO_LIMIT.map(|offered| (traffic, offered)))
        .flat_map(|(traffic, offered)| {
            (0..ROUTE_SET_COUNT).map(move |set| TenantTraffic::new(traffic, offered, set))
        })
        .collect();
    // Only the third minute counts: by then two windows are full, regardless of the initial state.
    for second in 0..180 {
        let next: Vec<Vec<usize>> =
            tenants.iter_mut().map(TenantTraffic::draw_random_routes_for_next_second).collect();
        let checks = tenants.iter().zip(&next).map(|(tenant, routes)| {
            let check = |route: &usize| is_allowed(&split, &tenant.name, &tenant.routes[*route]);
            join_all(routes.iter().map(check))
        });
        let passed = join_all(checks).await;
        for ((tenant, routes), passed) in tenants.iter_mut().zip(&next).zip(passed) {
            let of_whole = routes.iter().filter(|route| {
                let request = new_request(&tenant.name, &tenant.routes[**route]);
                whole.check(&request).is_allowed()
            });
            let of_whole = of_whole.count() as u64;
            if second >= 120 {
                tenant.allowed_by_whole += of_whole;
                tenant.allowed_by_split += passed.iter().filter(|passed| **passed).count() as u64;
            }
        }
        clock.advance(Duration::from_secs(1));
    }
    // `--nocapture` prints the table.
    println!("| offered | uniform | Zipf |\n|---|---|---|");
    let rows = SENT_REQUESTS_RELATIVE_TO_LIMIT.map(|offered| {
        let row = [RouteDistribution::Uniform, RouteDistribution::Zipf].map(|traffic| {
            let (mean, least) = mean_and_min_split_throughput(&tenants, traffic, offered);
            format!("{:.0} % ({:.0} %)", 100.0 * mean, 100.0 * least)
        });
        println!("| {offered}x | {} | {} |", row[0], row[1]);
        row
    });
    assert_eq!(
        rows, EXPECTED_MEAN_AND_MIN_THROUGHPUT_TEXTS,
        "docs/explanation/redis-store.md has this table"
    );
}

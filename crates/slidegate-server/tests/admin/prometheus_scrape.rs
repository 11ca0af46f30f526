//! Tests that Prometheus collects correct counts from a server under load. The final counts in Prometheus must match
//! the responses that the callers received.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{Value, json};

use crate::common::Server;
use crate::common::documented_metrics::documented_metrics;
use crate::common::prometheus::{Prometheus, Sample};
use crate::http::client::{Client, HttpResponse};

const POLICY: &str = "
rules:
  - { name: per-tenant, domain: api, per: [tenant], limits: [400/s, 2000/10s], overrides: [{ name: pro, when: { plan: pro }, limits: [1000/s] }] }
  - { name: watched, domain: api, per: [tenant], limits: [100/s], mode: observe }
  - { name: canary, domain: api, per: [ip], limits: [50/s], mode: { enforce: 50% } }
  - { name: global, domain: api, limits: [5000/s] }
  - { name: spent, domain: api, per: [tenant], limits: [90000/d], charge: always }
";

/// Number of threads that send requests concurrently, small enough to not overload the machine.
const LOAD_THREAD_COUNT: usize = 4;

/// Number of requests by result, and number of requests by limit and outcome. A key for a result is a text such as
/// `request denied`. A key such as `allowed per-tenant 1s` consists of the outcome, the rule name and the limit name.
type CountsByOutcome = BTreeMap<String, u64>;

/// Returns the path and the body of the `nth` request that a load thread sends.
fn nth_request_of_thread(nth: usize, thread_number: usize) -> (&'static str, Value) {
    let tenant = format!("t{}", nth % 3);
    let plan = if nth.is_multiple_of(3) { "pro" } else { "free" };
    let attributes =
        json!({ "tenant": tenant, "ip": format!("192.0.2.{}", nth % 7), "plan": plan });
    let cost = if nth.is_multiple_of(10) { 1 + thread_number } else { 1 };
    let path = if nth % 50 == 7 { "/v1/peek" } else { "/v1/check" };
    (path, json!({ "domain": "api", "attributes": attributes, "cost": cost }))
}

/// Adds a response to `counts`: the result of the request, and each limit outcome that the server also counts in its
/// metrics.
fn count_response_outcomes(counts: &mut CountsByOutcome, path: &str, response: &HttpResponse) {
    let mut count = |label: String| *counts.entry(label).or_default() += 1;
    let result = match response.status {
        200 => "allowed",
        429 => "denied",
        400 => "invalid",
        status => panic!("{status}: {}", response.body),
    };
    count(format!("request {result}"));
    if response.status == 400 || path == "/v1/peek" {
        return;
    }
    let body = response.json();
    for limit in body["limits"].as_array().unwrap() {
        let name = format!(
            "{} {}",
            limit["rule"].as_str().unwrap(),
            limit["limit"]["name"].as_str().unwrap()
        );
        let (fits, observed) = (limit["allowed"] == true, limit["observed"] == true);
        // A rule with `charge: always` is charged in any case.
        let outcome = match (fits, observed) {
            (false, true) => "observed",
            (false, false) if limit["rule"] != "spent" => "denied",
            _ if body["allowed"] == false => continue,
            _ => "allowed",
        };
        count(format!("{outcome} {name}"));
        let (remaining, max) =
            (limit["remaining"].as_u64().unwrap(), limit["limit"]["max"].as_u64().unwrap());
        if outcome == "allowed" && remaining * 5 < max {
            count(format!("near {name}"));
        }
    }
}

/// Sends requests to `address` until `stop` is set, and returns the counted results of all responses.
fn send_requests_until_stopped(
    address: SocketAddr,
    thread_number: usize,
    stop: &AtomicBool,
) -> CountsByOutcome {
    let (client, mut counts) = (Client::with_address(address), CountsByOutcome::new());
    for nth in (0..).take_while(|_| !stop.load(Ordering::Relaxed)) {
        let (path, check) = nth_request_of_thread(nth, thread_number);
        let body = if nth % 100 == 3 { "{".to_owned() } else { check.to_string() };
        count_response_outcomes(&mut counts, path, &client.post(path, body));
    }
    counts
}

/// Queries Prometheus for the request results and limit outcomes that the server has exported.
fn read_counts_from_prometheus(prometheus: &Prometheus) -> CountsByOutcome {
    let mut counts = CountsByOutcome::new();
    let mut read = |metric: &str, name: fn(&Sample) -> String| {
        for sample in prometheus.query(&format!("{metric} > 0")).unwrap() {
            counts.insert(name(&sample), sample.value as u64);
        }
    };
    read("slidegate_requests_total", |sample| format!("request {}", sample.labels["result"]));
    read("slidegate_decisions_total", |sample| {
        let labels = &sample.labels;
        format!("{} {} {}", labels["outcome"], labels["rule"], labels["limit"])
    });
    read("slidegate_near_limit_total", |sample| {
        format!("near {} {}", sample.labels["rule"], sample.labels["limit"])
    });
    counts
}

/// Stops the load threads when it is dropped, also if the test fails: otherwise the scope would wait for them forever.
struct StopOnDrop<'s>(&'s AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn prometheus_totals_match_responses_under_load() {
    let server = Server::start_with_admin(POLICY, &[]);
    let stop = AtomicBool::new(false);
    let address = server.address();
    let (prometheus, counts) = thread::scope(|scope| {
        let run = |thread_number| send_requests_until_stopped(address, thread_number, &stop);
        let load_threads: Vec<_> =
            (0..LOAD_THREAD_COUNT).map(|nth| scope.spawn(move || run(nth))).collect();
        let load = StopOnDrop(&stop);
        let prometheus = Prometheus::start(&[server.admin_address()]);
        // The counters continue after a change of the policy.
        for reload in 0..5 {
            let other = format!("{}/d", 90_001 + reload);
            fs::write(server.policy_path(), POLICY.replace("90000/d", &other)).unwrap();
            server.wait_for_log("the policy has changed");
        }
        drop(load);
        let mut total = CountsByOutcome::new();
        for load_thread in load_threads {
            for (label, count) in load_thread.join().unwrap() {
                *total.entry(label).or_default() += count;
            }
        }
        (prometheus, total)
    });
    prometheus.wait_for_scrapes(2);
    assert_eq!(read_counts_from_prometheus(&prometheus), counts);
    assert_eq!(prometheus.single_value(r#"slidegate_policy_reloads_total{result="changed"}"#), 5.0);
    for metric in documented_metrics() {
        for series in metric.series_names() {
            let found = prometheus.series_labels(&series).unwrap();
            assert!(!found.is_empty(), "{series} is documented and missing");
        }
    }
    let store_calls = prometheus.single_value("slidegate_store_seconds_count");
    let decided = prometheus.single_value("slidegate_request_seconds_count");
    let invalid = counts["request invalid"] as f64;
    assert_eq!(store_calls, decided - invalid, "every decision calls the store once");
    assert!(counts["request denied"] > 0 && counts["request allowed"] > 0, "{counts:?}");
    assert!(prometheus.single_value("slidegate_request_seconds_sum") > 0.0);
}

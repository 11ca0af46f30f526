//! A real Prometheus scrapes a server under load: what it knows in the end is what the callers saw.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{Value, json};

use crate::client::{Answer, Client};
use crate::common::Server;
use crate::documented::metrics;
use crate::prometheus::{Prometheus, Sample};

const POLICY: &str = "
rules:
  - { name: per-tenant, domain: api, per: [tenant], limits: [400/s, 2000/10s], overrides: [{ name: pro, when: { plan: pro }, limits: [1000/s] }] }
  - { name: watched, domain: api, per: [tenant], limits: [100/s], mode: observe }
  - { name: canary, domain: api, per: [ip], limits: [50/s], mode: { enforce: 50% } }
  - { name: everybody, domain: api, limits: [5000/s] }
  - { name: spent, domain: api, per: [tenant], limits: [90000/d], charge: always }
";

/// As many as may be under way without the machine being busy with waiting.
const CALLERS: usize = 4;

/// What callers have seen: how requests were answered, and what each limit said; by the labels.
type Seen = BTreeMap<String, u64>;

fn request(nth: usize, caller: usize) -> (&'static str, Value) {
    let tenant = format!("t{}", nth % 3);
    let plan = if nth.is_multiple_of(3) { "pro" } else { "free" };
    let attributes =
        json!({ "tenant": tenant, "ip": format!("192.0.2.{}", nth % 7), "plan": plan });
    let cost = if nth.is_multiple_of(10) { 1 + caller } else { 1 };
    let path = if nth % 50 == 7 { "/v1/peek" } else { "/v1/check" };
    (path, json!({ "domain": "api", "attributes": attributes, "cost": cost }))
}

fn see(seen: &mut Seen, path: &str, answer: &Answer) {
    let mut see = |what: String| *seen.entry(what).or_default() += 1;
    let result = match answer.status {
        200 => "allowed",
        429 => "denied",
        400 => "invalid",
        other => panic!("{other}: {}", answer.body),
    };
    see(format!("request {result}"));
    if answer.status == 400 || path == "/v1/peek" {
        return;
    }
    let answer = answer.json();
    for limit in answer["limits"].as_array().unwrap() {
        let of = format!(
            "{} {}",
            limit["rule"].as_str().unwrap(),
            limit["limit"]["name"].as_str().unwrap()
        );
        let (fits, observed) = (limit["allowed"] == true, limit["observed"] == true);
        // Debts are charged whatever happens.
        let verdict = match (fits, observed) {
            (false, true) => "observed",
            (false, false) if limit["rule"] != "spent" => "denied",
            _ if answer["allowed"] == false => continue,
            _ => "allowed",
        };
        see(format!("{verdict} {of}"));
        let (left, max) =
            (limit["remaining"].as_u64().unwrap(), limit["limit"]["max"].as_u64().unwrap());
        if verdict == "allowed" && left * 5 < max {
            see(format!("near {of}"));
        }
    }
}

/// Calls until it is told to stop.
fn call(address: SocketAddr, caller: usize, stop: &AtomicBool) -> Seen {
    let (client, mut seen) = (Client::at(address), Seen::new());
    for nth in (0..).take_while(|_| !stop.load(Ordering::Relaxed)) {
        let (path, ask) = request(nth, caller);
        let body = if nth % 100 == 3 { "{".to_owned() } else { ask.to_string() };
        see(&mut seen, path, &client.post(path, body));
    }
    seen
}

/// What Prometheus knows, told as what callers have seen.
fn known(prometheus: &Prometheus) -> Seen {
    let mut known = Seen::new();
    let mut tell = |metric: &str, name: fn(&Sample) -> String| {
        for sample in prometheus.query(&format!("{metric} > 0")).unwrap() {
            known.insert(name(&sample), sample.value as u64);
        }
    };
    tell("slidegate_requests_total", |one| format!("request {}", one.labels["result"]));
    tell("slidegate_decisions_total", |one| {
        format!("{} {} {}", one.labels["outcome"], one.labels["rule"], one.labels["limit"])
    });
    tell("slidegate_near_limit_total", |one| {
        format!("near {} {}", one.labels["rule"], one.labels["limit"])
    });
    known
}

#[test]
fn what_prometheus_knows_in_the_end_is_what_the_callers_saw() {
    let server = Server::start_with_admin(POLICY, &[]);
    let stop = AtomicBool::new(false);
    let address = server.address();
    let (prometheus, seen) = thread::scope(|scope| {
        let call = |caller| call(address, caller, &stop);
        let callers: Vec<_> = (0..CALLERS).map(|nth| scope.spawn(move || call(nth))).collect();
        let prometheus = Prometheus::scraping(&[server.admin()]);
        // Counters go on under another policy.
        for reload in 0..5 {
            let other = format!("{}/d", 90_001 + reload);
            fs::write(server.policy(), POLICY.replace("90000/d", &other)).unwrap();
            server.wait_for_log("the policy has changed");
        }
        stop.store(true, Ordering::Relaxed);
        let mut all = Seen::new();
        for caller in callers {
            for (what, times) in caller.join().unwrap() {
                *all.entry(what).or_default() += times;
            }
        }
        (prometheus, all)
    });
    prometheus.wait_for_scrapes(2);
    assert_eq!(known(&prometheus), seen);
    assert_eq!(prometheus.value(r#"slidegate_policy_reloads_total{result="changed"}"#), 5.0);
    for metric in metrics() {
        for series in metric.series() {
            let found = prometheus.series(&series).unwrap();
            assert!(!found.is_empty(), "{series} is documented");
        }
    }
    let asked = prometheus.value("slidegate_store_seconds_count");
    let decided = prometheus.value("slidegate_request_seconds_count");
    let invalid = seen["request invalid"] as f64;
    assert_eq!(asked, decided - invalid, "every decision asks the store once");
    assert!(seen["request denied"] > 0 && seen["request allowed"] > 0, "{seen:?}");
    assert!(prometheus.value("slidegate_request_seconds_sum") > 0.0);
}

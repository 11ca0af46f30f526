//! Tests of continuous reloads under full load. Each response comes from exactly one valid policy, no counts are lost,
//! and no request fails. `RELOAD_CHANGES=100` changes the policy 100 times instead of ten times.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{env, thread};

use serde_json::Value;
use slidegate::Policy;

use crate::http::client::{RawConnection, raw_check_request};
use crate::reload::folder::{PolicyFolder, ReloadingServer};

/// Pause between the two halves of a file, shorter than the interval at which the server reads it.
const HALF_WRITTEN: Duration = Duration::from_millis(25);
const CONNECTION_COUNT: usize = 4;

const REQUESTS_PER_TENANT: u64 = 100;
/// Number of allowed requests per tenant, the same under both policy variants.
const MAX_PER_TENANT: u64 = 30;

/// Returns the policy variant `a` or `b`. Both variants contain the rules `bound`, `first` and `end`, which apply to
/// every request.
fn policy_variant(variant: char) -> String {
    let max = max_in_policy_variant(variant);
    let fillers = (0..50)
        .map(|nth| format!("  - {{ name: {variant}-{nth}, domain: else, limits: [{nth}/s] }}\n"));
    format!(
        "rules:
  - {{ name: bound, per: [tenant], limits: [{MAX_PER_TENANT}/d], algorithm: sliding_log }}
  - {{ name: first, limits: [{max}/d] }}
  - {{ name: only-{variant}, limits: [500000000/d] }}
{}  - {{ name: end, limits: [{max}/d] }}
",
        fillers.collect::<String>()
    )
}

/// Returns the limit's maximum in the rules `first` and `end` of a policy variant.
fn max_in_policy_variant(variant: char) -> u64 {
    if variant == 'a' { 400_000_000 } else { 300_000_000 }
}

/// Returns a policy without its last rule. The result is still a valid policy.
fn remove_last_rule(policy: &str) -> &str {
    &policy[..policy.find("  - { name: end").unwrap()]
}

/// Counts of the responses that a client received.
#[derive(Default)]
struct ClientStats {
    /// Number of limit outcomes, by rule name and outcome: `allowed` if all limits allow the request, `denied` if the
    /// limit of this rule denies the request.
    limit_results: BTreeMap<(String, &'static str), u64>,
    /// Number of requests, by result (`allowed` or `denied`).
    requests: BTreeMap<&'static str, u64>,
    /// Number of requests that each policy variant decided. The key is `a` or `b`.
    by_policy: BTreeMap<String, u64>,
}

impl ClientStats {
    fn add_counts(&mut self, other: Self) {
        for (key, count) in other.limit_results {
            *self.limit_results.entry(key).or_default() += count;
        }
        for (key, count) in other.requests {
            *self.requests.entry(key).or_default() += count;
        }
        for (key, count) in other.by_policy {
            *self.by_policy.entry(key).or_default() += count;
        }
    }

    fn total_requests(&self) -> u64 {
        self.requests.values().sum()
    }

    /// Asserts that the response to the `nth` request of a tenant comes from exactly one policy variant, and counts the
    /// response.
    fn count_response(&mut self, nth: u64, status: u16, response: &Value) {
        let allowed = nth < MAX_PER_TENANT;
        assert_eq!(
            status,
            if allowed { 200 } else { 429 },
            "request {nth} of its tenant: {response}"
        );
        *self.requests.entry(if allowed { "allowed" } else { "denied" }).or_default() += 1;
        let limits = response["limits"].as_array().unwrap();
        let rules: Vec<&str> = limits.iter().map(|limit| limit["rule"].as_str().unwrap()).collect();
        let variant = rules[2].strip_prefix("only-").unwrap();
        assert_eq!([rules[0], rules[1], rules[3]], ["bound", "first", "end"], "{response}");
        let max = max_in_policy_variant(variant.chars().next().unwrap());
        for index in [1, 3] {
            assert_eq!(limits[index]["limit"]["max"], max, "mixed policies: {response}");
        }
        assert_eq!(limits[0]["remaining"], MAX_PER_TENANT.saturating_sub(nth + 1), "{response}");
        *self.by_policy.entry(variant.into()).or_default() += 1;
        for limit in limits {
            let outcome = match limit["allowed"].as_bool().unwrap() {
                true if allowed => "allowed",
                true => continue,
                false => "denied",
            };
            let rule = limit["rule"].as_str().unwrap().to_owned();
            *self.limit_results.entry((rule, outcome)).or_default() += 1;
        }
    }
}

/// Sends requests over one connection, for one tenant after another, until `is_stopped` is set. Returns the counts of
/// the responses.
fn send_requests(address: SocketAddr, connection: usize, is_stopped: &AtomicBool) -> ClientStats {
    let (mut raw, mut stats) = (RawConnection::connect(address), ClientStats::default());
    for tenant in 0.. {
        let body = format!(r#"{{"attributes":{{"tenant":"{connection}-{tenant}"}}}}"#);
        let request = raw_check_request(&body);
        for nth in 0..REQUESTS_PER_TENANT {
            if is_stopped.load(Ordering::Relaxed) {
                return stats;
            }
            raw.write(&request);
            let (status, response) = raw.read_status_and_body();
            stats.count_response(nth, status, &serde_json::from_str(&response).unwrap());
        }
    }
    stats
}

/// Makes change number `nth` to the policy file, and waits until the server has read it. Returns `true` if the new file
/// is valid, and has this variant of the policy. Some files are invalid, and some are written in two steps.
fn change_policy_file(
    folder: &PolicyFolder,
    server: &ReloadingServer,
    nth: u64,
    variant: char,
) -> bool {
    let valid = policy_variant(variant);
    let is_valid = ![5, 7, 8].contains(&(nth % 10));
    match nth % 10 {
        3 => {
            // The first part is a valid policy without the last rule, but must not be loaded.
            let first_part = remove_last_rule(&valid);
            let mut file = folder.begin_write(first_part);
            server.process.send_signal("HUP");
            thread::sleep(HALF_WRITTEN);
            file.write_all(&valid.as_bytes()[first_part.len()..]).unwrap();
        }
        5 => folder.replace_file(""),
        7 => folder.replace_file(&valid[..valid.len() / 2]),
        8 => folder.replace_file(&valid.replace("500000000/d", "500000000/x")),
        9 => folder.overwrite_policy(&valid),
        _ => folder.replace_file(&valid),
    }
    server.process.wait_for_log(if is_valid {
        "the policy has changed"
    } else {
        "policy reload failed"
    });
    is_valid
}

#[test]
fn frequent_reloads_lose_no_requests_or_counts() {
    let all_changes = env::var("RELOAD_CHANGES").map_or(10, |text| text.parse().unwrap());
    let is_policy = |text: &str| Policy::from_yaml(text).is_ok();
    for valid in ['a', 'b'].map(policy_variant) {
        assert!(
            is_policy(&valid)
                && is_policy(remove_last_rule(&valid))
                && !is_policy(&valid[..valid.len() / 2])
        );
    }
    let folder = PolicyFolder::with_policy(&policy_variant('a'));
    let server = folder.start_server(&["--max-keys", "10000000"]);
    let is_stopped = AtomicBool::new(false);
    let (mut stats, mut changes, mut valid_changes) = (ClientStats::default(), 0, 0);
    let address = server.process.address();
    thread::scope(|scope| {
        let is_stopped = &is_stopped;
        let clients: Vec<_> = (0..CONNECTION_COUNT)
            .map(|nth| scope.spawn(move || send_requests(address, nth, is_stopped)))
            .collect();
        // Stops early if a client fails.
        while changes < all_changes && !clients.iter().any(|client| client.is_finished()) {
            changes += 1;
            let variant = if valid_changes % 2 == 0 { 'b' } else { 'a' };
            valid_changes += u64::from(change_policy_file(&folder, &server, changes, variant));
        }
        is_stopped.store(true, Ordering::Relaxed);
        clients.into_iter().for_each(|client| stats.add_counts(client.join().unwrap()));
    });
    let reloads = ["changed", "unchanged", "failed"].map(|result| server.reload_count(result));
    println!(
        "{} requests, none failed, by policy {:?}; {changes} changes, {valid_changes} of them valid; reloads {} changed, {} unchanged, {} failed",
        stats.total_requests(),
        stats.by_policy,
        reloads[0],
        reloads[1],
        reloads[2],
    );
    for ((rule, outcome), count) in &stats.limit_results {
        let metric = server.metric_sum(&format!(
            r#"slidegate_decisions_total{{domain="default",rule="{rule}",limit="1d",outcome="{outcome}"}}"#
        ));
        assert_eq!(metric, *count, "{rule} {outcome}");
    }
    for (result, count) in &stats.requests {
        let name = format!(r#"slidegate_requests_total{{protocol="http",result="{result}"}}"#);
        assert_eq!(server.metric_sum(&name), *count, "{result}");
    }
    assert_eq!(server.metric_sum("slidegate_requests_total"), stats.total_requests());
    assert_eq!(reloads, [valid_changes, 0, changes - valid_changes]);
    assert!(stats.by_policy.len() == 2 && stats.requests.len() == 2, "{:?}", stats.by_policy);
}

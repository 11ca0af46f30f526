//! Tests of the accuracy figures in the replay report. The report compares each limit with an exact log, which keeps
//! every request.

use super::*;

/// Renders a JSON report as the table that the text report contains. The table compares each limit with an exact log.
pub fn render_comparison_table(report: &Value) -> String {
    let mut table =
        "compared with an exact log false allows false denies worst window\n".to_owned();
    for rule in report["rules"].as_array().unwrap() {
        let exact = &rule["exact"];
        let name = rule["rule"].as_str().unwrap();
        table += &format!("{name} {} {}\n", exact["false_allows"], exact["false_denies"]);
        for limit in rule["limits"].as_array().unwrap() {
            let (exact, worst) = (&limit["exact"], &limit["exact"]["worst_window"]);
            let name = limit["limit"]["name"].as_str().unwrap();
            let window = if name == "burst" { "10s" } else { name };
            table += &format!(
                "{name}: {}/{window} {} {} {} {} of {} ({} %)\n",
                limit["limit"]["max"],
                limit["algorithm"].as_str().unwrap(),
                exact["false_allows"],
                exact["false_denies"],
                worst["units"],
                worst["max"],
                worst["percent"],
            );
        }
    }
    table
}

/// Replays requests under a policy with a single rule, which has one limit per IP address. Returns the part of the JSON
/// report for that rule. `test` is the name of the temporary directory.
fn replay_single_rule(test: &str, limit: &str, requests: &[AccessLogRequest]) -> Value {
    let files = ReplayFiles::new(test);
    files.write_file(
        "policy.yaml",
        format!("rules: [ {{ name: all, per: [ip], limits: [{limit}] }} ]"),
    );
    files.write_file("access.log", render_access_log(requests));
    files.replay_to_json_report(&["access.log"])["rules"][0].clone()
}

/// Returns `number` requests of the same client, all of them `seconds` seconds after [`START_UNIX_SECONDS`].
fn new_request_burst(seconds: i64, number: usize) -> Vec<AccessLogRequest> {
    new_request_burst_of_client("::1", seconds, number)
}

fn new_request_burst_of_client(ip: &str, seconds: i64, number: usize) -> Vec<AccessLogRequest> {
    let request = AccessLogRequest {
        at: START_UNIX_SECONDS + seconds,
        ip: ip.into(),
        method: "GET",
        path: "/".into(),
    };
    vec![request; number]
}

/// Returns the part of the JSON report that compares a limit of 10 units with an exact log, filled with these numbers.
fn expected_comparison_with_exact_log(
    false_allows: u64,
    false_denies: u64,
    units: u64,
    percent: u64,
    over: u64,
) -> Value {
    json!({
        "false_allows": false_allows,
        "false_denies": false_denies,
        "worst_window": { "units": units, "max": 10, "percent": percent, "over": over },
    })
}

const COUNTER: &str = "{ max: 10, window: 1m, algorithm: sliding_counter }";

#[test]
fn sliding_log_has_no_false_allows_or_denials() {
    let files = ReplayFiles::new("exact-log");
    files.write_file("access.log", render_access_log(&generate_requests()));
    let report = files.replay_to_json_report(&["access.log"]);
    for rule in report["rules"].as_array().unwrap() {
        assert_eq!(rule["exact"], json!({ "false_allows": 0, "false_denies": 0 }));
        assert!(rule["denied"].as_u64().unwrap() > 20);
        for limit in rule["limits"].as_array().unwrap() {
            let max = &limit["limit"]["max"];
            let worst = json!({ "units": max, "max": max, "percent": 100, "over": 0 });
            let expected = json!({ "false_allows": 0, "false_denies": 0, "worst_window": worst });
            assert_eq!(limit["exact"], expected, "{limit}");
        }
    }
}

#[test]
fn fixed_window_boundary_bursts_count_as_false_allows() {
    // For most keys a window boundary lies between the bursts, since each key shifts its windows by its own phase.
    let clients = 0..20;
    let bursts_at =
        |second| move |client| new_request_burst_of_client(&format!("10.0.0.{client}"), second, 10);
    let requests: Vec<_> =
        clients.clone().flat_map(bursts_at(0)).chain(clients.flat_map(bursts_at(59))).collect();
    let limit = "{ max: 10, window: 1m, algorithm: fixed_window }";
    let report = replay_single_rule("twice", limit, &requests);
    let (allowed, denied) =
        (report["allowed"].as_u64().unwrap(), report["denied"].as_u64().unwrap());
    assert_eq!((allowed + denied, report["asked"].as_u64()), (400, Some(400)));
    assert!(allowed > 200, "{report}");
    // Every allowed request of the second bursts is a false allow.
    assert_eq!(
        report["limits"][0]["exact"],
        expected_comparison_with_exact_log(allowed - 200, 0, 20, 200, 10)
    );
}

#[test]
fn small_sliding_window_has_no_false_allows_or_denials() {
    let requests = [0, 59, 60, 90].map(|second| new_request_burst(second, 10)).concat();
    let report = replay_single_rule("exact-window", "10/min", &requests);
    assert_eq!((&report["allowed"], &report["denied"]), (&json!(20), &json!(20)));
    assert_eq!(report["limits"][0]["exact"], expected_comparison_with_exact_log(0, 0, 10, 100, 0));
}

#[test]
fn sliding_counter_false_allows_are_counted() {
    // Ten requests in the last second of a window count as five half a window later.
    let requests = [new_request_burst(59, 10), new_request_burst(90, 10)].concat();
    let report = replay_single_rule("late-burst", COUNTER, &requests);
    assert_eq!(report["limits"][0]["exact"], expected_comparison_with_exact_log(5, 0, 15, 150, 5));
    assert_eq!(report["exact"], json!({ "false_allows": 5, "false_denies": 0 }));
}

#[test]
fn sliding_counter_false_denials_are_counted() {
    // Ten requests still count as ten one window later, and as five after another half window.
    let requests =
        [new_request_burst(0, 10), new_request_burst(60, 10), new_request_burst(90, 10)].concat();
    let report = replay_single_rule("early-burst", COUNTER, &requests);
    assert_eq!(report["limits"][0]["exact"], expected_comparison_with_exact_log(0, 15, 10, 100, 0));
}

#[test]
fn token_bucket_burst_counts_as_excess_over_max() {
    let limit = "{ max: 10, window: 1m, burst: 15, algorithm: token_bucket }";
    let report = replay_single_rule("burst", limit, &new_request_burst(0, 20));
    assert_eq!(report["limits"][0]["exact"], expected_comparison_with_exact_log(5, 0, 15, 150, 5));

    let files = ReplayFiles::new("burst-text");
    files.write_file("policy.yaml", format!("rules: [ {{ name: all, limits: [{limit}] }} ]"));
    files.write_file("access.log", render_access_log(&new_request_burst(0, 20)));
    assert!(
        files
            .replay_to_text_report(&["access.log"])
            .contains("A token_bucket allows its burst in addition to max")
    );
}

#[test]
fn exact_comparison_excludes_denials_by_other_limits() {
    let files = ReplayFiles::new("vetoed");
    files.write_file(
        "policy.yaml",
        "rules: [ { name: all, per: [ip], algorithm: sliding_log, limits: [3/s, 10/min] } ]",
    );
    files.write_file(
        "access.log",
        render_access_log(
            &[new_request_burst(0, 9), new_request_burst(1, 9), new_request_burst(2, 9)].concat(),
        ),
    );
    let limits = &files.replay_to_json_report(&["access.log"])["rules"][0]["limits"];
    assert_eq!(limits[1]["exact"], expected_comparison_with_exact_log(0, 0, 9, 90, 0));
}

#[test]
fn keys_excluded_from_comparison_are_reported() {
    let files = ReplayFiles::new("cut");
    files.write_file("access.log", render_access_log(&generate_requests()));
    let report = files.replay_to_json_report(&["--max-keys", "64", "access.log"]);
    assert_ne!(report["forgotten_counts"], 0);
    let text = files.replay_to_text_report(&["--max-keys", "64", "access.log"]);
    assert!(text.contains("requests are not compared, because there were more keys"), "{text}");
    assert!(
        text.contains("counters were removed early, because there were more than --max-keys"),
        "{text}"
    );
    assert_eq!(files.replay_to_json_report(&["access.log"])["forgotten_counts"], 0);
}

#[test]
fn zero_limit_has_no_worst_window_percentage() {
    let report = replay_single_rule("nothing", "0/min", &new_request_burst(0, 3));
    let worst = json!({ "units": 0, "max": 0, "percent": null, "over": 0 });
    assert_eq!(report["limits"][0]["exact"]["worst_window"], worst);
}

//! Tests of `slidegate replay --suggest`, which suggests limits from an access log.

use slidegate::Policy;

use super::*;

const SUGGESTED_WINDOWS: [(&str, i64); 5] =
    [("1s", 1), ("10s", 10), ("1m", 60), ("1h", 3_600), ("1d", 86_400)];

/// Returns one number per client: the maximum number of requests of that client in any period of `window` seconds.
/// `client` returns the key that identifies the client of a request.
fn max_requests_per_client(
    requests: &[AccessLogRequest],
    client: impl Fn(&AccessLogRequest) -> String,
    window: i64,
) -> Vec<usize> {
    let mut clients: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for request in requests {
        clients.entry(client(request)).or_default().push(request.at);
    }
    let inside = |times: &[i64], end: i64| {
        times.iter().filter(|&&at| at > end - window && at <= end).count()
    };
    clients.values().filter_map(|times| times.iter().map(|&end| inside(times, end)).max()).collect()
}

fn as_usize(value: &Value) -> usize {
    value.as_u64().unwrap() as usize
}

/// Returns the report about requests of one client in the same second.
fn report_of_requests_at_once(test: &str, requests: usize, policy: &str, flags: &[&str]) -> Value {
    let files = ReplayFiles::new(test);
    files.write_file("own.yaml", policy);
    let request = AccessLogRequest {
        at: START_UNIX_SECONDS,
        ip: "203.0.113.1".into(),
        method: "GET",
        path: "/".into(),
    };
    files.write_file("access.log", request.to_access_log_line().repeat(requests));
    let arguments = [&["--policy", "own.yaml", "--json"], flags, &["access.log"]].concat();
    serde_json::from_str(&expect_successful_stdout(files.run_replay(&arguments, b""))).unwrap()
}

#[test]
fn suggested_limits_are_in_units_of_rule() {
    let policy = "rules: [{ name: a, per: [ip], cost: 5, limits: [10000/min] }]";
    let flags = ["--suggest", "--headroom", "0%"];
    let report = report_of_requests_at_once("units", 20, policy, &flags);
    assert_eq!(report["suggestions"]["rules"][0]["windows"][0]["choices"][0]["max"], 100);
}

/// Policies for Envoy have its name of the client's address.
#[test]
fn rule_with_remote_address_applies_to_address_of_client() {
    let policy = "rules: [{ name: a, per: [remote_address], limits: [1/h] }]";
    let report = report_of_requests_at_once("alias", 2, policy, &[]);
    assert_eq!((&report["rules"][0]["asked"], &report["denied"]), (&json!(2), &json!(1)));
}

/// A joint limit that is exceeded does not deny if another one fits.
#[test]
fn joint_rule_denies_only_denied_requests() {
    let policy = "rules:
  - { name: own, per: [ip], limits: [1/h], mode: jointly }
  - { name: team, per: [method], limits: [100/h], mode: jointly }";
    let report = report_of_requests_at_once("joint", 2, policy, &[]);
    let own = &report["rules"][0];
    assert_eq!(
        (&report["denied"], &own["denied"], &own["observed"]),
        (&json!(0), &json!(0), &json!(1))
    );
}

/// Each connection of a client has another port.
#[test]
fn client_with_many_ports_is_one_client() {
    let files = ReplayFiles::new("ports");
    let request = AccessLogRequest {
        at: START_UNIX_SECONDS,
        ip: "203.0.113.1".into(),
        method: "GET",
        path: "/".into(),
    };
    let line = request.to_access_log_line();
    let with_port = |port| line.replacen("203.0.113.1", &format!("203.0.113.1:{port}"), 1);
    let log: String = (40_000..40_200).map(with_port).collect();
    files.write_file("ports.log", log);
    files.write_file("vhosts.log", format!("www.shop.example:443 {line}").repeat(200));
    files.write_file("names.log", line.replacen("203.0.113.1", "client.example", 1).repeat(200));
    for log in ["ports.log", "vhosts.log"] {
        let report = expect_successful_stdout(
            files.run_replay(&["--suggest", "--json", "--headroom", "0%", log], b""),
        );
        let report: Value = serde_json::from_str(&report).unwrap();
        let rule = &report["suggestions"]["rules"][0];
        assert_eq!((&report["unparsable"], &rule["clients"]), (&json!(0), &json!(1)), "{log}");
        assert_eq!(rule["windows"][0]["choices"][0]["max"], 200, "{log}");
    }
    let error = expect_failure(files.run_replay(&["--suggest", "names.log"], b""));
    assert!(error.contains("does not begin with an IP address"), "{error}");
}

#[test]
fn suggested_max_is_minimal() {
    let files = ReplayFiles::new("smallest");
    let requests = generate_requests();
    files.write_file("access.log", render_access_log(&requests));
    let report: Value = serde_json::from_str(&expect_successful_stdout(
        files.run_replay(&["--suggest", "--json", "--headroom", "50%", "access.log"], b""),
    ))
    .unwrap();
    assert_eq!((&report["rules"], &report["denied"]), (&json!([]), &json!(0)));
    let rule = &report["suggestions"]["rules"][0];
    assert_eq!((&rule["rule"], &rule["per"]), (&json!("per-ip"), &json!(["ip"])));
    let windows = rule["windows"].as_array().unwrap();
    // The log covers 30 minutes, so the windows of an hour and a day are omitted.
    assert_eq!(windows.len(), 3);
    for (suggestion, (name, window)) in windows.iter().zip(SUGGESTED_WINDOWS) {
        assert_eq!(suggestion["window"], name);
        let peaks = max_requests_per_client(&requests, |request| request.ip.clone(), window);
        assert_eq!(as_usize(&rule["clients"]), peaks.len());
        let denied = |max: usize| peaks.iter().filter(|&&peak| peak > max).count();
        let choices = suggestion["choices"].as_array().unwrap();
        for (choice, per_mille) in choices.iter().zip([1, 10, 50]) {
            let smallest =
                (0..).find(|&max| denied(max) * 1000 <= peaks.len() * per_mille).unwrap();
            assert_eq!(as_usize(&choice["max"]), smallest, "{name}: {choice}");
            assert_eq!(as_usize(&choice["denied_clients"]), denied(smallest));
            assert_eq!(as_usize(&choice["may_deny_clients"]), peaks.len() * per_mille / 1000);
            let suggested = as_usize(&choice["suggested_max"]);
            assert!(suggested * 2 >= smallest * 3 && suggested < smallest * 3, "{choice}");
            assert_eq!(as_usize(&choice["still_denied_clients"]), denied(suggested));
        }
    }
}

#[test]
fn suggestions_use_only_matching_requests() {
    let files = ReplayFiles::new("applies");
    let requests = generate_requests();
    files.write_file("access.log", render_access_log(&requests));
    let report = files.replay_to_json_report(&["--suggest", "access.log"]);
    let rules = report["suggestions"]["rules"].as_array().unwrap();
    let named: Vec<_> = rules.iter().map(|rule| (&rule["rule"], &rule["per"])).collect();
    assert_eq!(
        named,
        [(&json!("per-ip"), &json!(["ip"])), (&json!("writes"), &json!(["ip", "path"]))]
    );
    let writes: Vec<AccessLogRequest> = requests
        .into_iter()
        .filter(|request| request.method == "POST" && request.path.starts_with("/api/"))
        .collect();
    let client = |request: &AccessLogRequest| format!("{} {}", request.ip, request.path);
    let max = max_requests_per_client(&writes, client, 10).into_iter().max().unwrap();
    assert_eq!(rules[1]["windows"][1]["choices"][0]["max"], max);
    // Denied requests are included in the suggestions.
    assert_ne!(report["denied"], 0);
}

#[test]
fn suggested_policy_is_valid_and_accurate() {
    let files = ReplayFiles::new("paste");
    files.write_file("access.log", render_access_log(&generate_requests()));
    let text = expect_successful_stdout(
        files.run_replay(&["--suggest", "--headroom", "0", "access.log"], b""),
    );
    let yaml = &text[text.find("# Suggested by").unwrap()..];
    let policy = Policy::from_yaml(yaml).unwrap();
    assert_eq!((policy.rules().len(), policy.rules()[0].name()), (1, "per-ip"));
    // 0.1 % of 300 clients is less than one client, so no client is denied.
    files.write_file("policy.yaml", yaml);
    let report = files.replay_to_json_report(&["access.log"]);
    assert_eq!(report["denied"], 0);
    // The alternative of 5 %, which is in a comment, denies some clients, but at most 5 % per limit.
    let limits =
        yaml.lines().find_map(|line| line.trim().strip_prefix("# at most 5 % of clients denied: "));
    let rule = "name: per-ip, per: [ip], algorithm: sliding_log";
    files
        .write_file("policy.yaml", format!("rules: [ {{ {rule}, limits: {} }} ]", limits.unwrap()));
    let report = files.replay_to_json_report(&["--top", "1000", "access.log"]);
    let clients = report["top_denied"].as_array().unwrap().len();
    assert!((1..=3 * 15).contains(&clients), "{clients}");
}

#[test]
fn equal_suggestions_for_few_clients_are_merged() {
    let files = ReplayFiles::new("few");
    let request = |ip: i64| AccessLogRequest {
        at: START_UNIX_SECONDS,
        ip: format!("10.0.0.{ip}"),
        method: "GET",
        path: "/".into(),
    };
    let requests: Vec<_> = (1..=10).flat_map(|ip| vec![request(ip); ip as usize]).collect();
    files.write_file("access.log", render_access_log(&requests));
    assert_eq!(
        expect_successful_stdout(files.run_replay(&["--suggest", "access.log"], b"")),
        "\
requests      55
first         2026-01-02T03:04:00Z
last          2026-01-02T03:04:00Z
allowed       55
denied        0
unparsable    0
out of order  0

limits for per-ip, of 10 clients  max  clients denied  plus 20 %, rounded up  clients denied
1s: denying no client              10               0                     12               0
(0.1 % or 1 % or 5 % of 10 clients is less than one client, so max is the highest demand of any client.)

(max: the smallest limit with which an exact log denies no more clients than the row says. A client
counts as denied if at least one of its requests is denied. Headroom: a margin for days with more
requests than this log. Rounded: up to 1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6 or 8 times a power of ten,
so by up to a third.)
(Windows longer than the log are omitted.)

Suggested policy; replay the log with it to see which requests it would have denied:

# Suggested by `slidegate replay --suggest`: at most 0.1 % of clients denied, 20 % headroom.
version: 1
rules:
  - name: per-ip
    per: [ip]
    limits: [12/1s]
"
    );
}

#[test]
fn clients_can_be_identified_by_any_attributes() {
    let files = ReplayFiles::new("per");
    files.write_file("access.log", render_access_log(&generate_requests()));
    let arguments = ["--suggest", "--json", "--per", "ip,header.user-agent", "access.log"];
    let report: Value =
        serde_json::from_str(&expect_successful_stdout(files.run_replay(&arguments, b""))).unwrap();
    let rule = &report["suggestions"]["rules"][0];
    assert_eq!(rule["rule"], "per-ip-header.user-agent");
    assert_eq!(rule["per"], json!(["ip", "header.user-agent"]));
    assert!(Policy::from_yaml(report["suggestions"]["policy"].as_str().unwrap()).is_ok());
}

#[test]
fn invalid_per_argument_is_quoted_in_error() {
    let files = ReplayFiles::new("per-wrong");
    files.write_file("access.log", "");
    let error =
        expect_failure(files.run_replay(&["--suggest", "--per", "ip,ip", "access.log"], b""));
    assert!(error.starts_with("--per ip,ip: `ip` is listed twice in `per`"), "{error}");
}

#[test]
fn log_without_clients_suggests_nothing() {
    let files = ReplayFiles::new("nobody");
    files.write_file("access.log", "");
    let text = expect_successful_stdout(files.run_replay(&["--suggest", "access.log"], b""));
    assert!(text.ends_with("so no limit is suggested.)\n"), "{text}");
    let json =
        expect_successful_stdout(files.run_replay(&["--suggest", "--json", "access.log"], b""));
    let json: Value = serde_json::from_str(&json).unwrap();
    assert!(Policy::from_yaml(json["suggestions"]["policy"].as_str().unwrap()).is_ok());
}

#[test]
fn clients_beyond_max_keys_are_reported() {
    let files = ReplayFiles::new("suggest-bound");
    files.write_file("access.log", render_access_log(&generate_requests()));
    let text = expect_successful_stdout(
        files.run_replay(&["--suggest", "--max-keys", "64", "access.log"], b""),
    );
    assert!(text.contains("limits for per-ip, of 64 clients"), "{text}");
    assert!(text.contains("requests are not included, because there were more keys"), "{text}");
}

#[test]
fn contradictory_replay_arguments_are_rejected() {
    let files = ReplayFiles::new("sense");
    files.write_file("access.log", "");
    for arguments in [
        &["access.log"][..],
        &["--per", "ip", "access.log"],
        &["--suggest", "--policy", "policy.yaml", "--per", "ip", "access.log"],
        &["--suggest", "--headroom", "-1%", "access.log"],
        &["--policy", "policy.yaml", "--headroom", "10%", "access.log"],
    ] {
        assert_eq!(files.run_replay(arguments, b"").status.code(), Some(2), "{arguments:?}");
    }
}

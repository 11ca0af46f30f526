//! Tests of the log lines of the server: their format and content, the escaping of values, and the bound on the number
//! of lines.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::common::{Server, TempFile};
use crate::http::client::Client;

/// A policy with a limit of 0, which denies every request that has the attribute `tenant`.
const POLICY: &str = "rules: [{ name: nobody, per: [tenant], limits: [0/min] }]";

const JSON_LOG_FLAGS: [&str; 2] = ["--log-format", "json"];

/// Attribute values that would break a log line or a JSON object if the log did not escape them.
const HOSTILE_ATTRIBUTE_VALUES: [&str; 7] = [
    "a\nb\r\n{\"level\":\"ERROR\"}",
    "\"}\\\",\\",
    "\u{0}\u{1}\u{7f}\u{85}\u{1b}[2K",
    "\u{2028}\u{2029}\u{202e}",
    "ä€😀",
    "",
    " = ; '",
];

fn send_denied_check(client: &Client, tenant: &str) {
    let response = client.check(&json!({"attributes": {"tenant": tenant}}));
    assert_eq!(response.status, 429);
}

/// Parses a line of the JSON log. Panics if the line contains a control character, or one that changes the direction of text.
fn parse_json_log_line(line: &str) -> Value {
    let is_unsafe = |char: char| char.is_control() || ('\u{2028}'..='\u{202e}').contains(&char);
    assert!(!line.contains(is_unsafe), "{line:?}");
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

/// Skips log lines up to the next denial, and returns the denial as JSON. Panics if a skipped line is not JSON.
fn next_denial_log_line(server: &Server) -> Value {
    loop {
        let line =
            parse_json_log_line(&server.next_log_line(Duration::from_secs(30)).expect("a line"));
        if line["unlogged"].is_number() {
            return line;
        }
    }
}

fn start_server_logging_every_denial(flags: &[&str]) -> Server {
    Server::start_with(POLICY, &[&["--log-denials", "1000"], flags].concat())
}

/// Stops the server, and returns the log lines that the test has not read yet. The last line, which reports the stop,
/// is omitted.
fn stop_server_and_read_log_lines(server: &Server) -> Vec<String> {
    server.send_signal("TERM");
    let lines = std::iter::from_fn(|| server.next_log_line(Duration::from_secs(30)));
    lines.take_while(|line| !line.contains("stopped")).collect()
}

#[test]
fn hostile_values_keep_json_log_lines_valid() {
    let server = start_server_logging_every_denial(&JSON_LOG_FLAGS);
    let client = Client::new(&server);
    let listening = parse_json_log_line(server.listening_log());
    assert_eq!((&listening["level"], &listening["rules"]), (&json!("INFO"), &json!(1)));
    assert!(listening["timestamp"].as_str().unwrap().parse::<Timestamp>().is_ok());
    for value in HOSTILE_ATTRIBUTE_VALUES {
        send_denied_check(&client, value);
        let shown = value.replace(',', "%2C");
        assert_eq!(next_denial_log_line(&server)["key"], format!("tenant={shown}"));
    }
    send_denied_check(&client, &"\n".repeat(1_024));
    let line = next_denial_log_line(&server);
    assert_eq!(line["key"], format!("tenant={}…", "\n".repeat(128)));
    let names: BTreeSet<&str> = line.as_object().unwrap().keys().map(String::as_str).collect();
    let expected = [
        "timestamp",
        "level",
        "message",
        "domain",
        "rule",
        "limit",
        "key",
        "cost",
        "reset_after_ms",
        "observed",
        "degraded",
        "unlogged",
    ];
    assert_eq!(names, BTreeSet::from(expected), "no retry_after_ms, since the cost never fits");
    assert_eq!(
        (&line["message"], &line["rule"], &line["limit"], &line["observed"]),
        (&json!("denied"), &json!("nobody"), &json!("1m"), &json!(false))
    );
    assert!(
        stop_server_and_read_log_lines(&server)
            .iter()
            .all(|line| parse_json_log_line(line).is_object())
    );
}

#[test]
fn hostile_values_do_not_split_text_log_lines() {
    let server = start_server_logging_every_denial(&[]);
    let client = Client::new(&server);
    for value in HOSTILE_ATTRIBUTE_VALUES {
        send_denied_check(&client, value);
        let line = server.next_log_line(Duration::from_secs(30)).unwrap();
        let is_complete =
            line.contains(" denied domain=\"default\" ") && line.ends_with(" unlogged=0");
        assert!(is_complete && !line.contains(|char: char| char.is_control()), "{line:?}");
    }
    let lines = stop_server_and_read_log_lines(&server);
    assert_eq!(lines.len(), 1, "only the line about the shutdown: {lines:#?}");
}

#[test]
fn many_denials_are_logged_in_few_lines() {
    let server =
        Server::start_with(POLICY, &["--log-denials", "5", JSON_LOG_FLAGS[0], JSON_LOG_FLAGS[1]]);
    let client = Client::new(&server);
    let second = |line: &Value| {
        line["timestamp"].as_str().unwrap().parse::<Timestamp>().unwrap().as_second()
    };
    let start = second(&parse_json_log_line(server.listening_log()));
    let (mut lines, mut accounted_denials, mut denials) = (0, 0, 0_u64);
    let mut seconds = BTreeSet::new();
    while seconds.len() < 3 {
        denials += 1;
        send_denied_check(&client, &denials.to_string());
        while let Some(line) = server.next_log_line(Duration::ZERO) {
            let line = parse_json_log_line(&line);
            lines += 1;
            accounted_denials += 1 + line["unlogged"].as_u64().unwrap();
            assert_eq!(
                line["key"],
                format!("tenant={accounted_denials}"),
                "the first denial after the unlogged ones"
            );
            seconds.insert(second(&line));
        }
    }
    let max_lines = 5 * (1 + seconds.last().unwrap() - start);
    assert!((5..=max_lines).contains(&lines), "{lines} lines for {denials} denials");
    assert!(denials > 20, "too few denials: {denials}");
}

#[test]
fn flood_of_observing_rule_hides_no_denials() {
    let policy = "
rules:
  - { name: watched, per: [tenant], limits: [0/min], mode: observe }
  - { name: enforced, when: { path: /login }, per: [tenant], limits: [0/min] }
";
    let server = Server::start_with(policy, &JSON_LOG_FLAGS);
    let client = Client::new(&server);
    let watched = json!({"attributes": {"tenant": "acme"}});
    let login = json!({"attributes": {"tenant": "zen", "path": "/login"}});
    let floods = [(); 50].map(|()| client.check(&watched).status);
    let denials = [(); 5].map(|()| client.check(&login).status);
    assert_eq!((floods, denials), ([200; 50], [429; 5]));
    let lines = stop_server_and_read_log_lines(&server);
    let lines: Vec<Value> = lines.iter().map(|line| parse_json_log_line(line)).collect();
    // A line, and the number of denials that it reports with their keys: its own one and the earlier ones.
    let accounted = |rule: &str, key: &str| -> u64 {
        let of_rule = lines.iter().filter(|line| line["rule"] == rule);
        let counts = of_rule.map(|line| {
            let own = if line["key"] == key { 1 } else { 0 };
            let unlogged = line["unlogged"].as_u64().unwrap();
            let keys = (unlogged > 0).then(|| json!(format!("{unlogged} {key}")));
            assert_eq!(line["unlogged_keys"], json!(keys), "{line}");
            own + unlogged
        });
        counts.sum()
    };
    assert_eq!(accounted("enforced", "tenant=zen"), 5, "{lines:#?}");
    // The requests to `/login` count as observed denials of another key.
    let mut watched = lines.iter().filter(|line| line["rule"] == "watched");
    let last = watched.next_back().unwrap();
    assert_eq!(
        (&last["message"], &last["observed"]),
        (&json!("denials were not logged"), &json!(true))
    );
}

#[test]
fn redacted_keys_are_logged_as_stable_hashes() {
    let server =
        start_server_logging_every_denial(&["--redact-keys", JSON_LOG_FLAGS[0], JSON_LOG_FLAGS[1]]);
    let client = Client::new(&server);
    let key = |tenant: &str| {
        send_denied_check(&client, tenant);
        let line = next_denial_log_line(&server);
        assert!(!line.to_string().contains(tenant), "{line}");
        line["key"].as_str().unwrap().strip_prefix("tenant=").unwrap().to_owned()
    };
    let (acme, again, other) = (key("acme-corp"), key("acme-corp"), key("other-corp"));
    assert_eq!((acme.len(), &again), (16, &acme));
    assert!(acme.bytes().all(|byte| byte.is_ascii_hexdigit()));
    assert_ne!(other, acme);
}

#[test]
fn denial_of_observing_rule_is_logged_as_observed() {
    let policy = "rules: [{ name: watched, limits: [1/h], algorithm: sliding_log, mode: observe }]";
    let server = Server::start_with(policy, &JSON_LOG_FLAGS);
    let client = Client::new(&server);
    for _ in 0..2 {
        assert_eq!(client.check(&json!({"attributes": {}})).status, 200);
    }
    let line = next_denial_log_line(&server);
    assert_eq!(
        (&line["message"], &line["rule"], &line["observed"], &line["key"]),
        (&json!("would have been denied"), &json!("watched"), &json!(true), &Value::Null)
    );
    let (retry, reset) = (&line["retry_after_ms"], &line["reset_after_ms"]);
    assert!(retry.as_u64().unwrap() > 3_500_000 && reset.as_u64().unwrap() > 3_500_000, "{line}");
}

#[test]
fn denial_during_store_outage_logs_reason() {
    let unused_address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let policy = "rules: [{ name: a, domain: api, limits: [1/s], on_store_error: deny }]";
    let store = format!("redis://{unused_address}");
    let server =
        Server::start_with(policy, &["--store", &store, JSON_LOG_FLAGS[0], JSON_LOG_FLAGS[1]]);
    let request = json!({"domain": "api", "attributes": {}});
    assert_eq!(Client::new(&server).check(&request).status, 503);
    let line = parse_json_log_line(&server.wait_for_log("a call to the store failed"));
    assert_eq!((&line["class"], &line["level"]), (&json!("unavailable"), &json!("WARN")), "{line}");
    let line = next_denial_log_line(&server);
    assert_eq!(
        (&line["message"], &line["because"], &line["domain"], &line["degraded"]),
        (&json!("denied"), &json!("the store is unavailable"), &json!("api"), &json!(true))
    );
}

#[test]
fn secrets_that_others_can_read_are_logged_at_start() {
    let key = TempFile::new(".key", "a key of all instances\n");
    let startup_log = |flags: &[&str]| Server::start_with(POLICY, flags).startup_log().join("\n");
    let flags = ["--token-key-file", key.path().to_str().unwrap()];
    for (mode, is_logged) in [(0o644, true), (0o604, true), (0o640, false), (0o600, false)] {
        fs::set_permissions(key.path(), Permissions::from_mode(mode)).unwrap();
        let log = startup_log(&flags);
        let warning = "--token-key-file (SLIDEGATE_TOKEN_KEY_FILE): every user of the machine";
        assert_eq!(log.contains(warning), is_logged, "{mode:o}: {log}");
    }
    let log = startup_log(&["--token-key", "a key of all instances"]);
    assert!(log.contains("--token-key (SLIDEGATE_TOKEN_KEY): every user of the machine"), "{log}");
    assert!(!log.contains("all instances"), "{log}");
}

#[test]
fn trace_level_logs_every_decision() {
    let policy = "rules: [{ name: own, domain: api, per: [tenant], limits: [1/h] }]";
    let flags = ["--log-level", "trace", "--redact-keys", JSON_LOG_FLAGS[0], JSON_LOG_FLAGS[1]];
    let server = Server::start_with(policy, &flags);
    let client = Client::new(&server);
    let decided = |domain: &str, status: u16| {
        let request = json!({"domain": domain, "attributes": {"tenant": "acme-corp"}});
        assert_eq!(client.check(&request).status, status);
        let line = server.wait_for_log("\"message\":\"decided\"");
        assert!(!line.contains("acme-corp"), "{line}");
        parse_json_log_line(&line)
    };
    let allowed = decided("api", 200);
    assert_eq!((&allowed["level"], &allowed["allowed"]), (&json!("TRACE"), &json!(true)));
    assert_eq!((&allowed["domain"], &allowed["rule"]), (&json!("api"), &json!("own")));
    assert_eq!((&allowed["limit"], &allowed["remaining"]), (&json!("1h"), &json!(0)));
    assert!(allowed["key"].as_str().unwrap().starts_with("tenant="), "{allowed}");
    assert_eq!(decided("api", 429)["allowed"], false);
    let unlimited = decided("other", 200);
    assert_eq!((&unlimited["allowed"], &unlimited["rule"]), (&json!(true), &Value::Null));
}

#[test]
fn log_denials_flag_zero_disables_denial_lines() {
    let server = Server::start_with(POLICY, &["--log-denials", "0"]);
    send_denied_check(&Client::new(&server), "a");
    let lines = stop_server_and_read_log_lines(&server);
    assert!(!lines.iter().any(|line| line.contains("denied")), "{lines:#?}");
}

/// Stops the server, and returns the log lines about unknown domains that the test has not read yet.
fn stop_server_and_read_unknown_domain_lines(server: &Server) -> Vec<Value> {
    let lines =
        stop_server_and_read_log_lines(server).into_iter().map(|line| parse_json_log_line(&line));
    lines
        .filter(|line| line["message"].as_str().unwrap().contains("no rule for this domain"))
        .collect()
}

#[test]
fn unknown_domains_are_logged_once_per_minute() {
    let server = Server::start_with(POLICY, &JSON_LOG_FLAGS);
    let client = Client::new(&server);
    let domain = format!("a\"\n{}", "x".repeat(125));
    for nth in 0..100 {
        let domain = if nth == 0 { domain.clone() } else { nth.to_string() };
        let request = json!({ "domain": domain, "attributes": {} });
        assert_eq!(client.check(&request).status, 200);
    }
    let lines = stop_server_and_read_unknown_domain_lines(&server);
    // There are two lines if a minute ended during the test.
    assert!((1..=2).contains(&lines.len()), "{lines:#?}");
    assert_eq!((&lines[0]["level"], &lines[0]["domain"]), (&json!("WARN"), &json!(domain)));
    assert_eq!(lines[0]["unlogged"], 0);
}

#[test]
fn policy_domains_without_matching_rule_are_not_logged() {
    let policy = "rules: [{ name: a, when: { path: /a }, limits: [1/s] }]";
    let server = Server::start_with(policy, &JSON_LOG_FLAGS);
    let client = Client::new(&server);
    assert_eq!(client.check(&json!({ "attributes": {} })).status, 200);
    assert_eq!(stop_server_and_read_unknown_domain_lines(&server), Vec::<serde_json::Value>::new());
}

#[test]
fn policy_warnings_are_logged_at_start_and_reload() {
    let policy =
        |max: u8| format!("rules:\n  - name: key\n    per: [api_key|ip]\n    limits: [{max}/s]\n");
    let server = Server::start_with(&policy(1), &[]);
    let warning = format!("{}:3:11: the client chooses `api_key`", server.policy_path().display());
    let is_warning = |line: &&String| line.contains(" WARN ") && line.contains(&warning);
    assert_eq!(
        server.startup_log().iter().filter(is_warning).count(),
        1,
        "{:#?}",
        server.startup_log()
    );
    fs::write(server.policy_path(), policy(2)).unwrap();
    server.wait_for_log("the policy has changed");
    let line = server.wait_for_log(&warning);
    assert!(is_warning(&&line), "{line}");
    let lines = stop_server_and_read_log_lines(&server);
    assert_eq!(lines.iter().filter(is_warning).count(), 0, "{lines:#?}");
}

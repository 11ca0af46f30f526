//! Tests of the flag `--observe`, with which the server evaluates the policy but denies no request.

use serde_json::json;

use crate::admin::samples::MetricSamples;
use crate::common::Server;
use crate::http::client::Client;

const POLICY: &str = "
rules:
  - { name: narrow, per: [tenant], limits: [2/h], algorithm: sliding_log }
  - { name: banned, per: [tenant], limits: [9/h], overrides: [{ when: { tenant: evil }, limits: denied }] }
  - { name: missing, domain: strict, per: [user], when_missing: deny, limits: [9/h] }
";

#[test]
fn observe_mode_allows_requests_but_counts_denials() {
    let server = Server::start_with_admin(POLICY, &["--observe"]);
    let client = Client::new(&server);
    for (domain, tenant, times) in
        [("default", "acme", 5), ("default", "evil", 3), ("strict", "x", 2)]
    {
        let request = json!({ "domain": domain, "attributes": { "tenant": tenant } });
        for _ in 0..times {
            let response = client.check(&request);
            assert_eq!(response.status, 200, "{}", response.body);
            assert_eq!(response.header("ratelimit"), None, "an observed limit is never binding");
            let limits = response.json()["limits"].clone();
            assert!(limits.as_array().unwrap().iter().all(|limit| limit["observed"] == true));
        }
    }
    let samples = MetricSamples::scrape(&server);
    let count = |rule: &str, outcome: &str| {
        let rule_label = format!(r#"rule="{rule}","#);
        let outcome_label = format!(r#"outcome="{outcome}""#);
        ["1h", "denied", "missing"]
            .map(|limit| {
                samples.sum(
                    "slidegate_decisions_total",
                    &format!(r#"{rule_label}limit="{limit}",{outcome_label}"#),
                )
            })
            .iter()
            .sum::<f64>()
    };
    assert_eq!((count("narrow", "allowed"), count("narrow", "observed")), (4.0, 4.0));
    assert_eq!((count("banned", "allowed"), count("banned", "observed")), (5.0, 3.0));
    assert_eq!((count("missing", "allowed"), count("missing", "observed")), (0.0, 2.0));
    assert_eq!(samples.sum("slidegate_decisions_total", r#"outcome="denied""#), 0.0);
    let ready = client.call("GET", "/readyz").json();
    assert_eq!(ready["policy"]["observe"], true);
}

#[test]
fn observe_mode_logs_warning_at_start() {
    let mut command = crate::common::slidegate_command();
    let policy = crate::common::TempFile::new(".yaml", POLICY);
    command.arg("serve").arg("--policy").arg(policy.path());
    command.args(["--http", "127.0.0.1:0", "--observe"]).env("SLIDEGATE_LOG_LEVEL", "warn");
    let mut child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let stderr = child.stderr.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stderr), &mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(line.contains("WARN") && line.contains("no request is denied"), "{line}");
}

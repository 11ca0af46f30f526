//! Tests that a server with the cluster store rejects limits that a cluster cannot replicate. The server checks the
//! limits when it starts and at each reload.

use std::fs;

use crate::common::{Server, TempFile, slidegate_command};
use crate::http::client::Client;

const SINGLE_NODE_CLUSTER_FLAGS: [&str; 4] =
    ["--store", "cluster://", "--cluster-listen", "127.0.0.1:0"];

const POLICY_WITH_UNREPLICABLE_LIMITS: &str = "\
rules:
  - { name: a, limits: [3/h] }
  - { name: b, limits: [3/h], algorithm: sliding_log }
  - name: c
    limits: [{ max: 3, window: 1h, algorithm: token_bucket }]
  - name: d
    limits: [{ concurrent: 3, permit_ttl: 60s }]
";

#[test]
fn server_start_rejects_unreplicable_limits() {
    let policy = TempFile::new(".yaml", POLICY_WITH_UNREPLICABLE_LIMITS);
    let mut command = slidegate_command();
    command.arg("serve").arg("--policy").arg(policy.path()).args(["--http", "127.0.0.1:0"]);
    let output = command.args(SINGLE_NODE_CLUSTER_FLAGS).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    let path = policy.path().display();
    for (location, error) in [
        ("3:25", "algorithm `sliding_log` is not available in a cluster"),
        ("5:14", "algorithm `token_bucket` is not available in a cluster"),
        ("7:14", "`concurrent` is not available in a cluster"),
    ] {
        let prefix = format!("{path}:{location}: ");
        let line = stderr.lines().find(|line| line.starts_with(&prefix));
        assert!(line.is_some_and(|line| line.contains(error)), "{prefix}{error}\n{stderr}");
    }
    assert_eq!(
        stderr.lines().filter(|line| line.contains("not available in a cluster")).count(),
        3,
        "{stderr}"
    );
    // The memory store accepts the same policy.
    drop(Server::start_with(POLICY_WITH_UNREPLICABLE_LIMITS, &["--store", "memory"]));
}

#[test]
fn policy_reload_rejects_unreplicable_limits() {
    let policy = "rules: [{ name: a, limits: [3/h] }]";
    let server = Server::start_with_admin(policy, &SINGLE_NODE_CLUSTER_FLAGS);
    fs::write(server.policy_path(), POLICY_WITH_UNREPLICABLE_LIMITS).unwrap();
    let line = server.wait_for_log("algorithm `sliding_log` is not available in a cluster");
    assert!(line.contains(":3:25: "), "{line}");
    server.wait_for_log("policy reload failed");
    let ready = Client::new(&server).call("GET", "/readyz").json();
    assert_eq!(ready["policy"]["rules"], 1);
    assert!(ready["policy"]["problem"].as_str().unwrap().contains("sliding_log"), "{ready}");
    fs::write(server.policy_path(), "rules: [{ name: a, limits: [4/h] }]").unwrap();
    server.wait_for_log("the policy has changed");
}

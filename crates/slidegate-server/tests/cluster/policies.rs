//! Limits that nodes cannot count together are refused when the policy is read, and when it is read again.

use std::fs;

use crate::client::Client;
use crate::common::{Server, TempFile, slidegate};

const ALONE: [&str; 4] = ["--store", "cluster://", "--cluster-listen", "127.0.0.1:0"];

const WRONG: &str = "\
rules:
  - { name: a, limits: [3/h] }
  - { name: b, limits: [3/h], algorithm: sliding_log }
  - name: c
    limits: [{ max: 3, window: 1h, algorithm: token_bucket }]
";

#[test]
fn what_nodes_cannot_count_is_refused_at_the_start_with_its_place() {
    let policy = TempFile::new(".yaml", WRONG);
    let mut command = slidegate();
    command.arg("serve").arg("--policy").arg(policy.path()).args(["--http", "127.0.0.1:0"]);
    let output = command.args(ALONE).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8(output.stderr).unwrap();
    let path = policy.path().display();
    for (place, why) in
        [("3:25", "cannot count by `sliding_log`"), ("5:14", "cannot count by `token_bucket`")]
    {
        let begin = format!("{path}:{place}: ");
        let line = told.lines().find(|line| line.starts_with(&begin));
        assert!(line.is_some_and(|line| line.contains(why)), "{begin}{why}\n{told}");
    }
    assert_eq!(told.lines().filter(|line| line.contains("cannot count by")).count(), 2, "{told}");
    // In memory it is right.
    drop(Server::start_with(WRONG, &["--store", "memory"]));
}

#[test]
fn a_policy_that_nodes_cannot_count_does_not_replace_one_that_they_can() {
    let policy = "rules: [{ name: a, limits: [3/h] }]";
    let server = Server::start_with_admin(policy, &ALONE);
    fs::write(server.policy(), WRONG).unwrap();
    let told = server.wait_for_log("cannot count by `sliding_log`");
    assert!(told.contains(":3:25: "), "{told}");
    server.wait_for_log("policy reload failed");
    let ready = Client::new(&server).call("GET", "/readyz").json();
    assert_eq!(ready["policy"]["rules"], 1);
    assert!(ready["policy"]["problem"].as_str().unwrap().contains("sliding_log"), "{ready}");
    fs::write(server.policy(), "rules: [{ name: a, limits: [4/h] }]").unwrap();
    server.wait_for_log("the policy has changed");
}

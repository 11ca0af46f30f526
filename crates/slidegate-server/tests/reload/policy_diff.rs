//! Tests that a reload logs the changed rules, and keeps the settings of the command line.

use serde_json::json;

use crate::reload::folder::PolicyFolder;

#[test]
fn reload_log_lists_changed_lines() {
    let folder = PolicyFolder::with_policy(
        "rules: [{ name: a, limits: [9/h] }, { name: b, limits: [9/s] }, { name: c, limits: [1/s] }]",
    );
    let server = folder.start_server(&[]);
    folder.replace_file(
        "rules: [{ name: d, limits: [2/s] }, { name: c, limits: [1/s] }, { name: a, limits: [5/h] }]",
    );
    server.process.wait_for_log("the policy has changed; - before, + now:");
    for expected in [
        "- rule `a`: never more than 9 in any 1h (9/1h sliding_window)",
        "+ rule `a`: never more than 5 in any 1h (5/1h sliding_window)",
        "- rule `b`: one counter for all requests",
        "- rule `b`: never more than 9 in any 1s (9/1s sliding_window)",
        "- rule `b`: `1s` counted as sliding_window:1s",
        "+ rule `d`: one counter for all requests",
        "+ rule `d`: never more than 2 in any 1s (2/1s sliding_window)",
        "+ rule `d`: `1s` counted as sliding_window:1s",
    ] {
        let line = server.process.next_log_line(std::time::Duration::from_secs(30)).unwrap();
        assert!(line.contains("INFO") && line.ends_with(expected), "{line}");
    }
}

#[test]
fn observe_flag_applies_to_reloaded_policy() {
    let policy = |max| format!("rules: [{{ name: a, limits: [{max}/h] }}]");
    let folder = PolicyFolder::with_policy(&policy(1));
    let server = folder.start_server(&["--observe"]);
    let assert_observed = |checks: u32| {
        for _ in 0..checks {
            let response = server.client.check(&json!({"attributes": {}}));
            assert_eq!(response.status, 200);
            assert_eq!(response.json()["limits"][0]["observed"], true);
        }
    };
    assert_observed(2);
    folder.replace_file(&policy(2));
    // The log lists the changes in the file, without a change of the mode.
    server.process.wait_for_log("- rule `a`: never more than 1 in any 1h (1/1h sliding_window)");
    server.process.wait_for_log("+ rule `a`: never more than 2 in any 1h (2/1h sliding_window)");
    assert_observed(3);
    assert_eq!(server.policy_status()["observe"], true);
    let observed = r#"slidegate_decisions_total{domain="default",rule="a",limit="1h",outcome="#;
    assert_eq!(server.metric_sum(&format!("{observed}\"denied\"")), 0);
    // One of the first two requests and two of the next three: the reload kept the counter.
    assert_eq!(server.metric_sum(&format!("{observed}\"observed\"")), 3);
}

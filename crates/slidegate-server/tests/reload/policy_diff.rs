//! What a reload tells of what changed, and what it leaves as it was.

use serde_json::json;

use crate::folder::Folder;

#[test]
fn log_lists_changes_by_rule() {
    let folder = Folder::with(
        "rules: [{ name: a, limits: [9/h] }, { name: b, limits: [9/s] }, { name: c, limits: [1/s] }]",
    );
    let followed = folder.serve(&[]);
    folder.put(
        "rules: [{ name: d, limits: [2/s] }, { name: c, limits: [1/s] }, { name: a, limits: [5/h] }]",
    );
    let summary = followed.server.wait_for_log("the policy has changed");
    assert!(summary.ends_with("rules: 1 new, 1 changed, 1 gone"), "{summary}");
    for expected in [
        "rule `d` is new: all are counted as one; about 2 in any 1s (2/1s sliding_window)",
        "rule `a` has changed: was [about 9 in any 1h (9/1h sliding_window)], is [about 5 in any 1h (5/1h sliding_window)]; counts go on",
        "rule `b` is gone",
    ] {
        let line = followed.server.next_log(std::time::Duration::from_secs(30)).unwrap();
        assert!(line.contains("INFO") && line.ends_with(expected), "{line}");
    }
}

#[test]
fn observe_flag_applies_to_reloaded_policy() {
    let policy = |max| format!("rules: [{{ name: a, limits: [{max}/h] }}]");
    let folder = Folder::with(&policy(1));
    let followed = folder.serve(&["--observe"]);
    let assert_watches = |checks: u32| {
        for _ in 0..checks {
            let answer = followed.client.check(&json!({"attributes": {}}));
            assert_eq!(answer.status, 200);
            assert_eq!(answer.json()["limits"][0]["observed"], true);
        }
    };
    assert_watches(2);
    folder.put(&policy(2));
    // Also what changed is told of the file, and the mode is not.
    let told = "was [about 1 in any 1h (1/1h sliding_window)], is [about 2 in any 1h";
    followed.server.wait_for_log(told);
    assert_watches(3);
    assert_eq!(followed.policy()["observe"], true);
    let observed = r#"slidegate_decisions_total{domain="default",rule="a",limit="1h",outcome="#;
    assert_eq!(followed.metric(&format!("{observed}\"denied\"")), 0);
    // One of the first two, and two of three: the count went on.
    assert_eq!(followed.metric(&format!("{observed}\"observed\"")), 3);
}

//! Tests that invalid or partially written policy files do not replace the current policy.

use std::fs;
use std::io::Write;
use std::time::Duration;

use crate::reload::folder::{PolicyFolder, ReloadingServer};

const OLD_POLICY: &str =
    "rules: [{ name: a, per: [tenant], limits: [9/h], algorithm: sliding_log }]";
const NEW_POLICY: &str =
    "rules: [{ name: a, per: [tenant], limits: [5/h], algorithm: sliding_log }]";

/// The first half of a policy file. The server must not load this half, although it is a valid policy on its own.
const FIRST_HALF_OF_POLICY: &str =
    "rules:\n  - { name: a, per: [tenant], limits: [100/h], algorithm: sliding_log }\n";
const SECOND_HALF_OF_POLICY: &str = "  - { name: end, limits: [5/h], algorithm: sliding_log }\n";

fn start_with_old_policy() -> (PolicyFolder, ReloadingServer) {
    let folder = PolicyFolder::with_policy(OLD_POLICY);
    let server = folder.start_server(&[]);
    assert_eq!(server.check_remaining(), Some(8));
    (folder, server)
}

#[test]
fn invalid_policy_file_is_reported_and_not_loaded() {
    let (folder, server) = start_with_old_policy();
    folder.replace_file(
        "rules:\n  - { name: A, limits: [10/s] }\n  - { name: b, limits: [1/fortnight] }\n",
    );
    let path = folder.policy_path().display().to_string();
    let line = server.process.wait_for_log(&format!("{path}:2:13: invalid rule name `A`"));
    assert!(line.contains("ERROR"), "{line}");
    server.process.wait_for_log(&format!("{path}:3:25: `fortnight` is not a window"));
    let problem = server.wait_for_rejection();
    assert!(problem.starts_with(&format!("{path}:2:13: ")), "{problem}");
    assert!(problem.ends_with(" (and 1 more)") && !problem.contains('\n'), "{problem}");
    assert_eq!(server.check_remaining(), Some(7));
    assert_eq!(
        (server.reload_count("failed"), server.policy_status()["rules"].as_u64()),
        (1, Some(1))
    );
    folder.replace_file(NEW_POLICY);
    server.wait_for_reload();
    assert_eq!(server.check_remaining(), Some(2));
}

#[test]
fn empty_policy_file_is_rejected_until_restored() {
    let (folder, server) = start_with_old_policy();
    for (failures, content) in (1..).zip(["", "  \n\n", "# To be written.\n", "rules:\n", "---\n"])
    {
        folder.replace_file(content);
        let problem = server.wait_for_rejection();
        assert!(problem.contains("policy.yaml:"), "{problem}");
        assert_eq!(
            (server.reload_count("failed"), server.check_remaining()),
            (failures, Some(8 - failures))
        );
    }
    folder.replace_file(OLD_POLICY);
    server.process.wait_for_log("policy reload succeeded again");
    assert_eq!(
        (server.reload_count("unchanged"), server.metric_sum("slidegate_policy_stale")),
        (1, 0)
    );
    assert!(server.policy_status()["problem"].is_null());
    assert_eq!(server.check_remaining(), Some(2));
}

#[test]
fn empty_rule_list_loads_with_warning() {
    let (folder, server) = start_with_old_policy();
    folder.replace_file("rules: []");
    server.wait_for_reload();
    let line = server.process.wait_for_log("the policy has no rules, so all requests are allowed");
    assert!(line.contains("WARN"), "{line}");
    assert_eq!(server.check_remaining(), None);
    folder.replace_file(OLD_POLICY);
    server.wait_for_reload();
    assert_eq!(server.check_remaining(), Some(7));
}

#[test]
fn removed_policy_file_is_reported_until_restored() {
    let (folder, server) = start_with_old_policy();
    fs::remove_file(folder.policy_path()).unwrap();
    assert!(server.wait_for_rejection().contains("cannot be read: No such file"));
    assert_eq!(server.check_remaining(), Some(7));
    folder.overwrite_policy(OLD_POLICY);
    server.process.wait_for_log("policy reload succeeded again");
    assert_eq!(server.metric_sum("slidegate_policy_stale"), 0);
    fs::remove_file(folder.policy_path()).unwrap();
    server.wait_for_rejection();
    folder.overwrite_policy(NEW_POLICY);
    server.wait_for_reload();
    assert_eq!(server.check_remaining(), Some(2));
}

#[test]
fn folder_or_binary_file_is_rejected_as_policy() {
    let (folder, server) = start_with_old_policy();
    fs::remove_file(folder.policy_path()).unwrap();
    fs::create_dir(folder.policy_path()).unwrap();
    server.process.wait_for_log("cannot be reloaded: not a regular file");
    fs::remove_dir(folder.policy_path()).unwrap();
    fs::write(folder.policy_path(), b"rules: [] # \xFF\n").unwrap();
    server.process.wait_for_log("UTF-8");
    folder.overwrite_policy(NEW_POLICY);
    server.wait_for_reload();
}

#[test]
fn partially_written_file_is_never_loaded() {
    let (folder, server) = start_with_old_policy();
    let mut file = folder.begin_write(FIRST_HALF_OF_POLICY);
    // Shorter than the interval at which the server reads the file.
    assert_eq!(server.process.next_log_line(Duration::from_millis(200)), None);
    server.process.send_signal("HUP");
    assert_eq!(server.process.next_log_line(Duration::from_millis(200)), None);
    assert_eq!(server.check_remaining(), Some(7));
    file.write_all(SECOND_HALF_OF_POLICY.as_bytes()).unwrap();
    server.wait_for_reload();
    // Two requests were charged under `a`, none under `end`.
    assert_eq!(server.check_remaining(), Some(4));
    assert_eq!((server.reload_count("failed"), server.reload_count("changed")), (0, 1));
}

#[test]
fn number_of_logged_policy_errors_is_bounded() {
    let (folder, server) = start_with_old_policy();
    let rule = "  - { name: A, limits: [1/x] }\n";
    folder.replace_file(&format!("rules:\n{}", rule.repeat(100)));
    let mut lines = Vec::new();
    loop {
        let line = server.process.next_log_line(Duration::from_secs(30)).unwrap();
        lines.push(line);
        if lines.last().unwrap().contains("keeping the current policy") {
            break;
        }
    }
    assert_eq!(lines.len(), 52, "{lines:?}");
    assert!(lines[50].contains("more"), "{lines:?}");
}

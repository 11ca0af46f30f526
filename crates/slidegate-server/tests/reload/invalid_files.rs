//! A file that is no policy, or not whole, leaves the policy as it was.

use std::fs;
use std::io::Write;
use std::time::Duration;

use crate::folder::{Folder, Followed};

const OLD: &str = "rules: [{ name: a, per: [tenant], limits: [9/h], algorithm: sliding_log }]";
const NEW: &str = "rules: [{ name: a, per: [tenant], limits: [5/h], algorithm: sliding_log }]";

/// What would be another policy if it ended here.
const FIRST_HALF: &str =
    "rules:\n  - { name: a, per: [tenant], limits: [100/h], algorithm: sliding_log }\n";
const SECOND_HALF: &str = "  - { name: end, limits: [5/h], algorithm: sliding_log }\n";

fn start() -> (Folder, Followed) {
    let folder = Folder::with(OLD);
    let followed = folder.serve(&[]);
    assert_eq!(followed.left(), Some(8));
    (folder, followed)
}

#[test]
fn invalid_file_is_reported_and_keeps_policy() {
    let (folder, followed) = start();
    folder.put("rules:\n  - { name: A, limits: [10/s] }\n  - { name: b, limits: [1/fortnight] }\n");
    let path = folder.policy().display().to_string();
    let line = followed.server.wait_for_log(&format!("{path}:2:13: `A` cannot name a rule"));
    assert!(line.contains("ERROR"), "{line}");
    followed.server.wait_for_log(&format!("{path}:3:25: `fortnight` is not a window"));
    let problem = followed.await_refusal();
    assert!(problem.starts_with(&format!("{path}:2:13: ")), "{problem}");
    assert!(problem.ends_with(" (and 1 more)") && !problem.contains('\n'), "{problem}");
    assert_eq!(followed.left(), Some(7));
    assert_eq!((followed.reloads("failed"), followed.policy()["rules"].as_u64()), (1, Some(1)));
    folder.put(NEW);
    followed.await_change();
    assert_eq!(followed.left(), Some(2));
}

#[test]
fn empty_file_is_rejected_until_restored() {
    let (folder, followed) = start();
    for (nth, nothing) in (1..).zip(["", "  \n\n", "# To be written.\n", "rules:\n", "---\n"]) {
        folder.put(nothing);
        let problem = followed.await_refusal();
        assert!(problem.contains("policy.yaml:"), "{problem}");
        assert_eq!((followed.reloads("failed"), followed.left()), (nth, Some(8 - nth)));
    }
    folder.put(OLD);
    followed.server.wait_for_log("the policy is as it was");
    assert_eq!((followed.reloads("unchanged"), followed.metric("slidegate_policy_stale")), (1, 0));
    assert!(followed.policy()["problem"].is_null());
    assert_eq!(followed.left(), Some(2));
}

#[test]
fn explicit_empty_rules_load_with_warning() {
    let (folder, followed) = start();
    folder.put("rules: []");
    followed.await_change();
    let line = followed.server.wait_for_log("the policy has no rules: everything passes");
    assert!(line.contains("WARN"), "{line}");
    assert_eq!(followed.left(), None);
    folder.put(OLD);
    followed.await_change();
    assert_eq!(followed.left(), Some(7));
}

#[test]
fn removed_file_is_reported_until_restored() {
    let (folder, followed) = start();
    fs::remove_file(folder.policy()).unwrap();
    assert!(followed.await_refusal().contains("cannot be read: No such file"));
    assert_eq!(followed.left(), Some(7));
    folder.write(OLD);
    followed.server.wait_for_log("the policy is as it was");
    assert_eq!(followed.metric("slidegate_policy_stale"), 0);
    fs::remove_file(folder.policy()).unwrap();
    followed.await_refusal();
    folder.write(NEW);
    followed.await_change();
    assert_eq!(followed.left(), Some(2));
}

#[test]
fn folder_or_binary_file_is_rejected() {
    let (folder, followed) = start();
    fs::remove_file(folder.policy()).unwrap();
    fs::create_dir(folder.policy()).unwrap();
    followed.server.wait_for_log("cannot be read again: it is no file");
    fs::remove_dir(folder.policy()).unwrap();
    fs::write(folder.policy(), b"rules: [] # \xFF\n").unwrap();
    followed.server.wait_for_log("UTF-8");
    folder.write(NEW);
    followed.await_change();
}

#[test]
fn partially_written_file_is_never_read() {
    let (folder, followed) = start();
    let mut file = folder.begin(FIRST_HALF);
    assert_eq!(followed.server.next_log(Duration::from_millis(200)), None);
    // Who asks is told to wait.
    followed.server.signal("HUP");
    assert!(followed.await_refusal().ends_with("cannot be read: it is still being written"));
    assert_eq!(followed.left(), Some(7));
    file.write_all(SECOND_HALF.as_bytes()).unwrap();
    assert_eq!(followed.server.next_log(Duration::from_millis(200)), None);
    drop(file);
    followed.await_change();
    // Two were charged under `a`, none under `end`.
    assert_eq!(followed.left(), Some(4));
    assert_eq!((followed.reloads("failed"), followed.reloads("changed")), (1, 1));
}

#[test]
fn partially_written_new_file_is_never_read() {
    let (folder, followed) = start();
    fs::remove_file(folder.policy()).unwrap();
    followed.await_refusal();
    let mut file = folder.begin("");
    assert_eq!(followed.server.next_log(Duration::from_millis(100)), None);
    file.write_all(FIRST_HALF.as_bytes()).unwrap();
    assert_eq!(followed.server.next_log(Duration::from_millis(200)), None);
    file.write_all(SECOND_HALF.as_bytes()).unwrap();
    drop(file);
    followed.await_change();
    assert_eq!(followed.left(), Some(4));
    assert_eq!((followed.reloads("failed"), followed.reloads("changed")), (1, 1));
}

#[test]
fn number_of_logged_errors_is_bounded() {
    let (folder, followed) = start();
    let rule = "  - { name: A, limits: [1/x] }\n";
    folder.put(&format!("rules:\n{}", rule.repeat(100)));
    let mut lines = Vec::new();
    loop {
        let line = followed.server.next_log(Duration::from_secs(30)).unwrap();
        lines.push(line);
        if lines.last().unwrap().contains("goes on as it was") {
            break;
        }
    }
    assert_eq!(lines.len(), 52, "{lines:?}");
    assert!(lines[50].contains("more"), "{lines:?}");
}

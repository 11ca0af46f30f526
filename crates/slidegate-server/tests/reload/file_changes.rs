//! Every way in which a file changes is seen, and counts go on.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{Server, slidegate};
use crate::folder::{Folder, Followed};

/// So many an hour for each tenant.
fn policy(max: u32) -> String {
    format!(
        "rules: [{{ name: a, per: [tenant], limits: [{max}/h], algorithm: sliding_log }}, {{ name: end, limits: [1000/h] }}]"
    )
}

/// A server whose policy has let one of five pass.
fn one_of_five(folder: &Folder) -> Followed {
    let followed = folder.serve(&[]);
    assert_eq!(followed.left(), Some(4));
    followed
}

#[test]
fn sighup_reloads_and_keeps_counters() {
    let folder = Folder::with(&policy(5));
    let followed = one_of_five(&folder);
    followed.server.signal("HUP");
    followed.server.wait_for_log("the policy is as it was");
    assert_eq!((followed.reloads("unchanged"), followed.reloads("changed")), (1, 0));
    folder.put(&policy(7));
    followed.server.signal("HUP");
    followed.await_change();
    assert_eq!(followed.left(), Some(5));
    assert_eq!((followed.reloads("failed"), followed.reloads("changed")), (0, 1));
}

#[test]
fn in_place_write_reloads_on_close() {
    let folder = Folder::with(&policy(5));
    let followed = one_of_five(&folder);
    folder.write(&policy(7));
    followed.await_change();
    assert_eq!(followed.left(), Some(5));
    folder.write(&policy(9));
    followed.await_change();
    assert_eq!(followed.left(), Some(6));
    assert_eq!((followed.reloads("failed"), followed.reloads("changed")), (0, 2));
}

#[test]
fn each_atomic_replacement_reloads() {
    let folder = Folder::with(&policy(5));
    let followed = one_of_five(&folder);
    for (max, left) in [(7, 5), (9, 6), (8, 4)] {
        folder.put(&policy(max));
        followed.await_change();
        assert_eq!(followed.left(), Some(left));
    }
    assert_eq!((followed.reloads("failed"), followed.reloads("changed")), (0, 3));
}

#[test]
fn each_config_map_update_reloads() {
    let folder = Folder::new();
    folder.mount("1", &policy(5));
    let followed = one_of_five(&folder);
    for (version, max, left) in [("2", 7, 5), ("3", 9, 6), ("4", 8, 4)] {
        folder.mount(version, &policy(max));
        followed.await_change();
        assert_eq!(followed.left(), Some(left));
    }
    folder.mount("5", "rules: [{ name: a, limits: [");
    assert!(followed.await_refusal().contains("policy.yaml:1:"));
    folder.mount("6", &policy(9));
    followed.await_change();
    assert_eq!((followed.reloads("failed"), followed.reloads("changed")), (1, 4));
}

#[test]
fn replaced_parent_folders_are_followed() {
    let folder = Folder::new();
    for (name, max) in [("releases-1", 5), ("releases-2", 7), ("new", 9)] {
        fs::create_dir(folder.path(name)).unwrap();
        fs::write(folder.path(name).join("policy.yaml"), policy(max)).unwrap();
    }
    symlink("releases-1", folder.path("current")).unwrap();
    let followed = folder.serve_path(&folder.path("current/policy.yaml"), &[]);
    assert_eq!(followed.left(), Some(4));
    symlink("releases-2", folder.path("next")).unwrap();
    fs::rename(folder.path("next"), folder.path("current")).unwrap();
    followed.await_change();
    assert_eq!(followed.left(), Some(5));
    fs::rename(folder.path("releases-2"), folder.path("old")).unwrap();
    assert!(followed.await_refusal().contains("No such file"));
    fs::rename(folder.path("new"), folder.path("releases-2")).unwrap();
    followed.await_change();
    assert_eq!(followed.left(), Some(6));
    fs::write(folder.path("current/policy.yaml"), policy(8)).unwrap();
    followed.await_change();
    assert_eq!(followed.left(), Some(4));
}

#[test]
fn new_link_to_a_file_reloads() {
    let folder = Folder::with(&policy(5));
    let followed = one_of_five(&folder);
    for (max, left, hard) in [(7, 5, false), (9, 6, true)] {
        let target = folder.path(&format!("{max}.yaml"));
        fs::write(&target, policy(max)).unwrap();
        fs::remove_file(folder.policy()).unwrap();
        followed.await_refusal();
        match hard {
            true => fs::hard_link(target, folder.policy()).unwrap(),
            false => symlink(target, folder.policy()).unwrap(),
        }
        followed.await_change();
        assert_eq!(followed.left(), Some(left));
    }
    fs::write(folder.path("9.yaml"), policy(8)).unwrap();
    followed.server.signal("HUP");
    followed.await_change();
}

#[test]
fn other_files_cause_no_reload() {
    let folder = Folder::with(&policy(5));
    let followed = one_of_five(&folder);
    fs::write(folder.path("policy.yaml.bak"), "{").unwrap();
    fs::remove_file(folder.path("policy.yaml.bak")).unwrap();
    // Nor is it one that it is written as it was.
    folder.write(&policy(5));
    folder.put(&policy(5));
    folder.put(&policy(7));
    followed.await_change();
    for (result, reloads) in [("changed", 1), ("unchanged", 0), ("failed", 0)] {
        assert_eq!(followed.reloads(result), reloads, "{result}");
    }
}

#[test]
fn reload_keeps_requests_in_progress() {
    let folder = Folder::with(&policy(5));
    let followed = folder.serve(&[]);
    let body = r#"{"attributes":{"tenant":"acme"}}"#;
    let mut connection = crate::client::Raw::connect(followed.server.address());
    connection.write(format!(
        "POST /v1/check HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        body.len()
    ));
    assert_eq!(connection.response().0, 100);
    connection.write(&body[..10]);
    folder.put(&policy(7));
    followed.await_change();
    connection.write(&body[10..]);
    let (status, answer) = connection.response();
    assert_eq!(status, 200);
    assert!(answer.contains(r#""remaining":6"#), "{answer}");
    connection.write(crate::client::raw_check(body));
    assert_eq!(connection.response().0, 200);
}

#[test]
fn sighup_reloads_without_file_watch() {
    // Where nobody may watch anything: a user namespace of its own, with no room for it.
    let isolated = |then: &str| {
        let mut command = Command::new("unshare");
        let none = "echo 0 > /proc/sys/user/max_inotify_instances";
        command.args(["--user", "--map-root-user", "sh", "-c", &format!("{none} && {then}")]);
        command
    };
    let may_isolate = isolated("true").stderr(Stdio::null()).status().unwrap().success();
    assert!(may_isolate, "this test needs user namespaces");
    let folder = Folder::with(&policy(5));
    let plain = slidegate();
    let mut command = isolated(r#"exec "$0" "$@""#);
    command.arg(plain.get_program()).args(["serve", "--http", "127.0.0.1:0", "--policy"]);
    let addresses = ["--admin", "127.0.0.1:0", "--grpc", "none"];
    let server = Server::spawn(command.arg(folder.policy()).args(addresses));
    let warning = server.starting().concat();
    assert!(warning.contains("WARN") && warning.ends_with("on SIGHUP only"), "{warning}");
    let followed = Followed::by(server);
    assert_eq!(followed.left(), Some(4));
    followed.server.signal("HUP");
    followed.server.wait_for_log("the policy is as it was");
    folder.put(&policy(7));
    // Nothing tells it.
    assert_eq!(followed.server.next_log(Duration::from_millis(200)), None);
    assert_eq!(followed.left(), Some(3));
    followed.server.signal("HUP");
    followed.await_change();
    assert_eq!(followed.left(), Some(4));
}

//! Tests that every kind of change to the policy file reloads the policy and keeps the counters.

use std::fs;
use std::os::unix::fs::symlink;

use crate::reload::folder::{PolicyFolder, ReloadingServer};

/// Returns a policy that allows `max` requests per hour for each tenant.
fn policy_with_max(max: u32) -> String {
    format!(
        "rules: [{{ name: a, per: [tenant], limits: [{max}/h], algorithm: sliding_log }}, {{ name: end, limits: [1000/h] }}]"
    )
}

/// Starts a server with the policy in `folder`, and sends a request, which must be allowed. The policy must allow five
/// requests per hour.
fn start_server_and_charge_one_unit(folder: &PolicyFolder) -> ReloadingServer {
    let server = folder.start_server(&[]);
    assert_eq!(server.check_remaining(), Some(4));
    server
}

#[test]
fn sighup_reloads_policy_and_keeps_counters() {
    let folder = PolicyFolder::with_policy(&policy_with_max(5));
    let server = start_server_and_charge_one_unit(&folder);
    server.process.send_signal("HUP");
    server.process.wait_for_log("policy unchanged");
    assert_eq!((server.reload_count("unchanged"), server.reload_count("changed")), (1, 0));
    folder.replace_file(&policy_with_max(7));
    server.process.send_signal("HUP");
    server.wait_for_reload();
    assert_eq!(server.check_remaining(), Some(5));
    assert_eq!((server.reload_count("failed"), server.reload_count("changed")), (0, 1));
}

#[test]
fn policy_overwritten_in_place_is_reloaded() {
    let folder = PolicyFolder::with_policy(&policy_with_max(5));
    let server = start_server_and_charge_one_unit(&folder);
    folder.overwrite_policy(&policy_with_max(7));
    server.wait_for_reload();
    assert_eq!(server.check_remaining(), Some(5));
    folder.overwrite_policy(&policy_with_max(9));
    server.wait_for_reload();
    assert_eq!(server.check_remaining(), Some(6));
    assert_eq!((server.reload_count("failed"), server.reload_count("changed")), (0, 2));
}

#[test]
fn each_atomic_file_replacement_reloads_policy() {
    let folder = PolicyFolder::with_policy(&policy_with_max(5));
    let server = start_server_and_charge_one_unit(&folder);
    for (max, remaining) in [(7, 5), (9, 6), (8, 4)] {
        folder.replace_file(&policy_with_max(max));
        server.wait_for_reload();
        assert_eq!(server.check_remaining(), Some(remaining));
    }
    assert_eq!((server.reload_count("failed"), server.reload_count("changed")), (0, 3));
}

#[test]
fn each_config_map_update_reloads_policy() {
    let folder = PolicyFolder::new();
    folder.mount_config_map("1", &policy_with_max(5));
    let server = start_server_and_charge_one_unit(&folder);
    for (version, max, remaining) in [("2", 7, 5), ("3", 9, 6), ("4", 8, 4)] {
        folder.mount_config_map(version, &policy_with_max(max));
        server.wait_for_reload();
        assert_eq!(server.check_remaining(), Some(remaining));
    }
    folder.mount_config_map("5", "rules: [{ name: a, limits: [");
    assert!(server.wait_for_rejection().contains("policy.yaml:1:"));
    folder.mount_config_map("6", &policy_with_max(9));
    server.wait_for_reload();
    assert_eq!((server.reload_count("failed"), server.reload_count("changed")), (1, 4));
}

#[test]
fn replaced_parent_folder_reloads_policy() {
    let folder = PolicyFolder::new();
    for (name, max) in [("releases-1", 5), ("releases-2", 7), ("new", 9)] {
        fs::create_dir(folder.path(name)).unwrap();
        fs::write(folder.path(name).join("policy.yaml"), policy_with_max(max)).unwrap();
    }
    symlink("releases-1", folder.path("current")).unwrap();
    let server = folder.start_server_with_path(&folder.path("current/policy.yaml"), &[]);
    assert_eq!(server.check_remaining(), Some(4));
    symlink("releases-2", folder.path("next")).unwrap();
    fs::rename(folder.path("next"), folder.path("current")).unwrap();
    server.wait_for_reload();
    assert_eq!(server.check_remaining(), Some(5));
    fs::rename(folder.path("releases-2"), folder.path("old")).unwrap();
    assert!(server.wait_for_rejection().contains("No such file"));
    fs::rename(folder.path("new"), folder.path("releases-2")).unwrap();
    server.wait_for_reload();
    assert_eq!(server.check_remaining(), Some(6));
    fs::write(folder.path("current/policy.yaml"), policy_with_max(8)).unwrap();
    server.wait_for_reload();
    assert_eq!(server.check_remaining(), Some(4));
}

#[test]
fn policy_file_replaced_by_link_is_reloaded() {
    let folder = PolicyFolder::with_policy(&policy_with_max(5));
    let server = start_server_and_charge_one_unit(&folder);
    for (max, remaining, is_hard_link) in [(7, 5, false), (9, 6, true)] {
        let target = folder.path(&format!("{max}.yaml"));
        fs::write(&target, policy_with_max(max)).unwrap();
        fs::remove_file(folder.policy_path()).unwrap();
        server.wait_for_rejection();
        if is_hard_link {
            fs::hard_link(target, folder.policy_path()).unwrap()
        } else {
            symlink(target, folder.policy_path()).unwrap()
        }
        server.wait_for_reload();
        assert_eq!(server.check_remaining(), Some(remaining));
    }
    fs::write(folder.path("9.yaml"), policy_with_max(8)).unwrap();
    server.process.send_signal("HUP");
    server.wait_for_reload();
}

#[test]
fn changes_of_other_files_cause_no_reload() {
    let folder = PolicyFolder::with_policy(&policy_with_max(5));
    let server = start_server_and_charge_one_unit(&folder);
    fs::write(folder.path("policy.yaml.bak"), "{").unwrap();
    fs::remove_file(folder.path("policy.yaml.bak")).unwrap();
    // Writing the same content again does not count as a reload either.
    folder.overwrite_policy(&policy_with_max(5));
    folder.replace_file(&policy_with_max(5));
    folder.replace_file(&policy_with_max(7));
    server.wait_for_reload();
    for (result, reloads) in [("changed", 1), ("unchanged", 0), ("failed", 0)] {
        assert_eq!(server.reload_count(result), reloads, "{result}");
    }
}

#[test]
fn partially_sent_request_completes_after_reload() {
    let folder = PolicyFolder::with_policy(&policy_with_max(5));
    let server = folder.start_server(&[]);
    let body = r#"{"attributes":{"tenant":"acme"}}"#;
    let mut connection = crate::http::client::RawConnection::connect(server.process.address());
    connection.write(format!(
        "POST /v1/check HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        body.len()
    ));
    assert_eq!(connection.read_status_and_body().0, 100);
    connection.write(&body[..10]);
    folder.replace_file(&policy_with_max(7));
    server.wait_for_reload();
    connection.write(&body[10..]);
    let (status, response) = connection.read_status_and_body();
    assert_eq!(status, 200);
    assert!(response.contains(r#""remaining":6"#), "{response}");
    connection.write(crate::http::client::raw_check_request(body));
    assert_eq!(connection.read_status_and_body().0, 200);
}

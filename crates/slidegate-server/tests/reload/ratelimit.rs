//! Tests of policies in folders with configuration files of the Envoy rate limit reference server. A change of any file
//! reloads the policy.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::common::{Server, slidegate_command};
use crate::reload::folder::{PolicyFolder, ReloadingServer};

/// Returns a configuration file of the reference server that allows `max` requests per hour for each tenant of a
/// domain.
fn ratelimit_file_content(domain: &str, max: u32) -> String {
    format!(
        "domain: {domain}\ndescriptors: [{{ key: tenant, rate_limit: {{ unit: hour, requests_per_unit: {max} }} }}]\n"
    )
}

/// Starts a server with all configuration files in the folder at `path`.
fn start_server(path: &Path) -> ReloadingServer {
    let mut command = slidegate_command();
    command.arg("serve").arg("--ratelimit-config").arg(path);
    command.args(["--ratelimit-algorithm", "sliding_log"]);
    let addresses = ["--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    ReloadingServer::new(Server::spawn(command.args(addresses)))
}

/// Creates a folder with configuration files, starts a server with the folder, and sends one request, which is allowed.
/// The domain `default` allows five requests per hour.
fn start_server_and_charge_one_unit() -> (PolicyFolder, ReloadingServer) {
    let folder = PolicyFolder::new();
    fs::write(folder.path("a.yaml"), ratelimit_file_content("default", 5)).unwrap();
    fs::write(folder.path("b.yml"), ratelimit_file_content("other", 1)).unwrap();
    fs::write(folder.path("notes.txt"), "not read").unwrap();
    let server = start_server(&folder.path("."));
    assert_eq!(server.check_remaining(), Some(4));
    (folder, server)
}

#[test]
fn ignored_variables_and_files_are_named_at_start() {
    let folder = PolicyFolder::new();
    fs::write(folder.path("a.yaml"), ratelimit_file_content("default", 5)).unwrap();
    fs::write(folder.path("notes.txt"), "not read").unwrap();
    fs::write(folder.path(".hidden.yaml"), "not read").unwrap();
    fs::create_dir(folder.path("more.yaml")).unwrap();
    fs::create_dir(folder.path("..data")).unwrap();
    let mut command = slidegate_command();
    command.arg("serve").arg("--ratelimit-config").arg(folder.path("."));
    command.args(["--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    command.envs([("SHADOW_MODE", "true"), ("REDIS_URL", "redis:6379"), ("QUOTA_MODE", "false")]);
    let server = Server::spawn(&mut command);
    let log = |part: &str| {
        server.startup_log().iter().find(|line| line.contains(part)).cloned().unwrap_or_default()
    };
    let variables = log("environment variables of Envoy's reference server");
    assert!(variables.contains("variables=\"REDIS_URL SHADOW_MODE\""), "{variables}");
    let files = log("files directly in the folder are read");
    assert!(files.contains("ignored=\".hidden.yaml more.yaml/ notes.txt\""), "{files}");
}

#[test]
fn added_changed_or_removed_files_reload_policy() {
    let (folder, server) = start_server_and_charge_one_unit();
    fs::write(folder.path("a.yaml"), ratelimit_file_content("default", 7)).unwrap();
    server.wait_for_reload();
    assert_eq!(server.check_remaining(), Some(5));
    fs::write(folder.path("new"), ratelimit_file_content("another", 1)).unwrap();
    fs::rename(folder.path("new"), folder.path("c.yaml")).unwrap();
    server.wait_for_reload();
    fs::remove_file(folder.path("a.yaml")).unwrap();
    server.wait_for_reload();
    assert_eq!(server.check_remaining(), None);
    fs::write(folder.path("d.yaml"), ratelimit_file_content("default", 9)).unwrap();
    server.wait_for_reload();
    assert_eq!(server.check_remaining(), Some(6));
    assert_eq!((server.reload_count("failed"), server.reload_count("changed")), (0, 4));
}

#[test]
fn invalid_ratelimit_file_keeps_current_policy() {
    let (folder, server) = start_server_and_charge_one_unit();
    fs::write(folder.path("b.yml"), "domain: other\ndescriptors: [{ kee: a }]").unwrap();
    let problem = server.wait_for_rejection();
    assert!(problem.contains("b.yml:2:15: the descriptor has no `key`"), "{problem}");
    assert!(problem.ends_with("(and 1 more)"), "{problem}");
    assert_eq!(server.check_remaining(), Some(3));
    fs::write(folder.path("b.yml"), ratelimit_file_content("default", 7)).unwrap();
    assert!(
        server.wait_for_rejection().contains("b.yml:1:9: domain `default` is already defined in ")
    );
    fs::remove_file(folder.path("b.yml")).unwrap();
    server.wait_for_reload();
    assert_eq!(server.check_remaining(), Some(2));
    fs::remove_file(folder.path("a.yaml")).unwrap();
    assert!(server.wait_for_rejection().contains("the folder contains no *.yaml or *.yml file"));
    assert_eq!(server.check_remaining(), Some(1));
    fs::write(folder.path("a.yaml"), ratelimit_file_content("default", 6)).unwrap();
    server.wait_for_reload();
    assert_eq!(server.check_remaining(), Some(1));
}

#[test]
fn config_map_update_of_ratelimit_files_reloads_policy() {
    let folder = PolicyFolder::new();
    let publish = |version: &str, files: &[(&str, String)]| {
        let name = format!("..2026_{version}");
        fs::create_dir(folder.path(&name)).unwrap();
        for (file, text) in files {
            fs::write(folder.path(&name).join(file), text).unwrap();
        }
        symlink(&name, folder.path("..data_tmp")).unwrap();
        fs::rename(folder.path("..data_tmp"), folder.path("..data")).unwrap();
    };
    publish("1", &[("a.yaml", ratelimit_file_content("default", 5))]);
    symlink("..data/a.yaml", folder.path("a.yaml")).unwrap();
    let server = start_server(&folder.path(""));
    assert_eq!(server.check_remaining(), Some(4));
    publish(
        "2",
        &[
            ("a.yaml", ratelimit_file_content("default", 7)),
            ("b.yaml", ratelimit_file_content("other", 1)),
        ],
    );
    server.wait_for_reload();
    assert_eq!(server.check_remaining(), Some(5));
    symlink("..data/b.yaml", folder.path("b.yaml")).unwrap();
    server.wait_for_reload();
    publish(
        "3",
        &[
            ("a.yaml", ratelimit_file_content("default", 9)),
            ("b.yaml", ratelimit_file_content("other", 2)),
        ],
    );
    server.wait_for_reload();
    assert_eq!(server.check_remaining(), Some(6));
    assert_eq!((server.reload_count("failed"), server.reload_count("changed")), (0, 3));
}

#[test]
fn sighup_rereads_folder_and_logs_conversion_notes() {
    let (folder, server) = start_server_and_charge_one_unit();
    server.process.send_signal("HUP");
    server.process.wait_for_log("policy unchanged");
    let with_note = ratelimit_file_content("default", 7)
        .replace("key: tenant", "key: tenant, detailed_metric: true");
    fs::write(folder.path("a.yaml"), with_note).unwrap();
    let note = server.process.wait_for_log("`detailed_metric` has no effect");
    assert!(note.contains("a.yaml:2:"), "{note}");
    assert_eq!(server.check_remaining(), Some(5));
}

//! Files of the reference server: a folder of them is followed, whichever of them changes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::common::{Server, slidegate};
use crate::folder::{Folder, Followed};

/// A file of a domain, which gives each tenant so many an hour.
fn file(domain: &str, max: u32) -> String {
    format!(
        "domain: {domain}\ndescriptors: [{{ key: tenant, rate_limit: {{ unit: hour, requests_per_unit: {max} }} }}]\n"
    )
}

/// A server by these files.
fn serve(path: &Path) -> Followed {
    let mut command = slidegate();
    command.arg("serve").arg("--ratelimit-config").arg(path);
    command.args(["--ratelimit-algorithm", "sliding_log"]);
    let addresses = ["--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    Followed::by(Server::spawn(command.args(addresses)))
}

/// A folder, in which the domain of those who name none has five an hour; and a server that has let one pass.
fn one_of_five() -> (Folder, Followed) {
    let folder = Folder::new();
    fs::write(folder.path("a.yaml"), file("default", 5)).unwrap();
    fs::write(folder.path("b.yml"), file("other", 1)).unwrap();
    fs::write(folder.path("notes.txt"), "not read").unwrap();
    let followed = serve(&folder.path("."));
    assert_eq!(followed.left(), Some(4));
    (folder, followed)
}

#[test]
fn added_changed_and_removed_files_reload() {
    let (folder, followed) = one_of_five();
    fs::write(folder.path("a.yaml"), file("default", 7)).unwrap();
    followed.await_change();
    assert_eq!(followed.left(), Some(5));
    fs::write(folder.path("new"), file("another", 1)).unwrap();
    fs::rename(folder.path("new"), folder.path("c.yaml")).unwrap();
    followed.await_change();
    fs::remove_file(folder.path("a.yaml")).unwrap();
    followed.await_change();
    assert_eq!(followed.left(), None);
    fs::write(folder.path("d.yaml"), file("default", 9)).unwrap();
    followed.await_change();
    assert_eq!(followed.left(), Some(6));
    assert_eq!((followed.reloads("failed"), followed.reloads("changed")), (0, 4));
}

#[test]
fn invalid_file_keeps_the_current_policy() {
    let (folder, followed) = one_of_five();
    fs::write(folder.path("b.yml"), "domain: other\ndescriptors: [{ kee: a }]").unwrap();
    let problem = followed.await_refusal();
    assert!(problem.contains("b.yml:2:15: a descriptor needs a `key`"), "{problem}");
    assert!(problem.ends_with("(and 1 more)"), "{problem}");
    assert_eq!(followed.left(), Some(3));
    fs::write(folder.path("b.yml"), file("default", 7)).unwrap();
    assert!(followed.await_refusal().contains("b.yml:1:9: the domain `default` stands in "));
    fs::remove_file(folder.path("b.yml")).unwrap();
    followed.await_change();
    assert_eq!(followed.left(), Some(2));
    fs::remove_file(folder.path("a.yaml")).unwrap();
    assert!(followed.await_refusal().contains("there is no *.yaml or *.yml in this folder"));
    assert_eq!(followed.left(), Some(1));
    fs::write(folder.path("a.yaml"), file("default", 6)).unwrap();
    followed.await_change();
    assert_eq!(followed.left(), Some(1));
}

#[test]
fn config_map_of_ratelimit_files_reloads() {
    let folder = Folder::new();
    let version = |version: &str, files: &[(&str, String)]| {
        let name = format!("..2026_{version}");
        fs::create_dir(folder.path(&name)).unwrap();
        for (file, text) in files {
            fs::write(folder.path(&name).join(file), text).unwrap();
        }
        symlink(&name, folder.path("..data_tmp")).unwrap();
        fs::rename(folder.path("..data_tmp"), folder.path("..data")).unwrap();
    };
    version("1", &[("a.yaml", file("default", 5))]);
    symlink("..data/a.yaml", folder.path("a.yaml")).unwrap();
    let followed = serve(&folder.path(""));
    assert_eq!(followed.left(), Some(4));
    version("2", &[("a.yaml", file("default", 7)), ("b.yaml", file("other", 1))]);
    followed.await_change();
    assert_eq!(followed.left(), Some(5));
    symlink("..data/b.yaml", folder.path("b.yaml")).unwrap();
    followed.await_change();
    version("3", &[("a.yaml", file("default", 9)), ("b.yaml", file("other", 2))]);
    followed.await_change();
    assert_eq!(followed.left(), Some(6));
    assert_eq!((followed.reloads("failed"), followed.reloads("changed")), (0, 3));
}

#[test]
fn sighup_reloads_folder_and_logs_notes() {
    let (folder, followed) = one_of_five();
    followed.server.signal("HUP");
    followed.server.wait_for_log("the policy is as it was");
    let noted = file("default", 7).replace("key: tenant", "key: tenant, detailed_metric: true");
    fs::write(folder.path("a.yaml"), noted).unwrap();
    let note = followed.server.wait_for_log("`detailed_metric` is accepted and has no effect");
    assert!(note.contains("a.yaml:2:"), "{note}");
    assert_eq!(followed.left(), Some(5));
}

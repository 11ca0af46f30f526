//! `slidegate convert`, and servers by files of the reference server, as a user runs them.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

#[path = "../common/mod.rs"]
mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use common::{TempFile, slidegate};
use slidegate::Policy;

/// Files of the reference server; each has the policy that it means beside it.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/convert/files")
}

fn run(arguments: &[&str]) -> Output {
    slidegate().current_dir(folder()).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

/// What the program prints when it succeeds.
#[track_caller]
fn told(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "");
    text(&output.stdout).to_owned()
}

/// What the program prints when it fails.
#[track_caller]
fn error(arguments: &[&str], code: i32) -> String {
    let output = run(arguments);
    assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "");
    text(&output.stderr).to_owned()
}

#[test]
fn each_file_means_the_policy_beside_it() {
    let files = ["addresses", "mail", "order", "quotas", "replaces"];
    for name in files {
        let policy = told(&["convert", &format!("{name}.yaml")]);
        let wanted = fs::read_to_string(folder().join(name).with_extension("policy")).unwrap();
        assert_eq!(policy, wanted, "of {name}.yaml");
        Policy::from_yaml(&policy).unwrap();
    }
}

#[test]
fn a_folder_is_all_its_files_in_order_and_a_policy_of_theirs_is_one() {
    let whole = told(&["convert", "."]);
    let listed = told(&[
        "convert",
        "./addresses.yaml",
        "./mail.yaml",
        "./order.yaml",
        "./quotas.yaml",
        "./replaces.yaml",
    ]);
    assert_eq!(whole, listed);
    let policy = TempFile::new(".yaml", &whole);
    let said = told(&["validate", policy.path().to_str().unwrap()]);
    let domains: Vec<&str> = said.lines().filter(|line| line.starts_with("domain")).collect();
    assert_eq!(
        domains,
        [
            "domain `edge`",
            "domain `mail`",
            "domain `order`",
            "domain `quotas`",
            "domain `replaces`"
        ]
    );
}

#[test]
fn the_algorithm_is_that_of_the_flag_and_fixed_windows_are_those_of_the_clock() {
    let of = |algorithm: &str| told(&["convert", "--ratelimit-algorithm", algorithm, "mail.yaml"]);
    let log = of("sliding_log");
    assert!(log.contains("algorithm: sliding_log,") && log.contains("limits: [3/1w]\n"), "{log}");
    let fixed = of("fixed_window");
    assert!(fixed.contains("limits: [{ max: 3, window: 1w, align: clock }]\n"), "{fixed}");
    for algorithm in
        ["sliding_window", "sliding_log", "sliding_buckets", "fixed_window", "token_bucket"]
    {
        let policy = Policy::from_yaml(&of(algorithm)).unwrap();
        let limits: Vec<_> = policy.limits().map(|(_, limit)| *limit.limit()).collect();
        assert!(limits[..2].iter().all(|limit| limit.algorithm().name() == algorithm));
    }
    let wrong = error(&["convert", "--ratelimit-algorithm", "leaky", "mail.yaml"], 2);
    assert!(wrong.contains("write one of sliding_log, "), "{wrong}");
}

#[test]
fn what_is_wrong_is_told_with_its_place_and_prints_nothing() {
    let bad = TempFile::new(
        ".yaml",
        "domain: d\ndescriptors:\n- { kay: a }\n- { key: b, rate_limit: {} }\n",
    );
    let path = bad.path().to_str().unwrap();
    let wrong = error(&["convert", "mail.yaml", path], 1);
    let lines: Vec<&str> = wrong.lines().collect();
    assert_eq!(lines.len(), 3, "{wrong}");
    assert!(lines[0].starts_with(&format!("{path}:3:3: a descriptor needs a `key`")), "{wrong}");
    assert!(lines[1].starts_with(&format!("{path}:3:5: unknown field `kay`")), "{wrong}");
    assert!(lines[2].starts_with(&format!("{path}:4:25: `` is not a unit of time")), "{wrong}");
    let twice = error(&["convert", "mail.yaml", "./mail.yaml"], 1);
    assert!(
        twice.starts_with("./mail.yaml:2:9: domain `mail` is already defined in mail.yaml"),
        "{twice}"
    );
    assert!(error(&["convert", "nowhere"], 1).starts_with("nowhere: cannot be read: No such file"));
    assert!(error(&["convert", ".."], 1).contains("there is no *.yaml or *.yml in this folder"));
    error(&["convert"], 2);
}

#[test]
fn who_validates_a_file_of_the_reference_server_is_told_of_convert() {
    let hint =
        "mail.yaml: this looks like a file of the reference server: `slidegate convert mail.yaml`";
    assert!(error(&["validate", "mail.yaml"], 1).contains(hint));
    assert!(!error(&["validate", "nowhere"], 1).contains("convert"));
}

#[test]
fn a_server_has_one_source_of_its_policy() {
    let none = error(&["serve"], 2);
    assert!(none.contains("--policy <FILE>"), "{none}");
    let both = error(&["serve", "--policy", "a", "--ratelimit-config", "b"], 2);
    assert!(both.contains("cannot be used with"), "{both}");
    let by_image = |arguments: &[&str], variable: &str| {
        let mut command = slidegate();
        let output =
            command.env("SLIDEGATE_POLICY", "policy").env(variable, "files").args(arguments);
        text(&output.output().unwrap().stderr).to_owned()
    };
    // What an image sets is not what somebody wants who sets the other.
    for arguments in [&["serve"][..], &["serve", "--ratelimit-config", "files"]] {
        let wrong = by_image(arguments, "SLIDEGATE_RATELIMIT_CONFIG");
        assert!(wrong.starts_with("files: cannot be read"), "{wrong}");
    }
    let wrong = by_image(&["serve", "--policy", "typed"], "SLIDEGATE_RATELIMIT_CONFIG");
    assert!(wrong.starts_with("typed: cannot be read"), "{wrong}");
    let wrong = error(&["serve", "--ratelimit-config", "nowhere"], 1);
    assert!(wrong.starts_with("nowhere: cannot be read"), "{wrong}");
}

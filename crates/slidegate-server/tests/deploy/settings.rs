//! Tests that the help text of the program contains all slidegate flags and environment variables in `deploy/`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::project_path;
use crate::common::slidegate_command;
use crate::deploy::{kubernetes, read_project_file, run_command, systemd};

/// Returns the help text of `slidegate serve`.
fn read_serve_help() -> String {
    run_command(slidegate_command().args(["serve", "--help"]))
}

/// Returns the paths of all files below a folder, at any depth.
fn list_files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let below =
        entries.flat_map(|path| if path.is_dir() { list_files_below(&path) } else { vec![path] });
    below.collect()
}

/// Returns all words of a text that begin with `prefix` and continue with a letter.
fn words_with_prefix(text: &str, prefix: &str) -> BTreeSet<String> {
    let is_word_char = |char: char| char.is_ascii_alphanumeric() || char == '-' || char == '_';
    let words = text.split(|char| !is_word_char(char));
    let matching = words.filter(|word| {
        let rest = word.strip_prefix(prefix);
        rest.is_some_and(|rest| rest.starts_with(|char: char| char.is_ascii_alphabetic()))
    });
    matching.map(str::to_owned).collect()
}

#[test]
fn deploy_files_use_only_existing_flags_and_variables() {
    let help = read_serve_help();
    let (flags, variables) =
        (words_with_prefix(&help, "--"), words_with_prefix(&help, "SLIDEGATE_"));
    let mut seen = 0;
    // The variables of the chart are complete only in the rendered objects.
    let folders = ["deploy", "crates/slidegate-server/tests/deploy/helm"];
    for file in folders.iter().flat_map(|folder| list_files_below(&project_path(folder))) {
        let text = fs::read_to_string(&file).unwrap();
        // Comments mention variables of other programs, and the Dockerfile has flags of other programs.
        let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
        let used = words_with_prefix(&lines.collect::<Vec<_>>().join("\n"), "SLIDEGATE_");
        let unknown: Vec<_> = used.difference(&variables).collect();
        assert!(unknown.is_empty(), "{}: {unknown:?}", file.display());
        seen += used.len();
        if !file.ends_with("Dockerfile") {
            let named = words_with_prefix(&text, "--");
            let unknown: Vec<_> = named.difference(&flags).collect();
            assert!(unknown.is_empty(), "{}: {unknown:?}", file.display());
            seen += named.len();
        }
    }
    assert!(seen > 15, "{seen}");
}

#[test]
fn schema_of_chart_lists_every_flag() {
    let help = read_serve_help();
    let lines = help.lines().filter_map(|line| line.trim_start().strip_prefix("--"));
    let mut flags: Vec<&str> = lines.filter_map(|flag| flag.split(' ').next()).collect();
    flags.sort_unstable();
    let schema: Value =
        serde_json::from_str(&read_project_file("deploy/helm/values.schema.json")).unwrap();
    let patterns = schema["properties"]["settings"]["patternProperties"].as_object().unwrap();
    assert_eq!(patterns.keys().collect::<Vec<_>>(), [&format!("^({})$", flags.join("|"))]);
}

#[test]
fn systemd_and_kubernetes_wait_longer_than_shutdown_grace() {
    let help = read_serve_help();
    let (_, rest) = help.split_once("--shutdown-grace ").expect("the flag");
    let (_, rest) = rest.split_once("[default: ").unwrap();
    let grace: u64 = rest.split_once("s]").unwrap().0.parse().unwrap();
    let systemd_timeout: u64 = systemd::systemd_unit_setting("TimeoutStopSec").parse().unwrap();
    assert!(systemd_timeout > grace, "systemd: {systemd_timeout} s, slidegate: {grace} s");
    let kubernetes_timeout = kubernetes::seconds_until_kill();
    assert!(kubernetes_timeout > grace, "Kubernetes: {kubernetes_timeout} s, slidegate: {grace} s");
}

//! Flags and environment variables of slidegate in `deploy/`, checked against the help of the program.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::slidegate;
use crate::{kubernetes, project, run_command, systemd};

/// Returns the help of `slidegate serve`.
fn help() -> String {
    run_command(slidegate().args(["serve", "--help"]))
}

/// Returns all files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let below = entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] });
    below.collect()
}

/// Returns the words of a text that begin with a prefix.
fn words(text: &str, prefix: &str) -> BTreeSet<String> {
    let is_word_char = |char: char| char.is_ascii_alphanumeric() || char == '-' || char == '_';
    let words = text.split(|char| !is_word_char(char));
    let matching = words.filter(|word| word.len() > prefix.len() && word.starts_with(prefix));
    matching.map(str::to_owned).collect()
}

#[test]
fn deployed_settings_exist_in_the_program() {
    let help = help();
    let (flags, variables) = (words(&help, "--"), words(&help, "SLIDEGATE_"));
    let mut seen = 0;
    for file in files(&project("deploy")) {
        let text = fs::read_to_string(&file).unwrap();
        // Comments mention variables of other programs, and the Dockerfile has flags of other programs.
        let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
        let used = words(&lines.collect::<Vec<_>>().join("\n"), "SLIDEGATE_");
        let unknown: Vec<_> = used.difference(&variables).collect();
        assert!(unknown.is_empty(), "{}: {unknown:?}", file.display());
        seen += used.len();
        if !file.ends_with("Dockerfile") {
            let named = words(&text, "--");
            let unknown: Vec<_> = named.difference(&flags).collect();
            assert!(unknown.is_empty(), "{}: {unknown:?}", file.display());
            seen += named.len();
        }
    }
    assert!(seen > 15, "{seen}");
}

#[test]
fn supervisors_wait_longer_than_shutdown_grace() {
    let help = help();
    let (_, rest) = help.split_once("--shutdown-grace ").expect("the flag");
    let (_, rest) = rest.split_once("[default: ").unwrap();
    let grace: u64 = rest.split_once("s]").unwrap().0.parse().unwrap();
    let systemd_timeout: u64 = systemd::setting("TimeoutStopSec").parse().unwrap();
    assert!(systemd_timeout > grace, "systemd: {systemd_timeout} s, slidegate: {grace} s");
    let kubernetes_timeout = kubernetes::shutdown_seconds();
    assert!(kubernetes_timeout > grace, "Kubernetes: {kubernetes_timeout} s, slidegate: {grace} s");
}

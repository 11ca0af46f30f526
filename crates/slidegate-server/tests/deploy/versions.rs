//! Checks that `docs/reference/upgrade-notes.md` names the versions with which the tests run.

use std::process::Command;

use crate::deploy::helm::KUBERNETES_VERSIONS;
use crate::deploy::{read_project_file, run_command};

/// Returns the first two numbers of the version that follows `before` in a text.
fn version_after(text: &str, before: &str) -> String {
    let (_, rest) = text.split_once(before).unwrap_or_else(|| panic!("no {before}: {text}"));
    let digits = rest.split(|char: char| !char.is_ascii_digit() && char != '.').next().unwrap();
    digits.split('.').take(2).collect::<Vec<_>>().join(".")
}

#[test]
fn upgrade_notes_name_tested_versions() {
    let page = read_project_file("docs/reference/upgrade-notes.md");
    let (_, table) = page.split_once("\n## Supported versions\n").unwrap();
    let proxies = read_project_file("crates/slidegate-server/tests/proxies.sh");
    let redis = run_command(Command::new("redis-server").arg("--version"));
    let rust = version_after(&read_project_file("Cargo.toml"), "\nrust-version = \"");
    let [oldest, newest] = KUBERNETES_VERSIONS;
    for row in [
        format!("| Redis | 6.2 or later | {} |", version_after(&redis, " v=")),
        format!("| {} |\n", version_after(&proxies, "\nENVOY=")),
        format!("| Kubernetes | {oldest} or later | schemas of {oldest} and {newest};"),
        format!("| Rust | {rust} or later | {rust} |"),
    ] {
        assert!(table.contains(&row), "no `{row}` in{table}");
    }
}

//! Settings of slidegate that stand in `deploy/`: the program has them, and they fit.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::slidegate;
use crate::{kubernetes, project, run, systemd};

/// What the program says of its settings.
fn help() -> String {
    run(slidegate().args(["serve", "--help"]))
}

/// Every file below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let below = entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] });
    below.collect()
}

/// The words of a text that begin so.
fn words(text: &str, begin: &str) -> BTreeSet<String> {
    let of_word = |char: char| char.is_ascii_alphanumeric() || char == '-' || char == '_';
    let words = text.split(|char| !of_word(char));
    let ours = words.filter(|word| word.len() > begin.len() && word.starts_with(begin));
    ours.map(str::to_owned).collect()
}

#[test]
fn every_setting_is_one_of_the_program() {
    let help = help();
    let (flags, variables) = (words(&help, "--"), words(&help, "SLIDEGATE_"));
    let mut seen = 0;
    for file in files(&project("deploy")) {
        let text = fs::read_to_string(&file).unwrap();
        // Comments tell of variables that are none of ours, and a Dockerfile has flags of others.
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
fn nobody_kills_it_before_its_grace_is_over() {
    let help = help();
    let (_, behind) = help.split_once("--shutdown-grace ").expect("the flag");
    let (_, behind) = behind.split_once("[default: ").unwrap();
    let grace: u64 = behind.split_once("s]").unwrap().0.parse().unwrap();
    let of_systemd: u64 = systemd::setting("TimeoutStopSec").parse().unwrap();
    assert!(of_systemd > grace, "{of_systemd} s of systemd, {grace} s of slidegate");
    let of_kubernetes = kubernetes::seconds_to_end();
    assert!(of_kubernetes > grace, "{of_kubernetes} s of Kubernetes, {grace} s of slidegate");
}

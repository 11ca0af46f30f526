//! What stands in `examples/`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::{policies, root};

/// The examples of this kind, in order.
fn examples(ending: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(root().join("examples")).unwrap().map(|file| file.unwrap().path());
    let mut files: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|e| e == ending)).collect();
    files.sort();
    files
}

#[test]
fn every_example_policy_is_valid_and_runnable() {
    let policies = examples("yaml");
    assert!(policies.len() >= 4, "{policies:?}");
    for path in policies {
        let (yaml, name) = (fs::read_to_string(&path).unwrap(), path.file_name().unwrap());
        policies::is_right(&yaml).unwrap_or_else(|wrong| panic!("{}: {wrong}", path.display()));
        let start = format!("#   slidegate serve --policy examples/{}\n", name.display());
        assert!(yaml.contains(&start), "{} should say{start}", path.display());
    }
}

#[test]
fn shipped_policies_have_no_warnings() {
    let mut policies = examples("yaml");
    policies.push(root().join("deploy/envoy/policy.yaml"));
    for path in policies {
        let yaml = fs::read_to_string(&path).unwrap();
        policies::has_no_warning(&yaml).unwrap_or_else(|told| panic!("{}: {told}", path.display()));
    }
    let map = fs::read_to_string(root().join("deploy/kubernetes/policy.yaml")).unwrap();
    let map: serde_json::Value = serde_saphyr::from_str(&map).unwrap();
    policies::has_no_warning(map["data"]["policy.yaml"].as_str().unwrap()).unwrap();
}

#[test]
fn policies_in_rust_use_no_client_chosen_attributes() {
    let tower = root().join("crates/slidegate-tower/src/layer.rs");
    let gate = root().join("crates/slidegate/src/gate.rs");
    for path in examples("rs").into_iter().chain([tower, gate]) {
        let source = fs::read_to_string(&path).unwrap();
        policies::check_in_rust(&source)
            .unwrap_or_else(|told| panic!("{}: {told}", path.display()));
    }
}

/// What an example program says at its end that it prints; none if it serves, or asks others.
fn promised(source: &str) -> Option<&str> {
    source.split_once("\n// It prints:\n//\n").map(|(_, promised)| promised)
}

#[test]
fn example_programs_print_their_documented_output() {
    let mut held = 0;
    for path in examples("rs") {
        let source = fs::read_to_string(&path).unwrap();
        let Some(promised) = promised(&source) else { continue };
        assert!(source.lines().count() < 60, "{}: a newcomer reads it", path.display());
        let promised: String = promised
            .lines()
            .map(|line| line.trim_start_matches("//").trim_start().to_owned() + "\n")
            .collect();
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert_eq!(printed(name), promised, "{}", path.display());
        held += 1;
    }
    assert!(held >= 2, "{held} programs");
}

/// Those of slidegate-tower, whose own tests hold what they do.
#[test]
fn other_examples_are_short_and_runnable() {
    for path in examples("rs") {
        let source = fs::read_to_string(&path).unwrap();
        if promised(&source).is_none() {
            assert!(source.lines().count() < 80, "{}: a newcomer reads it", path.display());
            let name = path.file_stem().unwrap().to_str().unwrap();
            let mut lines = source.lines();
            let start = |line: &str| {
                line.starts_with("//! cargo run -p slidegate-tower --features ")
                    && line.contains(&format!(" --example {name}"))
            };
            assert!(lines.any(start), "{} should say how to start it", path.display());
        }
    }
}

/// What an example program prints. It is built as tests are, since most of that stands there.
fn printed(name: &str) -> String {
    let output = Command::new(env!("CARGO"))
        .current_dir(root())
        .args(["run", "--quiet", "--profile", "test", "-p", "slidegate", "--example", name])
        .output()
        .unwrap();
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

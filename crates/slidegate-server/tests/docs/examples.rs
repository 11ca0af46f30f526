//! Tests of the policies and programs in `examples/`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::common::project_path;
use crate::docs::{example_programs, policies};
use crate::redis_server::Redis;

/// Returns the paths of all files in `examples/` with this extension, sorted.
fn example_files(extension: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(project_path("examples")).unwrap().map(|file| file.unwrap().path());
    let mut files: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|e| e == extension)).collect();
    files.sort();
    files
}

#[test]
fn every_example_policy_is_valid_and_runnable() {
    let policies = example_files("yaml");
    assert!(policies.len() >= 4, "{policies:?}");
    for path in policies {
        let (yaml, name) = (fs::read_to_string(&path).unwrap(), path.file_name().unwrap());
        policies::check_valid(&yaml)
            .unwrap_or_else(|errors| panic!("{}: {errors}", path.display()));
        let start = format!("#   slidegate serve --policy examples/{}\n", name.display());
        assert!(yaml.contains(&start), "{}: missing line{start}", path.display());
    }
}

#[test]
fn shipped_policies_have_no_warnings() {
    let mut policies = example_files("yaml");
    policies.push(project_path("deploy/envoy/policy.yaml"));
    for path in policies {
        let yaml = fs::read_to_string(&path).unwrap();
        policies::check_no_warnings(&yaml)
            .unwrap_or_else(|warnings| panic!("{}: {warnings}", path.display()));
    }
    let values = fs::read_to_string(project_path("deploy/helm/values.yaml")).unwrap();
    let values: serde_json::Value = serde_saphyr::from_str(&values).unwrap();
    policies::check_no_warnings(values["policy"].as_str().unwrap()).unwrap();
}

#[test]
fn policies_in_rust_code_count_by_trusted_attributes() {
    let tower = project_path("crates/slidegate-tower/src/layer.rs");
    let gate = project_path("crates/slidegate/src/gate.rs");
    for path in example_files("rs").into_iter().chain([tower, gate]) {
        let source = fs::read_to_string(&path).unwrap();
        policies::check_rust_source(&source)
            .unwrap_or_else(|warnings| panic!("{}: {warnings}", path.display()));
    }
}

/// Returns the expected output that an example program documents in a comment at the end of its source.
///
/// Returns `None` for programs without such a comment, which run servers or send requests.
fn documented_example_output(source: &str) -> Option<&str> {
    source.split_once("\n// It prints:\n//\n").map(|(_, output)| output)
}

#[test]
fn example_programs_print_documented_output() {
    let redis = Redis::start();
    let mut checked = 0;
    for path in example_files("rs") {
        let source = fs::read_to_string(&path).unwrap();
        let Some(comment) = documented_example_output(&source) else { continue };
        let name = path.file_stem().unwrap().to_str().unwrap();
        // A complete store has more methods than other examples have lines.
        let max_lines = if name == "store" { 150 } else { 59 };
        assert!(source.lines().count() <= max_lines, "{}: too long for an example", path.display());
        let expected: String = comment
            .lines()
            .map(|line| line.trim_start_matches("//").trim_start().to_owned() + "\n")
            .collect();
        assert_eq!(run_example(name, &source, &redis.address()), expected, "{}", path.display());
        checked += 1;
    }
    assert!(checked >= 5, "{checked} programs");
}

/// Checks that each example of slidegate-tower has at most 79 lines, and contains a comment with the command that
/// starts it. The tests of that crate check the behaviour of the examples.
#[test]
fn examples_without_output_show_start_command() {
    for path in example_files("rs") {
        let source = fs::read_to_string(&path).unwrap();
        if documented_example_output(&source).is_none() {
            assert!(source.lines().count() < 80, "{}: too long for an example", path.display());
            let name = path.file_stem().unwrap().to_str().unwrap();
            let mut lines = source.lines();
            let is_start_command = |line: &str| {
                line.contains("cargo run -p slidegate-tower --features ")
                    && line.contains(&format!(" --example {name}"))
            };
            assert!(lines.any(is_start_command), "{}: missing start command", path.display());
        }
    }
}

/// Runs an example program with the environment of the command in its source, and returns its standard output.
fn run_example(name: &str, source: &str, redis_address: &str) -> String {
    example_programs::check_command(documented_command(name, source)).unwrap();
    output_of(Command::new(example_programs::built_examples().join(name)), name, redis_address)
}

/// Returns the arguments of the `cargo run` command in the source of an example.
fn documented_command<'s>(name: &str, source: &'s str) -> &'s str {
    let command = source.lines().find_map(|line| line.split_once("cargo run ")).unwrap().1;
    assert!(command.ends_with(&format!("--example {name}")), "{name}: {command}");
    command
}

fn output_of(mut program: Command, name: &str, redis_address: &str) -> String {
    let output =
        program.current_dir(project_path("")).env("REDIS_URL", redis_address).output().unwrap();
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs the command of each example as documented. Each command builds the dependencies with other features.
#[test]
#[ignore = "takes minutes; run by `make nightly`"]
fn example_commands_build_with_documented_features() {
    let redis = Redis::start();
    for path in example_files("rs") {
        let source = fs::read_to_string(&path).unwrap();
        let Some(_) = documented_example_output(&source) else { continue };
        let name = path.file_stem().unwrap().to_str().unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["run", "--quiet", "--profile", "test"]);
        cargo.args(documented_command(name, &source).split_whitespace());
        assert!(!output_of(cargo, name, &redis.address()).is_empty(), "{name}");
    }
}

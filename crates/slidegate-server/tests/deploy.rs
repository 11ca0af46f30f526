//! Checks the files in `deploy/` with the programs that use them: Prometheus, systemd, a linter for Dockerfiles,
//! helm and a validator with the Kubernetes schemas, and slidegate itself.
//!
//! Prometheus evaluates every rule and every query of the dashboard against a fake server that exports exactly the
//! documented metrics. `make test` installs these programs. A test fails if the program that it needs is missing.

mod alerts;
mod dashboard;
mod docker;
mod envoy;
mod exporter;
mod expression;
mod helm;
mod kubernetes;
mod kubernetes_cluster;
mod kubernetes_cluster_tls;
mod settings;
mod systemd;
mod versions;

use std::path::Path;
use std::process::Command;
use std::{env, fs};

use serde_json::Value;

use crate::common::project_path;

fn read_project_file(path: &str) -> String {
    fs::read_to_string(project_path(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn read_project_yaml(path: &str) -> Value {
    serde_saphyr::from_str(&read_project_file(path))
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns a command for a program that `make test` installs in a Python virtual environment.
fn venv_command(program: &str) -> Command {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../deploy/venv/bin").join(program);
    assert!(
        path.exists(),
        "no {program}: run crates/slidegate-server/tests/deploy.sh, as `make test` does"
    );
    Command::new(path)
}

/// Runs a command and returns its standard output followed by its standard error. Panics if the command fails.
fn run_command(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    assert!(output.status.success(), "{command:?} ended with {}:\n{printed}", output.status);
    printed
}

/// Returns the elements of a JSON array, or an empty slice if the value is not an array.
fn array_elements(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn expect_string(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("not a string: {value}"))
}

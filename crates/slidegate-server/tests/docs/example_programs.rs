//! The example programs, built with all features and the test profile, as the rest of the tests.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use serde_json::Value;

use crate::common::project_path;

/// Builds all examples if necessary, and returns the folder of the programs.
pub fn built_examples() -> &'static Path {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
        let arguments = [
            "build",
            "--quiet",
            "--profile",
            "test",
            "--workspace",
            "--all-features",
            "--examples",
        ];
        let mut cargo = Command::new(env!("CARGO"));
        // With these variables of the test, the build script of `ring` would run again, and most packages be built again.
        for name in env::vars_os().filter_map(|(name, _)| name.into_string().ok()) {
            if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
                cargo.env_remove(name);
            }
        }
        let built = cargo.current_dir(project_path("")).args(arguments).output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        Path::new(env!("CARGO_BIN_EXE_slidegate")).with_file_name("examples")
    });
    &FOLDER
}

/// Checks that a documented command such as `-p slidegate --features tokio --example worker` names an example of the
/// package and all features that the example requires.
pub fn check_command(command: &str) -> Result<(), String> {
    let words: Vec<&str> = command.split_whitespace().collect();
    let value_of = |flag: &str| {
        let index = words.iter().position(|word| *word == flag)?;
        words.get(index + 1).copied()
    };
    let (package, example) = value_of("-p").zip(value_of("--example")).ok_or(command)?;
    let named: Vec<&str> = value_of("--features").unwrap_or_default().split(',').collect();
    let package = workspace_packages()
        .iter()
        .find(|other| other["name"] == package)
        .ok_or_else(|| format!("`{command}`: unknown package"))?;
    let default = package["features"]["default"].as_array().cloned().unwrap_or_default();
    let targets = package["targets"].as_array().unwrap();
    let target = targets
        .iter()
        .find(|target| target["name"] == example && target["kind"][0] == "example")
        .ok_or_else(|| format!("`{command}`: unknown example"))?;
    for feature in target["required-features"].as_array().into_iter().flatten() {
        if !default.contains(feature) && !named.contains(&feature.as_str().unwrap()) {
            return Err(format!("`{command}`: add `--features` {feature}"));
        }
    }
    Ok(())
}

/// Returns the packages of the workspace, as described by `cargo metadata`.
fn workspace_packages() -> &'static [Value] {
    static PACKAGES: LazyLock<Vec<Value>> = LazyLock::new(|| {
        let arguments = ["metadata", "--no-deps", "--offline", "--format-version", "1"];
        let output =
            Command::new(env!("CARGO")).current_dir(project_path("")).args(arguments).output();
        let mut metadata: Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
        serde_json::from_value(metadata["packages"].take()).unwrap()
    });
    &PACKAGES
}

#[test]
fn documented_command_requires_features_of_example() {
    assert_eq!(check_command("-p slidegate --features tokio --example worker"), Ok(()));
    assert_eq!(check_command("-p slidegate --example gate"), Ok(()), "a default feature");
    for wrong in [
        "-p slidegate --example worker",
        "-p slidegate --features schema --example worker",
        "-p slidegate --example plans",
        "-p slide --example gate",
        "-p slidegate",
    ] {
        assert!(check_command(wrong).is_err(), "{wrong}");
    }
}

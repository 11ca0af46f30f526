//! Tests of the Dockerfile. The tests do not build the image. A linter checks the file, and cargo checks that the
//! copied files form a workspace.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::project_path;
use crate::deploy::{read_project_file, run_command, venv_command};

const DOCKERFILE_PATH: &str = "deploy/Dockerfile";

/// Returns the instructions of the Dockerfile, each joined to one line, without comments.
fn read_dockerfile_instructions() -> Vec<String> {
    let text = read_project_file(DOCKERFILE_PATH);
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let joined = lines.collect::<Vec<_>>().join("\n").replace("\\\n", " ");
    joined.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// Returns the arguments of each Dockerfile instruction with this name, such as `COPY`.
fn dockerfile_instruction_arguments<'i>(instructions: &'i [String], name: &str) -> Vec<&'i str> {
    let name = format!("{name} ");
    instructions.iter().filter_map(|line| line.strip_prefix(&name)).collect()
}

#[test]
fn dockerfile_passes_linter() {
    run_command(
        venv_command("hadolint")
            .args(["--failure-threshold", "style"])
            .arg(project_path(DOCKERFILE_PATH)),
    );
}

#[test]
fn image_contains_only_binary_authorities_and_unprivileged_user() {
    let instructions = read_dockerfile_instructions();
    let last = instructions.iter().position(|line| line == "FROM scratch").expect("a last stage");
    let image = &instructions[last + 1..];
    assert_eq!(
        dockerfile_instruction_arguments(image, "COPY"),
        [
            "--from=build /slidegate /slidegate",
            "--from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/"
        ]
    );
    assert!(
        dockerfile_instruction_arguments(image, "RUN").is_empty()
            && dockerfile_instruction_arguments(image, "FROM").is_empty(),
        "{image:?}"
    );
    let [user] = dockerfile_instruction_arguments(image, "USER")[..] else {
        panic!("one user: {image:?}")
    };
    let ids: Vec<u32> = user.split(':').map(|id| id.parse().expect("a number")).collect();
    assert!(ids.len() == 2 && !ids.contains(&0), "{user}");
    // The exec form starts no shell, so the program itself receives signals. The image has no shell for the check.
    assert_eq!(dockerfile_instruction_arguments(image, "ENTRYPOINT"), ["[\"/slidegate\"]"]);
    let [check] = dockerfile_instruction_arguments(image, "HEALTHCHECK")[..] else {
        panic!("one health check: {image:?}")
    };
    assert!(check.ends_with("CMD [\"/slidegate\", \"health\"]"), "{check}");
}

#[test]
fn dockerfile_and_ci_use_minimum_rust_version() {
    let manifest = read_project_file("Cargo.toml");
    let (_, rest) = manifest.split_once("\nrust-version = \"").unwrap();
    let version = rest.split('"').next().unwrap();
    assert_eq!(
        dockerfile_instruction_arguments(&read_dockerfile_instructions(), "FROM")[0],
        format!("--platform=$BUILDPLATFORM rust:{version}-bookworm AS build")
    );
    let workflows =
        [".github/workflows/ci.yml", ".github/workflows/release.yml"].map(read_project_file);
    let images: Vec<&str> = workflows
        .iter()
        .flat_map(|workflow| workflow.lines())
        .filter_map(|line| line.trim().strip_prefix("container: "))
        .collect();
    let image = format!("rust:{version}-bookworm");
    assert!(images.len() > 2 && images.iter().all(|used| *used == image), "{images:?}");
}

#[test]
fn docker_build_context_contains_complete_workspace() {
    let ignored = read_project_file(".dockerignore");
    let context: Vec<&str> = ignored.lines().filter_map(|line| line.strip_prefix('!')).collect();
    let instructions = read_dockerfile_instructions();
    let copies = dockerfile_instruction_arguments(&instructions, "COPY");
    let mut copied: Vec<&str> = copies
        .iter()
        .filter(|copy| !copy.starts_with("--from"))
        .flat_map(|copy| copy.split(' ').rev().skip(1))
        .collect();
    copied.reverse();
    let (mut admitted, mut sources) = (context.clone(), copied.clone());
    admitted.sort_unstable();
    sources.sort_unstable();
    assert_eq!(admitted, sources, "paths that .dockerignore admits, and paths that are copied");

    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("docker-context");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    run_command(
        Command::new("cp")
            .current_dir(project_path("."))
            .args(["-r", "--parents"])
            .args(&context)
            .arg(&folder),
    );
    for excluded in ignored.lines().filter(|line| line.starts_with("crates/")) {
        let excluded = folder.join(excluded);
        run_command(Command::new("sh").arg("-c").arg(format!("rm -r {}", excluded.display())));
    }
    let manifest = folder.join("Cargo.toml");
    let metadata = ["metadata", "--no-deps", "--offline", "--format-version=1", "--manifest-path"];
    let output = run_command(Command::new(env!("CARGO")).args(metadata).arg(&manifest));
    assert!(output.contains("slidegate-server"));
    let dangling_links = run_command(Command::new("find").arg(&folder).args(["-xtype", "l"]));
    assert_eq!(dangling_links, "", "files outside the build context");
    fs::remove_dir_all(&folder).unwrap();
}

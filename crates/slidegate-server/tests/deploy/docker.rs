//! The Dockerfile, which no test builds: a linter reads it, and what it copies is enough for cargo.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::{installed, project, read, run};

const FILE: &str = "deploy/Dockerfile";

/// The instructions, each on one line, without comments.
fn instructions() -> Vec<String> {
    let text = read(FILE);
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let joined = lines.collect::<Vec<_>>().join("\n").replace("\\\n", " ");
    joined.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// What stands behind an instruction, each time.
fn of<'i>(instructions: &'i [String], name: &str) -> Vec<&'i str> {
    let name = format!("{name} ");
    instructions.iter().filter_map(|line| line.strip_prefix(&name)).collect()
}

#[test]
fn the_linter_has_nothing_against_it() {
    run(installed("hadolint").args(["--failure-threshold", "style"]).arg(project(FILE)));
}

#[test]
fn the_image_has_the_program_alone_and_runs_as_nobody() {
    let instructions = instructions();
    let last = instructions.iter().position(|line| line == "FROM scratch").expect("a last stage");
    let image = &instructions[last + 1..];
    assert_eq!(of(image, "COPY"), ["--from=build /slidegate /slidegate"]);
    assert!(of(image, "RUN").is_empty() && of(image, "FROM").is_empty(), "{image:?}");
    let [user] = of(image, "USER")[..] else { panic!("one user: {image:?}") };
    let ids: Vec<u32> = user.split(':').map(|id| id.parse().expect("a number")).collect();
    assert!(ids.len() == 2 && !ids.contains(&0), "{user}");
    // Without a shell: a signal goes to the program itself.
    assert_eq!(of(image, "ENTRYPOINT"), ["[\"/slidegate\"]"]);
}

#[test]
fn it_is_built_with_the_rust_that_the_project_needs() {
    let manifest = read("Cargo.toml");
    let (_, behind) = manifest.split_once("\nrust-version = \"").unwrap();
    let version = behind.split('"').next().unwrap();
    assert_eq!(of(&instructions(), "FROM")[0], format!("rust:{version}-bookworm AS build"));
}

#[test]
fn what_it_copies_is_a_whole_workspace() {
    let ignored = read(".dockerignore");
    let sent: Vec<&str> = ignored.lines().filter_map(|line| line.strip_prefix('!')).collect();
    let instructions = instructions();
    let copies = of(&instructions, "COPY");
    let mut copied: Vec<&str> = copies
        .iter()
        .filter(|copy| !copy.starts_with("--from"))
        .flat_map(|copy| copy.split(' ').rev().skip(1))
        .collect();
    copied.reverse();
    let (mut wanted, mut sources) = (sent.clone(), copied.clone());
    wanted.sort_unstable();
    sources.sort_unstable();
    assert_eq!(wanted, sources, "what .dockerignore lets through, and what is copied");

    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("docker-context");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    run(Command::new("cp").arg("-r").args(sent.iter().map(|path| project(path))).arg(&folder));
    for left_out in ignored.lines().filter(|line| line.starts_with("crates/")) {
        let left_out = folder.join(left_out);
        run(Command::new("sh").arg("-c").arg(format!("rm -r {}", left_out.display())));
    }
    let manifest = folder.join("Cargo.toml");
    let metadata = ["metadata", "--no-deps", "--offline", "--format-version=1", "--manifest-path"];
    let found = run(Command::new(env!("CARGO")).args(metadata).arg(&manifest));
    assert!(found.contains("slidegate-server"));
    fs::remove_dir_all(&folder).unwrap();
}

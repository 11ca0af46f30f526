//! The documents and the examples agree with the program: what they show is run, what they name exists.
//!
//! What a document may show, each as a fenced code block:
//!
//! | block | |
//! |---|---|
//! | `yaml` | a policy; or, without `rules:`, fields of one rule (see `policies`) |
//! | `yaml ratelimit` | a file of the reference server, which an `sh` block below reads |
//! | `yaml warned` | a valid policy with warnings, as an example of these; no other policy has any |
//! | `yaml wrong` | a policy with mistakes; an `sh` block below shows what is told of them |
//! | `requests` | what becomes of requests under the policy above it (see `requests`) |
//! | `sh`, `sh fails` | commands, which are run (see `shell`) |
//! | `http`, `text`, or `json` below `sh` | what the last command prints (see `output`) |
//! | `json` elsewhere | JSON |
//! | `rust` | run by `cargo test --doc`: a library includes the document |
//! | any `deploy/…`, `rust examples/…`, `rust,ignore examples/…` | what stands so in that file, which other tests run or build |
//! | no language | a drawing |
#![allow(clippy::unwrap_used, clippy::expect_used)] // A test that cannot go on has failed.

#[path = "../common/mod.rs"]
mod common;
mod examples;
mod fields;
mod flags;
mod links;
mod markdown;
mod nodes;
mod output;
mod policies;
#[path = "../../../slidegate-redis/tests/server/mod.rs"]
mod redis_server;
mod requests;
mod shell;

use std::path::{Path, PathBuf};
use std::{env, fs};

use markdown::Block;
use shell::Shell;

/// The root of the project.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// README.md and all of `docs/`, by their names within the project.
fn documents() -> Vec<String> {
    let files = fs::read_dir(root().join("docs")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut documents: Vec<String> =
        names.filter(|name| name.ends_with(".md")).map(|name| format!("docs/{name}")).collect();
    documents.push("README.md".to_owned());
    documents.sort();
    documents
}

fn read(document: &str) -> String {
    fs::read_to_string(root().join(document)).unwrap()
}

#[test]
fn every_block_of_every_document_passes() {
    let documents = documents();
    for needed in ["README.md", "docs/POLICY.md", "docs/ALGORITHMS.md"] {
        assert!(documents.iter().any(|document| document == needed), "{needed} is missing");
    }
    let mut wrong = Vec::new();
    for document in documents {
        wrong.extend(mistakes(&document, &markdown::blocks(&read(&document))));
    }
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n\n"));
}

/// What does not hold in a document.
fn mistakes(document: &str, blocks: &[Block]) -> Vec<String> {
    let mut shell = Shell::in_a_folder_of(document);
    let mut policy: Option<&Block> = None;
    let mut wrong = Vec::new();
    for block in blocks {
        let held = match (block.language(), block.mark()) {
            (_, file) if file.starts_with("deploy/") => stands_in(file, block),
            ("rust" | "rust,ignore", file) if file.starts_with("examples/") => {
                stands_in(file, block)
            }
            ("yaml", "ratelimit") => shell.keep_file(block),
            ("yaml", mark) => {
                policy = Some(block);
                shell.keep_file(block).and(match mark {
                    "" => policies::check(block),
                    "warned" => policies::check_warned(block),
                    "wrong" => policies::check_wrong(block),
                    other => Err(format!("`yaml {other}` is not known")),
                })
            }
            ("requests", "") => match policy {
                Some(policy) => requests::check(policy, block),
                None => Err("no policy stands above these requests".to_owned()),
            },
            ("sh", _) => shell.run(block),
            ("http" | "text", "") => shell.printed(block),
            ("json", "") if shell.has_output() => shell.printed(block),
            ("json", "") => policies::json(block),
            ("rust", "") => is_run_by_a_library(document).and(policies::check_in_rust(&block.text)),
            ("", "") => Ok(()),
            (language, mark) => Err(format!("`{language} {mark}` is not known here")),
        };
        if let Err(message) = held {
            wrong.push(format!("{document}:{}: {message}", block.line));
        }
    }
    wrong
}

/// Whether the documentation tests of a library run a document.
fn is_run_by_a_library(document: &str) -> Result<(), String> {
    let include = format!("#[doc = include_str!(\"../../../{document}\")]");
    let mut crates = fs::read_dir(root().join("crates")).unwrap();
    let runs = crates.any(|folder| {
        let library = fs::read_to_string(folder.unwrap().path().join("src/lib.rs"));
        library.is_ok_and(|library| library.contains(&include))
    });
    runs.then_some(()).ok_or_else(|| format!("no library has {include}"))
}

/// Holds a block against the file that it is of.
fn stands_in(file: &str, block: &Block) -> Result<(), String> {
    let whole =
        fs::read_to_string(root().join(file)).map_err(|error| format!("{file}: {error}"))?;
    whole
        .contains(&block.text)
        .then_some(())
        .ok_or_else(|| format!("this does not stand in {file}"))
}

#[test]
fn every_recipe_shows_request_outcomes() {
    let blocks = markdown::blocks(&read("docs/POLICY.md"));
    let recipes: Vec<&Block> = blocks
        .iter()
        .filter(|block| block.headings.get(1).is_some_and(|h| h == "Recipes"))
        .collect();
    let policies = recipes.iter().filter(|block| block.language() == "yaml").count();
    assert!(policies >= 9, "{policies} recipes");
    for pair in recipes.chunks(2) {
        let languages: Vec<&str> = pair.iter().map(|block| block.language()).collect();
        let recipe = pair[0].headings.last().unwrap();
        assert_eq!(languages, ["yaml", "requests"], "in the recipe `{recipe}`");
        assert_eq!(pair[0].headings, pair[1].headings, "in the recipe `{recipe}`");
    }
}

//! Checks the documentation and the examples against the program: the tests run all code blocks, and check that named
//! flags, fields, files and headings exist.
//!
//! These fenced code blocks are supported:
//!
//! | block | content |
//! |---|---|
//! | `yaml` | a policy; or, without `rules:`, fields of one rule (see module `policies`) |
//! | `yaml ratelimit`, `nginx convert` | a file of the reference server or nginx, which an `sh` block below reads |
//! | `yaml warned` | a valid policy with warnings; other policies must not have any |
//! | `yaml wrong` | an invalid policy; an `sh` block below shows its errors |
//! | `requests` | requests and their outcomes under the policy above (see module `requests`) |
//! | `sh`, `sh fails` | commands, which are executed (see module `shell`) |
//! | `http`, `text`, or `json` below `sh` | the output of the commands or the program above (see module `output`) |
//! | `json` elsewhere | JSON |
//! | `rust` | run by `cargo test --doc`: a library includes the document |
//! | `toml` | dependencies on crates of the project, with existing features |
//! | any `deploy/…`, a program `examples/…` | an excerpt of the named file, tested elsewhere |
//! | `python run`, `javascript run` | a program, which is executed (see module `programs`) |
//! | `python`, `javascript` | a program, whose syntax is checked |
//! | `go`, `bash`, `ini`, `nginx`, `yaml istio`, `yaml limitador` | for other programs, not checked |
//! | no language | a diagram, a log or pseudocode, which is not checked |

mod example_programs;
mod examples;
mod fields;
mod flags;
mod links;
mod markdown;
mod nodes;
mod output;
mod policies;
mod programs;
mod requests;
mod shell;
mod store_errors;

use std::fs;

use crate::common::project_path;
use markdown::FencedBlock;
use shell::Shell;

/// Returns the paths of README.md and of all documents in `docs/` and its folders, relative to the root.
fn document_paths() -> Vec<String> {
    let mut documents = vec!["README.md".to_owned()];
    let mut folders = vec!["docs".to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(project_path(&folder)).unwrap() {
            let entry = entry.unwrap();
            let path = format!("{folder}/{}", entry.file_name().display());
            if entry.file_type().unwrap().is_dir() {
                folders.push(path);
            } else if path.ends_with(".md") {
                documents.push(path);
            }
        }
    }
    documents.sort();
    documents
}

fn read_document(document: &str) -> String {
    fs::read_to_string(project_path(document)).unwrap()
}

#[test]
fn every_documented_code_block_passes() {
    let documents = document_paths();
    for required in ["README.md", "docs/README.md", "docs/reference/policy.md"] {
        assert!(documents.iter().any(|document| document == required), "{required} is missing");
    }
    let mut errors = Vec::new();
    for document in documents {
        errors.extend(find_code_block_errors(
            &document,
            &markdown::parse_blocks(&read_document(&document)),
        ));
    }
    assert!(errors.is_empty(), "\n{}\n", errors.join("\n\n"));
}

/// Checks every code block of a document, and returns an error message for each block that fails.
fn find_code_block_errors(document: &str, blocks: &[FencedBlock]) -> Vec<String> {
    let mut shell = Shell::new(document);
    let mut policy: Option<&FencedBlock> = None;
    let mut errors = Vec::new();
    for block in blocks {
        let result = match (block.language(), block.modifier()) {
            (_, file) if file.starts_with("deploy/") => check_excerpt_matches_file(file, block),
            ("rust" | "rust,ignore" | "python" | "javascript" | "go", file)
                if file.starts_with("examples/") =>
            {
                check_excerpt_matches_file(file, block)
            }
            ("yaml", "ratelimit") | ("nginx", "convert") => shell.save_file(block),
            ("yaml", "istio" | "limitador") => Ok(()),
            ("yaml", modifier) => {
                policy = Some(block);
                shell.save_file(block).and(match modifier {
                    "" => policies::check_policy(block),
                    "warned" => policies::check_warned(block),
                    "wrong" => policies::check_invalid(block),
                    other => Err(format!("unknown block `yaml {other}`")),
                })
            }
            ("requests", "") => match policy {
                Some(policy) => requests::check_requests(policy, block),
                None => Err("no policy above these requests".to_owned()),
            },
            ("sh", _) => shell.run_commands(block),
            ("http" | "text", "") => shell.check_output(block),
            ("json", "") if shell.has_output() => shell.check_output(block),
            ("json", "") => policies::check_json(block),
            ("toml", "") => check_dependencies(block),
            ("rust", "") => {
                check_document_is_doctested(document).and(policies::check_rust_source(&block.text))
            }
            ("python" | "javascript", "run") => shell.run_program(block),
            ("python" | "javascript", "") => programs::check_syntax(block),
            ("go" | "bash" | "ini" | "nginx" | "", "") => Ok(()),
            (language, modifier) => Err(format!("unknown block `{language} {modifier}`")),
        };
        if let Err(message) = result {
            errors.push(format!("{document}:{}: {message}", block.line));
        }
    }
    errors
}

/// Checks that the crate documentation of a library includes a document. `cargo test --doc` then runs the code blocks
/// of the document.
fn check_document_is_doctested(document: &str) -> Result<(), String> {
    let include = format!("#[doc = include_str!(\"../../../{document}\")]");
    let mut crates = fs::read_dir(project_path("crates")).unwrap();
    let is_included = crates.any(|folder| {
        let library = fs::read_to_string(folder.unwrap().path().join("src/lib.rs"));
        library.is_ok_and(|library| library.contains(&include))
    });
    is_included.then_some(()).ok_or_else(|| format!("no library has {include}"))
}

/// Checks that each line of a `toml` block names a crate of the project, and only features of that crate.
fn check_dependencies(block: &FencedBlock) -> Result<(), String> {
    for line in block.text.lines().filter(|line| *line != "[dependencies]") {
        let name = line.split(" = ").next().unwrap_or_default();
        let path = project_path("crates").join(name).join("Cargo.toml");
        let manifest = fs::read_to_string(path).map_err(|error| format!("`{line}`: {error}"))?;
        let features = line.split_once("features = [").map_or("", |(_, list)| list);
        for feature in features.split('"').skip(1).step_by(2) {
            if !manifest.contains(&format!("\n{feature} = [")) {
                return Err(format!("`{line}`: unknown feature `{feature}`"));
            }
        }
    }
    Ok(())
}

/// Checks that the file `file` of the project contains the text of a code block.
fn check_excerpt_matches_file(file: &str, block: &FencedBlock) -> Result<(), String> {
    let content =
        fs::read_to_string(project_path(file)).map_err(|error| format!("{file}: {error}"))?;
    content
        .contains(&block.text)
        .then_some(())
        .ok_or_else(|| format!("{file} does not contain this text"))
}

/// The how-to guides that show a policy together with the outcomes of requests.
const POLICY_RECIPES: [&str; 9] = [
    "ban-clients",
    "limit-by-api-key",
    "limit-by-plan",
    "limit-by-route",
    "limit-llm-tokens",
    "limit-over-several-windows",
    "limit-users-and-anonymous-clients",
    "protect-a-login",
    "roll-out-a-policy-safely",
];

#[test]
fn every_policy_recipe_shows_request_outcomes() {
    for page in POLICY_RECIPES {
        let blocks = markdown::parse_blocks(&read_document(&format!("docs/how-to/{page}.md")));
        let policies: Vec<usize> = (0..blocks.len())
            .filter(|nth| blocks[*nth].language() == "yaml" && blocks[*nth].modifier().is_empty())
            .collect();
        assert!(!policies.is_empty(), "{page} has no policy");
        for nth in policies {
            let next = blocks.get(nth + 1).expect(page);
            assert_eq!(next.language(), "requests", "after line {} of {page}", blocks[nth].line);
            assert_eq!(next.headings, blocks[nth].headings, "in {page}");
        }
    }
}

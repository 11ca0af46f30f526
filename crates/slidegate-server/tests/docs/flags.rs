//! Tests that the documents mention every flag of the program. Flags and environment variables in the documents must
//! exist.

use std::collections::BTreeSet;

use crate::common::slidegate_command;
use crate::docs::markdown::parse_blocks;
use crate::docs::shell::Shell;
use crate::docs::{document_paths, read_document};

/// Flags of other programs that documents mention.
const FLAGS_OF_OTHER_PROGRAMS: &[&str] = &[
    "--all-features",
    "--features",
    "--platform",
    "--release",
    "--example",
    "--path",
    "--profile",
    "--quick",
    "--port",
    "--from-literal",
    "--reset-then-reuse-values",
    "--set",
    "--set-file",
    "--skip-tests",
    "--no-index",
    "--find-links",
    "--config",
    "--eval",
    "--interface",
];

/// Returns the help texts of the program and of each of its commands, concatenated.
fn all_help_texts() -> String {
    let help = |arguments: &[&str]| {
        let output = slidegate_command().args(arguments).arg("--help").output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let all = help(&[]);
    let (_, commands) = all.split_once("\nCommands:\n").unwrap();
    let commands = commands.lines().take_while(|line| line.starts_with("  "));
    let names: Vec<&str> = commands.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.contains(&"serve") && names.contains(&"replay"), "{names:?}");
    names.iter().fold(all.clone(), |texts, name| texts + &help(&[name]))
}

/// Returns all words of a text that begin with `prefix` and continue with characters that `is_word_char` accepts.
fn words_with_prefix(
    text: &str,
    prefix: &str,
    is_word_char: impl Fn(char) -> bool,
) -> BTreeSet<String> {
    let starts = text.match_indices(prefix).filter_map(|(at, _)| {
        let before = text[..at].chars().next_back();
        let is_word_start =
            before.is_none_or(|char| !char.is_alphanumeric() && char != '-' && char != '_');
        let rest = &text[at + prefix.len()..];
        let end = rest.find(|char| !is_word_char(char)).unwrap_or(rest.len());
        let word = rest[..end].trim_end_matches('-');
        (is_word_start && word.starts_with(|char: char| char.is_alphabetic()))
            .then(|| format!("{prefix}{word}"))
    });
    starts.collect()
}

fn find_flags(text: &str) -> BTreeSet<String> {
    words_with_prefix(text, "--", |char| char.is_ascii_lowercase() || char == '-')
}

fn find_environment_variables(text: &str) -> BTreeSet<String> {
    words_with_prefix(text, "SLIDEGATE_", |char| char.is_ascii_uppercase() || char == '_')
}

#[test]
fn documents_mention_all_and_only_existing_flags() {
    let documents: String =
        document_paths().iter().map(|document| read_document(document)).collect();
    let (mut named, all_help_texts) = (find_flags(&documents), all_help_texts());
    named.retain(|flag| !FLAGS_OF_OTHER_PROGRAMS.contains(&flag.as_str()));
    assert_eq!(named, find_flags(&all_help_texts));
    let variables = find_environment_variables(&documents);
    let unknown: Vec<_> =
        variables.difference(&self::find_environment_variables(&all_help_texts)).cloned().collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn flag_table_contains_all_possible_values() {
    let output = slidegate_command().args(["serve", "--help"]).output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let table = read_document("docs/reference/flags.md");
    let mut checked = 0;
    for section in help.split("\n      --").skip(1) {
        let flag = section.split_whitespace().next().unwrap();
        let Some((_, values)) = section.split_once("[possible values: ") else { continue };
        let (values, _) = values.split_once(']').unwrap();
        let row = table.lines().find(|line| line.starts_with(&format!("| `--{flag}` "))).unwrap();
        for value in values.split(", ") {
            assert!(row.contains(&format!("`{value}`")), "{flag} {value}: {row}");
        }
        checked += 1;
    }
    assert!(checked > 0, "{help}");
}

#[test]
fn every_serve_flag_has_environment_variable() {
    let output = slidegate_command().args(["serve", "--help"]).output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let own_flags = find_flags(&help).into_iter().filter(|flag| flag != "--help");
    let expected =
        own_flags.map(|flag| flag.replace("--", "SLIDEGATE_").replace('-', "_").to_uppercase());
    assert_eq!(expected.collect::<BTreeSet<_>>(), find_environment_variables(&help));
}

#[test]
fn example_request_in_help_text_is_allowed() {
    let output = slidegate_command().arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let quoted: Vec<&str> = help.split('`').filter(|part| part.starts_with("curl ")).collect();
    assert!(!quoted.is_empty());
    let commands: String = quoted.iter().map(|command| command.replace('\n', " ") + "\n").collect();
    let serve = "slidegate serve --policy examples/quickstart.yaml";
    let document =
        format!("```sh\n{serve}\n{commands}```\n\n```text\n{{\"allowed\":true,[…]\n```\n");
    let mut shell = Shell::new("help");
    let [command_block, output_block] = &parse_blocks(&document)[..] else { panic!("two blocks") };
    shell.run_commands(command_block).and_then(|()| shell.check_output(output_block)).unwrap();
}

#[test]
fn flags_and_environment_variables_are_found_in_text() {
    let text = "| `--max-keys` (SLIDEGATE_MAX_KEYS) |---|--- --x=5 <!-- a--b --not-- SLIDEGATE_…";
    assert_eq!(find_flags(text).into_iter().collect::<Vec<_>>(), ["--max-keys", "--not", "--x"]);
    assert_eq!(
        find_environment_variables(text).into_iter().collect::<Vec<_>>(),
        ["SLIDEGATE_MAX_KEYS"]
    );
}

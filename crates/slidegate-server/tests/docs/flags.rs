//! Flags and environment variables: the documents name those of the program, all of them and no others.

use std::collections::BTreeSet;

use crate::common::slidegate;
use crate::markdown::blocks;
use crate::shell::Shell;
use crate::{documents, read};

/// Flags of other programs, which documents name too.
const OF_OTHERS: [&str; 6] =
    ["--release", "--example", "--path", "--quick", "--port", "--from-literal"];

/// The help of the program and of each of its commands.
fn helps() -> String {
    let help = |arguments: &[&str]| {
        let output = slidegate().args(arguments).arg("--help").output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let all = help(&[]);
    let (_, commands) = all.split_once("\nCommands:\n").unwrap();
    let commands = commands.lines().take_while(|line| line.starts_with("  "));
    let names: Vec<&str> = commands.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.contains(&"serve") && names.contains(&"replay"), "{names:?}");
    names.iter().fold(all.clone(), |helps, name| helps + &help(&[name]))
}

/// The words that begin so and go on with any of these characters.
fn words(text: &str, begin: &str, of: impl Fn(char) -> bool) -> BTreeSet<String> {
    let starts = text.match_indices(begin).filter_map(|(at, _)| {
        let before = text[..at].chars().next_back();
        let alone = before.is_none_or(|char| !char.is_alphanumeric() && char != '-' && char != '_');
        let rest = &text[at + begin.len()..];
        let end = rest.find(|char| !of(char)).unwrap_or(rest.len());
        let word = rest[..end].trim_end_matches('-');
        (alone && word.starts_with(|char: char| char.is_alphabetic()))
            .then(|| format!("{begin}{word}"))
    });
    starts.collect()
}

fn flags(text: &str) -> BTreeSet<String> {
    words(text, "--", |char| char.is_ascii_lowercase() || char == '-')
}

fn variables(text: &str) -> BTreeSet<String> {
    words(text, "SLIDEGATE_", |char| char.is_ascii_uppercase() || char == '_')
}

#[test]
fn documents_name_exactly_the_existing_flags() {
    let documents: String = documents().iter().map(|document| read(document)).collect();
    let (mut named, helps) = (flags(&documents), helps());
    named.retain(|flag| !OF_OTHERS.contains(&flag.as_str()));
    assert_eq!(named, flags(&helps));
    let variables = variables(&documents);
    let unknown: Vec<_> = variables.difference(&self::variables(&helps)).cloned().collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn every_serve_flag_has_an_environment_variable() {
    let output = slidegate().args(["serve", "--help"]).output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let own = flags(&help).into_iter().filter(|flag| flag != "--help");
    let promised =
        own.map(|flag| flag.replace("--", "SLIDEGATE_").replace('-', "_").to_uppercase());
    assert_eq!(promised.collect::<BTreeSet<_>>(), variables(&help));
}

#[test]
fn help_example_request_is_allowed() {
    let output = slidegate().arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let quoted: Vec<&str> = help.split('`').filter(|part| part.starts_with("curl ")).collect();
    assert!(!quoted.is_empty());
    let asks: String = quoted.iter().map(|ask| ask.replace('\n', " ") + "\n").collect();
    let serve = "slidegate serve --policy examples/quickstart.yaml";
    let document = format!("```sh\n{serve}\n{asks}```\n\n```text\n{{\"allowed\":true,[…]\n```\n");
    let mut shell = Shell::in_a_folder_of("help");
    let [ask, answer] = &blocks(&document)[..] else { panic!("two blocks") };
    shell.run(ask).and_then(|()| shell.printed(answer)).unwrap();
}

#[test]
fn flags_and_variables_are_extracted() {
    let text = "| `--max-keys` (SLIDEGATE_MAX_KEYS) |---|--- --x=5 <!-- a--b --not-- SLIDEGATE_…";
    assert_eq!(flags(text).into_iter().collect::<Vec<_>>(), ["--max-keys", "--not", "--x"]);
    assert_eq!(variables(text).into_iter().collect::<Vec<_>>(), ["SLIDEGATE_MAX_KEYS"]);
}

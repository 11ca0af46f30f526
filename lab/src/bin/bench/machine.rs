//! Describes the machine of a benchmark run, and the versions of all compared programs and crates.

use std::fs;
use std::process::Command;
use std::thread;

use lab::table::MarkdownTable;

/// The crates whose versions the report lists, as named in Cargo.lock.
const CRATES_WITH_REPORTED_VERSION: [&str; 7] =
    ["governor", "tower_governor", "dashmap", "axum", "hyper", "tonic", "tokio"];

/// Returns a table of the machine and the versions. If a value cannot be determined, the table shows it as not known,
/// so the report is written in all cases.
pub fn table() -> MarkdownTable {
    let mut table = MarkdownTable::new(["", ""]);
    let cores = thread::available_parallelism().map_or(0, usize::from);
    table.add_row(["processor".to_owned(), format!("{cores} cores of {}", read_processor_model())]);
    table.add_row(["memory", &read_memory_size()]);
    table.add_row(["system", &run_and_read_first_output_line("uname", &["-sr"])]);
    table.add_row(["Rust", &run_and_read_first_output_line("rustc", &["--version"])]);
    table.add_row(["crates", &list_crate_versions()]);
    table.add_row(["Redis", &read_redis_version()]);
    table.add_row(["load", &run_and_read_first_output_line("h2load", &["--version"])]);
    table.add_row([
        "throttlecrab-server",
        &run_and_read_first_output_line("target/peers/bin/throttlecrab-server", &["--version"]),
    ]);
    table.add_row(["commit", &read_current_git_commit()]);
    table
}

/// Returns the current date in UTC as text, for example 2026-01-31.
pub fn date() -> String {
    run_and_read_first_output_line("date", &["-u", "+%Y-%m-%d"])
}

fn read_current_git_commit() -> String {
    let commit = run_and_read_first_output_line("git", &["rev-parse", "--short", "HEAD"]);
    let changed = Command::new("git").args(["diff", "--quiet", "HEAD"]).status();
    if changed.is_ok_and(|status| status.success()) { commit } else { format!("{commit}, changed") }
}

const UNKNOWN_VALUE_TEXT: &str = "not known";

/// Runs a program and returns the first line of its standard output, or [`UNKNOWN_VALUE_TEXT`] if the program prints
/// none.
fn run_and_read_first_output_line(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().ok();
    let text = output.and_then(|output| String::from_utf8(output.stdout).ok());
    let line = text.as_deref().and_then(|text| text.lines().next()).map(str::trim);
    line.filter(|line| !line.is_empty()).unwrap_or(UNKNOWN_VALUE_TEXT).to_owned()
}

fn read_redis_version() -> String {
    let text = run_and_read_first_output_line("redis-server", &["--version"]);
    let version = text.split_whitespace().find_map(|word| word.strip_prefix("v="));
    version.unwrap_or(UNKNOWN_VALUE_TEXT).to_owned()
}

fn read_processor_model() -> String {
    read_colon_separated_field("/proc/cpuinfo", "model name")
        .unwrap_or_else(|| UNKNOWN_VALUE_TEXT.to_owned())
}

fn read_memory_size() -> String {
    let kilobytes = read_colon_separated_field("/proc/meminfo", "MemTotal")
        .and_then(|text| text.strip_suffix(" kB")?.parse::<f64>().ok());
    kilobytes.map_or(UNKNOWN_VALUE_TEXT.to_owned(), |kilobytes| {
        format!("{:.0} GiB", kilobytes / f64::from(1 << 20))
    })
}

/// Reads the value of `name` from a file with lines `name : value`. Returns `None` if the file has no such line.
fn read_colon_separated_field(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_prefix(':'));
    Some(value?.trim().to_owned())
}

fn list_crate_versions() -> String {
    let lock = fs::read_to_string("Cargo.lock").unwrap_or_default();
    let versions = CRATES_WITH_REPORTED_VERSION.map(|name| {
        format!("{name} {}", find_version_in_cargo_lock(&lock, name).unwrap_or(UNKNOWN_VALUE_TEXT))
    });
    versions.join(", ")
}

/// Returns the version of a crate in `lock`, the text of Cargo.lock; `None` if the crate is not listed.
fn find_version_in_cargo_lock<'l>(lock: &'l str, name: &str) -> Option<&'l str> {
    let (_, behind) = lock.split_once(&format!("name = \"{name}\"\nversion = \""))?;
    Some(behind.split_once('"')?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_lock_search_requires_whole_crate_name() {
        let lock = "[[package]]\nname = \"axum-core\"\nversion = \"1.0.0\"\n\n\
                    [[package]]\nname = \"axum\"\nversion = \"0.8.4\"\n";
        assert_eq!(find_version_in_cargo_lock(lock, "axum"), Some("0.8.4"));
        assert_eq!(find_version_in_cargo_lock(lock, "tonic"), None);
    }
}

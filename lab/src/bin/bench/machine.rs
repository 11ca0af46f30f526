//! What a report was measured on: the machine, and the versions of everything.

use std::fs;
use std::process::Command;
use std::thread;

use lab::table::Table;

/// Crates of peers, as Cargo.lock names them.
const CRATES: [&str; 7] =
    ["governor", "tower_governor", "dashmap", "axum", "hyper", "tonic", "tokio"];

/// What is not known is told so: it is no reason to lose a report.
pub fn table() -> Table {
    let mut table = Table::new(["", ""]);
    let cores = thread::available_parallelism().map_or(0, usize::from);
    table.row(["processor".to_owned(), format!("{cores} cores of {}", processor())]);
    table.row(["memory", &memory()]);
    table.row(["system", &said("uname", &["-sr"])]);
    table.row(["Rust", &said("rustc", &["--version"])]);
    table.row(["crates", &crates()]);
    table.row(["Redis", &redis()]);
    table.row(["load", &said("h2load", &["--version"])]);
    table.row([
        "throttlecrab-server",
        &said("target/peers/bin/throttlecrab-server", &["--version"]),
    ]);
    table.row(["commit", &commit()]);
    table
}

/// Today.
pub fn date() -> String {
    said("date", &["-u", "+%Y-%m-%d"])
}

fn commit() -> String {
    let commit = said("git", &["rev-parse", "--short", "HEAD"]);
    let changed = Command::new("git").args(["diff", "--quiet", "HEAD"]).status();
    if changed.is_ok_and(|status| status.success()) { commit } else { format!("{commit}, changed") }
}

const UNKNOWN: &str = "not known";

/// The first line that a program prints.
fn said(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().ok();
    let text = output.and_then(|output| String::from_utf8(output.stdout).ok());
    let line = text.as_deref().and_then(|text| text.lines().next()).map(str::trim);
    line.filter(|line| !line.is_empty()).unwrap_or(UNKNOWN).to_owned()
}

fn redis() -> String {
    let text = said("redis-server", &["--version"]);
    let version = text.split_whitespace().find_map(|word| word.strip_prefix("v="));
    version.unwrap_or(UNKNOWN).to_owned()
}

fn processor() -> String {
    field("/proc/cpuinfo", "model name").unwrap_or_else(|| UNKNOWN.to_owned())
}

fn memory() -> String {
    let kilobytes = field("/proc/meminfo", "MemTotal")
        .and_then(|text| text.strip_suffix(" kB")?.parse::<f64>().ok());
    kilobytes.map_or(UNKNOWN.to_owned(), |kilobytes| {
        format!("{:.0} GiB", kilobytes / f64::from(1 << 20))
    })
}

/// What a file of lines `name : value` says of a name.
fn field(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_prefix(':'));
    Some(value?.trim().to_owned())
}

fn crates() -> String {
    let lock = fs::read_to_string("Cargo.lock").unwrap_or_default();
    let versions = CRATES.map(|name| format!("{name} {}", locked(&lock, name).unwrap_or(UNKNOWN)));
    versions.join(", ")
}

/// The version of a crate that is locked.
fn locked<'l>(lock: &'l str, name: &str) -> Option<&'l str> {
    let (_, behind) = lock.split_once(&format!("name = \"{name}\"\nversion = \""))?;
    Some(behind.split_once('"')?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_version_that_is_locked() {
        let lock = "[[package]]\nname = \"axum-core\"\nversion = \"1.0.0\"\n\n\
                    [[package]]\nname = \"axum\"\nversion = \"0.8.4\"\n";
        assert_eq!(locked(lock, "axum"), Some("0.8.4"));
        assert_eq!(locked(lock, "tonic"), None);
    }
}

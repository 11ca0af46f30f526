//! Describes the machine of a benchmark run, and the versions of the compared programs and crates.

use std::process::Command;

/// A row of the table: its name, and the shell command whose first line of output is the value.
const ROWS: [(&str, &str); 9] = [
    ("date", "date -u +%Y-%m-%d"),
    ("commit", "git describe --always --dirty=', changed'"),
    (
        "processor",
        "echo \"$(nproc) cores of $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1)\"",
    ),
    ("memory", "awk '/MemTotal/ { printf \"%.0f GiB\", $2 / 1048576 }' /proc/meminfo"),
    ("system", "uname -sr"),
    ("Rust", "rustc --version"),
    (
        "crates",
        "for name in governor tower_governor axum hyper tonic tokio; do \
         printf '%s %s  ' $name $(grep -A1 \"^name = \\\"$name\\\"\" Cargo.lock | sed -n 's/^version = \"\\(.*\\)\"/\\1/p' | tail -1); done",
    ),
    ("Redis", "redis-server --version | grep -o 'v=[0-9.]*'"),
    ("load", "h2load --version"),
];

/// Returns a table of the machine and the versions in Markdown.
pub fn table() -> String {
    let mut text = "| | |\n|---|---|\n".to_owned();
    for (name, command) in ROWS {
        let output = Command::new("sh").args(["-c", command]).output();
        let output = output.map_or(String::new(), |output| {
            String::from_utf8_lossy(&output.stdout)
                .lines()
                .next()
                .unwrap_or_default()
                .trim()
                .to_owned()
        });
        text += &format!("| {name} | {} |\n", output.replace("  ", ", "));
    }
    text.trim_end().to_owned()
}

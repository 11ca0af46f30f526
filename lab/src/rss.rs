//! Measures the resident memory of processes, and runs child processes for separate measurements.

use std::error::Error;
use std::process::{Command, Stdio};

/// Returns the resident memory of this process, in bytes.
///
/// # Errors
/// If `/proc` does not provide the resident memory.
pub fn resident_bytes() -> Result<usize, Box<dyn Error>> {
    resident_bytes_of("self")
}

/// Returns the resident memory of a process, in bytes. `process` is the name of its folder in `/proc`.
///
/// # Errors
/// If `/proc` does not provide the resident memory.
pub fn resident_bytes_of(process: &str) -> Result<usize, Box<dyn Error>> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    Ok(kilobytes.ok_or("the status of the process has no VmRSS in kB")?.parse::<usize>()? * 1024)
}

/// Returns the number of bytes by which the resident memory of this process grows while `build` creates a value.
///
/// # Errors
/// If `/proc` does not provide the resident memory, or `build` fails.
pub fn measure_growth<T>(
    build: impl FnOnce() -> Result<T, Box<dyn Error>>,
) -> Result<usize, Box<dyn Error>> {
    let before = resident_bytes()?;
    let built = build()?;
    let after = resident_bytes()?;
    drop(built);
    Ok(after.saturating_sub(before))
}

/// Runs the current program with these arguments in a child process. Returns the number that the child prints on
/// standard output.
///
/// # Errors
/// If the child cannot be started, fails, or does not print a number.
pub fn run_child(args: &[&str]) -> Result<usize, Box<dyn Error>> {
    let mut child = Command::new(std::env::current_exe()?);
    let output = child.args(args).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("{args:?}: {}", output.status).into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

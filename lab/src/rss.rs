//! How much memory something takes: what this process has resident, and children to measure in.

use std::error::Error;
use std::process::{Command, Stdio};

/// Bytes of this process that are resident.
///
/// # Errors
/// If /proc does not say.
pub fn resident() -> Result<usize, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    Ok(kilobytes.ok_or("/proc/self/status has no VmRSS in kB")?.parse::<usize>()? * 1024)
}

/// By how many bytes the resident memory grows while `build` builds what it returns.
///
/// # Errors
/// If /proc does not say, or `build` fails.
pub fn growth<T>(
    build: impl FnOnce() -> Result<T, Box<dyn Error>>,
) -> Result<usize, Box<dyn Error>> {
    let before = resident()?;
    let built = build()?;
    let after = resident()?;
    drop(built);
    Ok(after.saturating_sub(before))
}

/// Starts this program again, fresh, with these arguments; the number that it prints.
///
/// # Errors
/// If it cannot be started, fails, or prints no number.
pub fn ask_child(args: &[&str]) -> Result<usize, Box<dyn Error>> {
    let mut child = Command::new(std::env::current_exe()?);
    let output = child.args(args).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("{args:?}: {}", output.status).into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

//! Counts instructions by running the current program under valgrind.

use std::env;
use std::error::Error;
use std::io;
use std::process::Command;

/// Runs the current program with these arguments and returns the number of instructions within a function.
///
/// The function is found by its name and must not be inlined.
///
/// # Errors
/// If valgrind is missing or fails, if the program fails, or if nothing is counted.
pub fn measure_instructions(function: &str, arguments: &[&str]) -> Result<u64, Box<dyn Error>> {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    valgrind.arg(format!("--toggle-collect=*::{function}*"));
    valgrind.arg(env::current_exe()?).args(arguments);
    let output = valgrind.output().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            "valgrind is missing; install it with apt-get install valgrind".to_owned()
        }
        _ => format!("valgrind: {error}"),
    })?;
    let case = arguments.join(" ");
    let report = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("{case}: {}\n{report}", output.status).into());
    }
    match parse_total(&report) {
        Some(total) if total > 0 => Ok(total),
        _ => Err(format!("{case}: callgrind counted no instructions\n{report}").into()),
    }
}

/// Parses the total from the end of callgrind's report: `==1234== Collected : 5678`.
fn parse_total(report: &str) -> Option<u64> {
    let (_, total) = report.lines().find_map(|line| line.split_once("Collected :"))?;
    total.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn total_is_parsed_from_report() {
        let report = "==12== Events    : Ir\n==12== Collected : 5678\n==12== \n";
        assert_eq!(super::parse_total(report), Some(5678));
        assert_eq!(super::parse_total("==12== "), None);
    }
}

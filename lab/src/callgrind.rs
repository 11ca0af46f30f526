//! Counts the instructions of a function by running the current program under valgrind's tool callgrind.

use std::env;
use std::error::Error;
use std::io;
use std::process::Command;

/// Runs the current program with these arguments under callgrind. Returns the number of instructions that are executed
/// within the function named `function`.
///
/// Callgrind finds the function by its name, so the function must not be inlined.
///
/// # Errors
/// If valgrind is not installed or fails, if the program fails, or if callgrind counts no instructions.
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
    match parse_instruction_count(&report) {
        Some(total) if total > 0 => Ok(total),
        _ => Err(format!("{case}: callgrind counted no instructions\n{report}").into()),
    }
}

/// Parses the number of instructions in callgrind's report, in the line `==1234== Collected : 5678`. Returns `None` if
/// the report has no such line.
fn parse_instruction_count(report: &str) -> Option<u64> {
    let (_, total) = report.lines().find_map(|line| line.split_once("Collected :"))?;
    total.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn instruction_count_is_parsed_from_report() {
        let report = "==12== Events    : Ir\n==12== Collected : 5678\n==12== \n";
        assert_eq!(super::parse_instruction_count(report), Some(5678));
        assert_eq!(super::parse_instruction_count("==12== "), None);
    }
}

//! Runs this program under valgrind, which counts instructions.

use std::env;
use std::error::Error;
use std::io;
use std::process::Command;

/// The instructions that this program takes within a function when it is run with these arguments. The
/// function is found by its name; it must not be inlined.
pub fn instructions(function: &str, arguments: &[&str]) -> Result<u64, Box<dyn Error>> {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    valgrind.arg(format!("--toggle-collect=*::{function}*"));
    valgrind.arg(env::current_exe()?).args(arguments);
    let output = valgrind.output().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => "valgrind is missing: apt-get install valgrind".to_owned(),
        _ => format!("valgrind: {error}"),
    })?;
    let case = arguments.join(" ");
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("{case}: {}\n{said}", output.status).into());
    }
    match collected(&said) {
        Some(instructions) if instructions > 0 => Ok(instructions),
        _ => Err(format!("{case}: callgrind counted nothing\n{said}").into()),
    }
}

/// The total in what callgrind says at its end: `==1234== Collected : 5678`.
fn collected(said: &str) -> Option<u64> {
    let (_, total) = said.lines().find_map(|line| line.split_once("Collected :"))?;
    total.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_total_is_found_in_what_callgrind_says() {
        let said = "==12== Events    : Ir\n==12== Collected : 5678\n==12== \n";
        assert_eq!(super::collected(said), Some(5678));
        assert_eq!(super::collected("==12== "), None);
    }
}

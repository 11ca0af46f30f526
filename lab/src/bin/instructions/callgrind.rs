//! Runs a case of this program under valgrind.

use std::env;
use std::error::Error;
use std::io;
use std::process::Command;

use crate::CHILD;
use crate::cases::DECISIONS;

/// Instructions of one decision.
pub fn per_decision(case: &str) -> Result<u64, Box<dyn Error>> {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    valgrind.arg("--toggle-collect=*::count_instructions*");
    valgrind.arg(env::current_exe()?).args([CHILD, case]);
    let output = valgrind.output().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => "valgrind is missing: apt-get install valgrind".to_owned(),
        _ => format!("valgrind: {error}"),
    })?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("{case}: {}\n{said}", output.status).into());
    }
    match collected(&said) {
        Some(instructions) if instructions > 0 => Ok(instructions / DECISIONS as u64),
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

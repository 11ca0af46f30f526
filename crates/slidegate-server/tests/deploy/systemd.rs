//! The systemd unit, checked by `systemd-analyze`.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::{read, run_command};

const UNIT: &str = "deploy/systemd/slidegate.service";

/// The highest exposure that `systemd-analyze security` may report, of 100. Without any hardening it is 96.
const MAX_EXPOSURE: &str = "15";

/// Runs `systemd-analyze` on the unit, with the path of the test build of the program.
fn analyze(folder: &str, arguments: &[&str]) -> String {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
    fs::create_dir_all(&folder).unwrap();
    let unit = folder.join("slidegate.service");
    let content = read(UNIT).replace("/usr/local/bin/slidegate", env!("CARGO_BIN_EXE_slidegate"));
    fs::write(&unit, content).unwrap();
    run_command(Command::new("systemd-analyze").args(arguments).arg(&unit))
}

#[test]
fn systemd_verify_accepts_the_unit() {
    let output = analyze("systemd-verify", &["verify", "--man=no"]);
    // The output also covers units of this machine that the unit refers to.
    let messages: Vec<_> = output.lines().filter(|line| line.contains("slidegate")).collect();
    assert!(messages.is_empty(), "{messages:#?}");
}

#[test]
fn unit_stays_below_exposure_threshold() {
    analyze("systemd-security", &["security", "--offline=true", "--threshold", MAX_EXPOSURE]);
}

/// Returns the value of a setting of the unit, which must occur exactly once.
pub fn setting(name: &str) -> String {
    let unit = read(UNIT);
    let mut values = unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    let value = values.next().unwrap_or_else(|| panic!("no {name}")).to_owned();
    assert_eq!(values.next(), None, "duplicate setting {name}");
    value
}

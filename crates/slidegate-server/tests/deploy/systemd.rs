//! Tests of the systemd unit in `deploy/systemd`. The tests run `systemd-analyze`.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::deploy::{read_project_file, run_command};

const SYSTEMD_UNIT_FILE: &str = "deploy/systemd/slidegate.service";

/// Maximum exposure level that `systemd-analyze security` may report for the systemd unit. Levels range from 0 (safest)
/// to 100. A unit without any hardening has the level 96.
const MAX_SYSTEMD_EXPOSURE_LEVEL: &str = "15";

/// Copies the systemd unit into `folder`, runs `systemd-analyze` on the copy, and returns the output. The copy contains
/// the path of the program under test instead of the installed program.
fn run_systemd_analyze(folder: &str, arguments: &[&str]) -> String {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
    fs::create_dir_all(&folder).unwrap();
    let unit = folder.join("slidegate.service");
    let content = read_project_file(SYSTEMD_UNIT_FILE)
        .replace("=slidegate ", concat!("=", env!("CARGO_BIN_EXE_slidegate"), " "));
    fs::write(&unit, content).unwrap();
    run_command(Command::new("systemd-analyze").args(arguments).arg(&unit))
}

#[test]
fn systemd_analyze_verify_accepts_unit() {
    let output = run_systemd_analyze("systemd-verify", &["verify", "--man=no"]);
    // The output also covers units of this machine that the unit refers to.
    let messages: Vec<_> = output.lines().filter(|line| line.contains("slidegate")).collect();
    assert!(messages.is_empty(), "{messages:#?}");
}

#[test]
fn systemd_unit_stays_below_exposure_threshold() {
    run_systemd_analyze(
        "systemd-security",
        &["security", "--offline=true", "--threshold", MAX_SYSTEMD_EXPOSURE_LEVEL],
    );
}

/// Returns the value of the setting `name` in the systemd unit. Panics unless the setting occurs exactly once.
pub fn systemd_unit_setting(name: &str) -> String {
    let unit = read_project_file(SYSTEMD_UNIT_FILE);
    let mut values = unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    let value = values.next().unwrap_or_else(|| panic!("no {name}")).to_owned();
    assert_eq!(values.next(), None, "duplicate setting {name}");
    value
}

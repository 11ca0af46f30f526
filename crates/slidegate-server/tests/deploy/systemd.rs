//! The unit of systemd, read by systemd itself.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::{read, run};

const UNIT: &str = "deploy/systemd/slidegate.service";

/// The most that `systemd-analyze security` may count against it, of 100. Without any hardening it is 96.
const MAX_EXPOSED: &str = "15";

/// Runs systemd-analyze on the unit, with the program where it is here.
fn analyze(folder: &str, arguments: &[&str]) -> String {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
    fs::create_dir_all(&folder).unwrap();
    let unit = folder.join("slidegate.service");
    let here = read(UNIT).replace("/usr/local/bin/slidegate", env!("CARGO_BIN_EXE_slidegate"));
    fs::write(&unit, here).unwrap();
    run(Command::new("systemd-analyze").args(arguments).arg(&unit))
}

#[test]
fn systemd_has_nothing_against_the_unit() {
    let told = analyze("systemd-verify", &["verify", "--man=no"]);
    // It also looks at units of this machine that ours names.
    let ours: Vec<_> = told.lines().filter(|line| line.contains("slidegate")).collect();
    assert!(ours.is_empty(), "{ours:#?}");
}

#[test]
fn the_service_can_do_little_but_serve() {
    analyze("systemd-security", &["security", "--offline=true", "--threshold", MAX_EXPOSED]);
}

/// The value of a setting.
pub fn setting(name: &str) -> String {
    let unit = read(UNIT);
    let mut values = unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    let value = values.next().unwrap_or_else(|| panic!("no {name}")).to_owned();
    assert_eq!(values.next(), None, "two of {name}");
    value
}

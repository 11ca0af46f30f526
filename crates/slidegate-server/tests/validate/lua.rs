//! Tests of the command `slidegate lua`.

use std::fs;
use std::path::Path;

use slidegate_redis::script_files;

use crate::common::TempFile;
use crate::validate::{parse_utf8, run_slidegate};

#[test]
fn lua_writes_all_script_files() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("lua-{}", std::process::id()));
    let out = folder.join("new/scripts");
    // The second run replaces the files of the first one.
    for _ in 0..2 {
        let output = run_slidegate(&["lua", "--out", out.to_str().unwrap()]);
        assert!(output.status.success(), "{}", parse_utf8(&output.stderr));
        let paths: Vec<&str> = parse_utf8(&output.stdout).lines().collect();
        let files = script_files();
        assert_eq!(paths.len(), files.len());
        for (path, file) in paths.iter().zip(files) {
            assert_eq!(Path::new(path), out.join(&file.path));
            assert_eq!(fs::read_to_string(path).unwrap(), file.text);
        }
        fs::write(out.join("check.lua"), "changed").unwrap();
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn lua_error_states_cause_and_remedy() {
    let file = TempFile::new(".txt", "");
    let path = file.path().to_str().unwrap();
    for (out, expected) in [
        (
            path.to_owned(),
            "File exists (os error 17); a file has this name: remove it, or name another directory",
        ),
        (
            format!("{path}/scripts"),
            "Not a directory (os error 20); a file has this name: remove it, or name another directory",
        ),
        (
            "/proc/slidegate".to_owned(),
            "No such file or directory (os error 2); name another directory",
        ),
    ] {
        let output = run_slidegate(&["lua", "--out", &out]);
        assert_eq!(output.status.code(), Some(1));
        let error = parse_utf8(&output.stderr);
        assert_eq!(error, format!("--out: cannot write `{out}`: {expected}\n"));
    }
    let output = run_slidegate(&["lua"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(parse_utf8(&output.stderr).contains("--out <DIR>"));
}

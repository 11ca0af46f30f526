//! Checks the syntax of the Python and JavaScript programs in documents.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::markdown::FencedBlock;

/// Checks the syntax of a `python` or `javascript` block with the interpreter of the language.
pub fn check_syntax(block: &FencedBlock) -> Result<(), String> {
    static NEXT_FILE_NUMBER: AtomicU32 = AtomicU32::new(0);
    let nth = NEXT_FILE_NUMBER.fetch_add(1, Ordering::Relaxed);
    let (suffix, program, arguments): (_, _, &[&str]) = match block.language() {
        "python" => {
            ("py", "python3", &["-c", "import ast, sys; ast.parse(open(sys.argv[1]).read())"])
        }
        // A module can use `await` outside of functions.
        _ => ("mjs", "node", &["--check"]),
    };
    let file = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("syntax-{}-{nth}.{suffix}", std::process::id()));
    fs::write(&file, &block.text).unwrap();
    let output = Command::new(program).args(arguments).arg(&file).output();
    fs::remove_file(&file).unwrap();
    let output =
        output.map_err(|error| format!("{program}: {error}; `make test-tools` installs it"))?;
    output
        .status
        .success()
        .then_some(())
        .ok_or_else(|| String::from_utf8_lossy(&output.stderr).into())
}

#[test]
fn syntax_errors_are_detected() {
    for (block, is_ok) in [
        ("python\nprint(check({'a': None}))", true),
        ("python\nprint(check({'a': None})", false),
        ("javascript\nconst a = await b()", true),
        ("javascript\nconst a = await b(", false),
    ] {
        let block = crate::markdown::parse_blocks(&format!("```{block}\n```\n")).remove(0);
        assert_eq!(check_syntax(&block).is_ok(), is_ok, "{block:?}");
    }
}

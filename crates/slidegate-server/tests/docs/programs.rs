//! Runs the Python and JavaScript programs in documents, or checks only their syntax.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::docs::markdown::FencedBlock;

/// The timeouts of documented programs, and longer ones, because a test machine can be busy.
const TIMEOUTS: [(&str, &str); 2] =
    [("timeout=0.1)", "timeout=30)"), ("timeout(100)", "timeout(30_000)")];

/// Checks the syntax of a `python` or `javascript` block with the interpreter of the language.
pub fn check_syntax(block: &FencedBlock) -> Result<(), String> {
    let arguments: &[&str] = match block.language() {
        "python" => &["-c", "import ast, sys; ast.parse(open(sys.argv[1]).read())"],
        _ => &["--check"],
    };
    interpret(block.language(), &block.text, arguments).map(|_output| ())
}

/// Runs the text of a `python` or `javascript` block, and returns its output.
pub fn run(language: &str, text: &str) -> Result<String, String> {
    let text = TIMEOUTS
        .into_iter()
        .fold(text.to_owned(), |text, (documented, longer)| text.replace(documented, longer));
    interpret(language, &text, &[])
}

/// Starts the interpreter of a language with `arguments` and a file that contains `text`, and returns its output.
fn interpret(language: &str, text: &str, arguments: &[&str]) -> Result<String, String> {
    static NEXT_FILE_NUMBER: AtomicU32 = AtomicU32::new(0);
    let nth = NEXT_FILE_NUMBER.fetch_add(1, Ordering::Relaxed);
    let (suffix, program) = match language {
        "python" => ("py", "python3"),
        // A module can use `await` outside of functions.
        _ => ("mjs", "node"),
    };
    let file = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("program-{}-{nth}.{suffix}", std::process::id()));
    fs::write(&file, text).unwrap();
    let arguments = arguments.iter().map(OsStr::new).chain([file.as_os_str()]);
    let output = Command::new(program).args(arguments).output();
    fs::remove_file(&file).unwrap();
    let output =
        output.map_err(|error| format!("{program}: {error}; `make test-tools` installs it"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into())
    }
}

#[test]
fn syntax_errors_are_detected() {
    for (block, is_ok) in [
        ("python\nprint(check({'a': None}))", true),
        ("python\nprint(check({'a': None})", false),
        ("javascript\nconst a = await b()", true),
        ("javascript\nconst a = await b(", false),
    ] {
        let block = crate::docs::markdown::parse_blocks(&format!("```{block}\n```\n")).remove(0);
        assert_eq!(check_syntax(&block).is_ok(), is_ok, "{block:?}");
    }
}

#[test]
fn failing_programs_are_errors() {
    for (language, text, is_ok) in [
        ("python", "print(1)", true),
        ("python", "raise OSError", false),
        ("javascript", "console.log(1)", true),
        ("javascript", "throw new Error()", false),
    ] {
        let output = run(language, text);
        assert_eq!(output.as_deref() == Ok("1\n"), is_ok, "{text}: {output:?}");
        assert_eq!(output.is_ok(), is_ok, "{text}: {output:?}");
    }
}

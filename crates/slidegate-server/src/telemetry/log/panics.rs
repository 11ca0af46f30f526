//! Logs panics like other events.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::{self, PanicHookInfo};
use std::thread;

use tracing::error;

/// Makes panics an event of the log. The hook of the standard library writes to standard error itself, and would block
/// the panicking thread if the pipe is full.
pub fn log_panics() {
    panic::set_hook(Box::new(log_panic));
}

fn log_panic(panic: &PanicHookInfo<'_>) {
    // The backtrace is captured only if the environment variable `RUST_BACKTRACE` is set.
    let backtrace = Backtrace::capture();
    let is_captured = backtrace.status() == BacktraceStatus::Captured;
    error!(
        problem = panic.payload_as_str(),
        location = panic.location().map(display),
        thread = thread::current().name(),
        backtrace = is_captured.then(|| display(&backtrace)),
        "a thread panicked; this is a bug in slidegate, please report this line"
    );
}

#[cfg(test)]
mod tests {
    use std::io::{Read, pipe};
    use std::panic::catch_unwind;

    use tracing::dispatcher;
    use tracing::level_filters::LevelFilter;

    use super::*;
    use crate::telemetry::log::LogFormat;
    use crate::telemetry::log::{LogSettings, new_dispatch};

    #[test]
    fn panic_is_one_log_line_with_its_place() {
        let (mut reader, writer) = pipe().unwrap();
        let settings = LogSettings { level: LevelFilter::INFO, format: LogFormat::Text };
        let log = new_dispatch(settings, move || writer.try_clone().unwrap());
        log_panics();
        let result =
            dispatcher::with_default(&log, || catch_unwind(|| panic!("a test\npanics twice")));
        drop(panic::take_hook());
        assert!(result.is_err());
        drop(log);
        let mut lines = String::new();
        reader.read_to_string(&mut lines).unwrap();
        let (head, fields) = lines.split_once(" problem=").unwrap();
        assert!(head.contains("ERROR") && head.contains("a thread panicked"), "{lines}");
        assert!(fields.starts_with(r#""a test\npanics twice" location=crates/"#), "{lines}");
        assert!(
            fields.contains("src/telemetry/log/panics.rs:") && lines.lines().count() == 1,
            "{lines}"
        );
    }
}

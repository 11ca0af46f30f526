//! Logs panics like other events.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::{self, PanicHookInfo};
use std::thread;

use tracing::error;

/// Makes panics an event of the log. The hook of the standard library writes to standard error itself, and would block
/// the panicking thread if nobody reads the pipe.
pub fn log_panics() {
    panic::set_hook(Box::new(log_panic));
}

fn log_panic(panic: &PanicHookInfo<'_>) {
    // Captured only if the environment variable `RUST_BACKTRACE` is set.
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

//! The warnings that a test logs. The test and its nodes share a thread.

#[path = "../../../slidegate/tests/log.rs"]
mod lines;

pub use lines::Log;

impl Log {
    /// Returns the warnings, and removes all lines from the log.
    pub fn take_warnings(&self) -> Vec<String> {
        let mut lines = self.take_lines();
        lines.retain(|line| line.contains(" WARN "));
        lines
    }
}

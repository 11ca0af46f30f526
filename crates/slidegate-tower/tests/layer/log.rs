//! The warnings that a test logs. The test and its servers share a thread.

#[path = "../../../slidegate/tests/log.rs"]
mod lines;

pub use lines::Log;

impl Log {
    /// Returns the warnings of this project, without their times, and removes all lines from the log.
    pub fn take_warnings(&self) -> Vec<String> {
        let lines = self.take_lines();
        let warnings = lines.iter().filter_map(|line| line.split_once(" WARN slidegate"));
        warnings.map(|(_, warning)| format!("slidegate{warning}")).collect()
    }

    /// Returns the only warning since the last call.
    #[track_caller]
    pub fn take_warning(&self) -> String {
        let mut warnings = self.take_warnings();
        assert_eq!(warnings.len(), 1, "{warnings:#?}");
        warnings.remove(0)
    }
}

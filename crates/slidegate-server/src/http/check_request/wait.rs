//! The time for which a call may wait.

use std::time::Duration;

use super::costs::Cost;
use crate::json_reader::{JsonError, JsonReader};

/// The time in milliseconds for which a call may wait until it fits.
#[derive(Clone, Copy, Default)]
pub struct WaitMillis(u64);

impl WaitMillis {
    /// Reads a number of milliseconds. Any number is accepted, because the server bounds the wait: a caller might allow
    /// a request if its check fails.
    pub fn read(reader: &mut JsonReader<'_>) -> Result<Self, JsonError> {
        Cost::read_number(reader, || "`wait_ms`".into(), "milliseconds").map(Self)
    }

    /// Returns the time as a duration.
    pub fn duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

//! The time for which a call may wait.

use std::borrow::Cow;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

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

impl JsonSchema for WaitMillis {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "WaitMillis".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": 0, "default": 0 })
    }
}

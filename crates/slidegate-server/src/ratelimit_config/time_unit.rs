//! Time units of the reference server.

/// A time unit, with the window that it means.
#[derive(Debug, PartialEq, Eq)]
pub struct TimeUnit {
    name: &'static str,
    /// The window in the notation of policies.
    pub window: &'static str,
    /// Whether [`MAX_UNITS`](slidegate::MAX_UNITS) exceeds every realistic number of requests in this unit, so that it
    /// can replace a larger limit.
    pub is_short: bool,
}

const TIME_UNITS: [TimeUnit; 7] = [
    TimeUnit { name: "second", window: "1s", is_short: true },
    TimeUnit { name: "minute", window: "1m", is_short: true },
    TimeUnit { name: "hour", window: "1h", is_short: false },
    TimeUnit { name: "day", window: "1d", is_short: false },
    TimeUnit { name: "week", window: "1w", is_short: false },
    // The reference server uses these lengths.
    TimeUnit { name: "month", window: "30d", is_short: false },
    TimeUnit { name: "year", window: "365d", is_short: false },
];

impl TimeUnit {
    /// Finds a unit by its name, in upper or lower case.
    pub fn from_name(name: &str) -> Option<&'static Self> {
        const { &TIME_UNITS }.iter().find(|unit| unit.name.eq_ignore_ascii_case(name))
    }

    /// Lists the names of all units: `` `second`, `minute`, … ``.
    pub fn list_names() -> String {
        TIME_UNITS.map(|unit| format!("`{}`", unit.name)).join(", ")
    }
}

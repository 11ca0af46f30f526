//! The time units in configuration files of Envoy's reference rate limit server.

/// A time unit of a quota, with the corresponding window of a policy.
#[derive(Debug, PartialEq, Eq)]
pub struct TimeUnit {
    name: &'static str,
    /// The window as written in a policy, such as `1m`.
    pub window: &'static str,
}

const TIME_UNITS: [TimeUnit; 7] = [
    TimeUnit { name: "second", window: "1s" },
    TimeUnit { name: "minute", window: "1m" },
    TimeUnit { name: "hour", window: "1h" },
    TimeUnit { name: "day", window: "1d" },
    TimeUnit { name: "week", window: "1w" },
    // The reference server also counts a month as 30 days, and a year as 365 days.
    TimeUnit { name: "month", window: "30d" },
    TimeUnit { name: "year", window: "365d" },
];

impl TimeUnit {
    /// Finds a time unit by its name, in upper or lower case. Returns `None` if no unit has this name.
    pub fn from_name(name: &str) -> Option<&'static Self> {
        const { &TIME_UNITS }.iter().find(|unit| unit.name.eq_ignore_ascii_case(name))
    }

    /// Lists the names of all time units: `` `second`, `minute`, … ``.
    pub fn list_names() -> String {
        TIME_UNITS.map(|unit| format!("`{}`", unit.name)).join(", ")
    }
}

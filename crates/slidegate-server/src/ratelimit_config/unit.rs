//! The units of time of reference files.

/// A unit of time, and the window that it is.
#[derive(Debug, PartialEq, Eq)]
pub struct Unit {
    name: &'static str,
    /// As a policy says it.
    pub window: &'static str,
    /// Whether more units than can be counted are more than anybody could ask for in it.
    pub is_short: bool,
}

const UNITS: [Unit; 7] = [
    Unit { name: "second", window: "1s", is_short: true },
    Unit { name: "minute", window: "1m", is_short: true },
    Unit { name: "hour", window: "1h", is_short: false },
    Unit { name: "day", window: "1d", is_short: false },
    Unit { name: "week", window: "1w", is_short: false },
    // As the reference server has them.
    Unit { name: "month", window: "30d", is_short: false },
    Unit { name: "year", window: "365d", is_short: false },
];

impl Unit {
    /// In upper case or lower.
    pub fn by_name(name: &str) -> Option<&'static Self> {
        const { &UNITS }.iter().find(|unit| unit.name.eq_ignore_ascii_case(name))
    }

    /// `second`, `minute`, …
    pub fn names() -> String {
        UNITS.map(|unit| format!("`{}`", unit.name)).join(", ")
    }
}

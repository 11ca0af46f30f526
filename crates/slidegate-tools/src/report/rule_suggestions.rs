//! The limits that a replay suggests for one rule, for each window and each share of denied clients.

use std::time::Duration;

use serde::Serialize;
use slidegate::Quota;

use crate::report::table::ceil_millis;
use crate::suggest::{SuggestedLimit, SuggestedWindowLimits};

/// The limits that a replay suggests for one rule.
#[derive(Debug, Serialize)]
pub struct RuleSuggestions<'a> {
    pub rule: &'a str,
    #[serde(skip)]
    pub domain: &'a str,
    pub per: Vec<String>,
    pub clients: u64,
    pub windows: Vec<WindowSuggestion>,
}

/// The limits that a replay suggests for one window of a rule: one for each share of clients that may be denied.
#[derive(Debug, Serialize)]
pub struct WindowSuggestion {
    #[serde(rename = "window")]
    pub name: String,
    window_ms: u64,
    #[serde(skip)]
    pub window: Duration,
    pub choices: Vec<SuggestedLimitReport>,
}

/// A suggested limit that denies at most a given share of the clients.
#[derive(Debug, Serialize)]
pub struct SuggestedLimitReport {
    pub may_deny_percent: f64,
    pub may_deny_clients: u64,
    max: u64,
    denied_clients: u64,
    pub suggested_max: u64,
    still_denied_clients: u64,
}

impl WindowSuggestion {
    /// Creates the limits that are suggested for one window.
    pub fn new(SuggestedWindowLimits { window, choices, .. }: &SuggestedWindowLimits) -> Self {
        Self {
            name: format_window_length(*window),
            window_ms: ceil_millis(*window),
            window: *window,
            choices: choices.iter().map(SuggestedLimitReport::new).collect(),
        }
    }

    /// Returns the suggested limits without duplicates. There is one limit for each share of clients that may be
    /// denied. If a share, multiplied by the number of clients, is below 1, its limit denies no client. All limits that
    /// deny no client are equal, so only the first of them is returned.
    pub fn distinct_limits(&self) -> impl Iterator<Item = &SuggestedLimitReport> {
        let denies_none = |choice: &SuggestedLimitReport| choice.may_deny_clients == 0;
        let no_denials = self.choices.iter().find(|choice| denies_none(choice));
        no_denials.into_iter().chain(self.choices.iter().filter(move |choice| !denies_none(choice)))
    }
}

impl SuggestedLimitReport {
    fn new(choice: &SuggestedLimit) -> Self {
        Self {
            may_deny_percent: choice.per_mille as f64 / 10.0,
            may_deny_clients: choice.max_denied,
            max: choice.max,
            denied_clients: choice.denied,
            suggested_max: choice.suggested,
            still_denied_clients: choice.still_denied,
        }
    }

    /// Returns the name of the row of this limit in a table.
    pub fn format_table_row_name(&self) -> String {
        match self.may_deny_clients {
            0 => "denying no client".to_owned(),
            _ => format!("denying at most {} %", self.may_deny_percent),
        }
    }

    /// Returns the cells of this limit in a table.
    pub fn format_table_cells(&self) -> [String; 4] {
        let Self { max, denied_clients, suggested_max, still_denied_clients, .. } = self;
        [max, denied_clients, suggested_max, still_denied_clients].map(u64::to_string)
    }
}

/// Formats the length of a window as in a policy, such as `1m`.
fn format_window_length(window: Duration) -> String {
    Quota::new(0, window).map_or_else(|_| format!("{window:?}"), |quota| quota.window_text())
}

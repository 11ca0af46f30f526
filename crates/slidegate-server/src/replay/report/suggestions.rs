//! The limits that the traffic suggests.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use slidegate::Policy;

use super::{ceil_millis, snippet, table};
use crate::replay::stats::ReplayStats;
use crate::replay::suggest::{self, Headroom, LimitChoice, Suggestion};

/// What is suggested for the rules of a policy.
#[derive(Debug, Serialize)]
pub struct Suggestions<'a> {
    headroom_percent: u64,
    pub rules: Vec<RuleSuggestions<'a>>,
    /// The choice that denies the fewest, as YAML.
    policy: String,
    #[serde(skip)]
    uncounted: u64,
    /// Whether the rules are the user's own.
    #[serde(skip)]
    has_policy: bool,
    /// Whether the log is too short for some windows.
    #[serde(skip)]
    is_short: bool,
}

/// What is suggested for one rule.
#[derive(Debug, Serialize)]
pub struct RuleSuggestions<'a> {
    pub rule: &'a str,
    #[serde(skip)]
    pub domain: &'a str,
    pub per: Vec<String>,
    clients: u64,
    pub windows: Vec<WindowSuggestion>,
}

/// What is suggested for one window of a rule.
#[derive(Debug, Serialize)]
pub struct WindowSuggestion {
    #[serde(rename = "window")]
    pub name: String,
    window_ms: u64,
    #[serde(skip)]
    pub window: Duration,
    pub choices: Vec<ChoiceReport>,
}

#[derive(Debug, Serialize)]
pub struct ChoiceReport {
    may_deny_percent: f64,
    may_deny_clients: u64,
    max: u64,
    denied_clients: u64,
    pub suggested_max: u64,
    still_denied_clients: u64,
}

impl<'a> Suggestions<'a> {
    /// What the keys of the rules of one domain asked for, made into limits.
    pub fn new(policy: &'a Policy, domain: &str, stats: &ReplayStats, headroom: Headroom) -> Self {
        let log_length = suggest::log_length(stats.span);
        let rules = policy.rules().iter().zip(&stats.rules);
        let rules =
            rules.filter(|(rule, _)| rule.domain() == domain).filter_map(|(rule, stats)| {
                let windows = Suggestion::from_demand(stats.demand.as_ref()?, log_length, headroom);
                Some(RuleSuggestions {
                    rule: rule.name(),
                    domain: rule.domain(),
                    per: rule.per().entries().iter().map(ToString::to_string).collect(),
                    clients: windows.first().map_or(0, |suggestion| suggestion.clients),
                    windows: windows.iter().map(WindowSuggestion::new).collect(),
                })
            });
        let rules: Vec<_> = rules.filter(|rule| rule.clients > 0).collect();
        Self {
            headroom_percent: headroom.0,
            policy: snippet::policy(&rules, headroom),
            rules,
            uncounted: stats.keys.uncounted(),
            has_policy: true,
            is_short: suggest::is_too_short(log_length),
        }
    }
}

impl Suggestions<'_> {
    /// The same, where the user has no policy.
    pub fn without_policy(self) -> Self {
        Self { has_policy: false, ..self }
    }
}

impl WindowSuggestion {
    fn new(Suggestion { window, choices, .. }: &Suggestion) -> Self {
        Self {
            name: snippet::window_name(*window),
            window_ms: ceil_millis(*window),
            window: *window,
            choices: choices.iter().map(ChoiceReport::new).collect(),
        }
    }
}

impl ChoiceReport {
    fn new(choice: &LimitChoice) -> Self {
        Self {
            may_deny_percent: choice.per_mille as f64 / 10.0,
            may_deny_clients: choice.may_deny,
            max: choice.max,
            denied_clients: choice.denied,
            suggested_max: choice.suggested,
            still_denied_clients: choice.still_denied,
        }
    }
}

impl fmt::Display for Suggestions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.rules.is_empty() {
            return writeln!(f, "\n(No request is counted by any rule, so no limit is suggested.)");
        }
        self.rules.iter().try_for_each(|rule| self.write_rule(f, rule))?;
        f.write_str(
            "\n(max is the smallest limit by which no more clients would have been denied, once or more often,\n\
             counted exactly. Headroom is for days that are busier than this log; the sum is rounded up.)\n",
        )?;
        if self.is_short {
            writeln!(f, "(Windows that are longer than the log are left out.)")?;
        }
        if self.uncounted > 0 {
            writeln!(f, "({} requests of keys beyond --max-keys are left out.)", self.uncounted)?;
        }
        writeln!(f, "\nAs a policy; replay the log with it to see what it would have denied:")?;
        if self.has_policy {
            writeln!(f, "(A rule's `when` is not repeated: put its limits where they are now.)")?;
        }
        writeln!(f)?;
        f.write_str(&self.policy)
    }
}

impl Suggestions<'_> {
    fn write_rule(&self, f: &mut fmt::Formatter<'_>, rule: &RuleSuggestions<'_>) -> fmt::Result {
        let title = format!("limits for {}, of {}", rule.rule, clients(rule.clients));
        let with_headroom = format!("with {} % headroom", self.headroom_percent);
        let head = ["max", "clients denied", &with_headroom, "clients denied"];
        let rows = rule.windows.iter().flat_map(|window| {
            let choices = window.distinct_choices();
            choices.map(|choice| (format!("{}: {}", window.name, choice.name()), choice.cells()))
        });
        table::write(f, &title, head, &rows.collect::<Vec<_>>())?;
        write_small_shares(f, rule)
    }
}

impl WindowSuggestion {
    /// Shares that are less than one client are all the same.
    fn distinct_choices(&self) -> impl Iterator<Item = &ChoiceReport> {
        let denies_nobody = |choice: &ChoiceReport| choice.may_deny_clients == 0;
        let nobody = self.choices.iter().find(|choice| denies_nobody(choice));
        nobody.into_iter().chain(self.choices.iter().filter(move |choice| !denies_nobody(choice)))
    }
}

impl ChoiceReport {
    fn name(&self) -> String {
        match self.may_deny_clients {
            0 => "denying nobody".to_owned(),
            _ => format!("denying at most {} %", self.may_deny_percent),
        }
    }

    fn cells(&self) -> [String; 4] {
        let Self { max, denied_clients, suggested_max, still_denied_clients, .. } = self;
        [max, denied_clients, suggested_max, still_denied_clients].map(u64::to_string)
    }
}

/// Says so where a share of the clients is nobody.
fn write_small_shares(f: &mut fmt::Formatter<'_>, rule: &RuleSuggestions<'_>) -> fmt::Result {
    let choices = rule.windows.first().map_or(&[][..], |window| &window.choices);
    let few = choices.iter().filter(|choice| choice.may_deny_clients == 0);
    let few: Vec<_> = few.map(|choice| format!("{} %", choice.may_deny_percent)).collect();
    if few.is_empty() {
        return Ok(());
    }
    let (few, clients) = (few.join(" or "), clients(rule.clients));
    writeln!(f, "({few} of {clients} is less than one, so max is the most that any client did.)")
}

fn clients(number: u64) -> String {
    format!("{number} client{}", if number == 1 { "" } else { "s" })
}

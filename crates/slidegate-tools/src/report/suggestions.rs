//! The limits that a replay suggests, as text and as JSON.

use std::fmt;

use serde::Serialize;
use slidegate::Policy;

use super::rule_suggestions::{RuleSuggestions, WindowSuggestion};
use super::{snippet, table};
use crate::stats::ReplayStats;
use crate::suggest::{self, Headroom, SuggestedWindowLimits};

/// The limits that a replay suggests for the rules of a policy.
#[derive(Debug, Serialize)]
pub struct Suggestions<'a> {
    headroom_percent: u64,
    pub rules: Vec<RuleSuggestions<'a>>,
    /// A YAML policy with the suggested limits that deny the fewest clients.
    policy: String,
    #[serde(skip)]
    uncounted_requests: u64,
    /// Whether the user has provided a policy.
    #[serde(skip)]
    has_policy: bool,
    /// Whether the log is shorter than some windows, so that no limits are suggested for them.
    #[serde(skip)]
    is_short: bool,
}

impl<'a> Suggestions<'a> {
    /// Creates suggested limits for the rules of one domain, from the measured demand of their keys.
    pub fn new(policy: &'a Policy, domain: &str, stats: &ReplayStats, headroom: Headroom) -> Self {
        let log_length = suggest::log_length(stats.span);
        let rules = policy.rules().iter().zip(&stats.rules);
        let rules =
            rules.filter(|(rule, _)| rule.domain() == domain).filter_map(|(rule, stats)| {
                let windows = SuggestedWindowLimits::from_demand(
                    stats.demand.as_ref()?,
                    log_length,
                    headroom,
                );
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
            uncounted_requests: stats.keys.uncounted_requests(),
            has_policy: true,
            is_short: suggest::is_log_too_short(log_length),
        }
    }
}

impl Suggestions<'_> {
    /// Records that the user has not provided a policy. The text then omits the note about `when` in the policy.
    pub fn without_policy(self) -> Self {
        Self { has_policy: false, ..self }
    }
}

impl fmt::Display for Suggestions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.rules.is_empty() {
            return writeln!(f, "\n(No rule applies to any request, so no limit is suggested.)");
        }
        self.rules.iter().try_for_each(|rule| self.write_rule_suggestions(f, rule))?;
        f.write_str(
            "\n(max: the smallest limit with which an exact log denies no more clients than the row says. A client\n\
             counts as denied if at least one of its requests is denied. Headroom: a margin for days with more\n\
             requests than this log. Rounded: up to 1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6 or 8 times a power of ten,\n\
             so by up to a third.)\n",
        )?;
        if self.is_short {
            writeln!(f, "(Windows longer than the log are omitted.)")?;
        }
        if self.uncounted_requests > 0 {
            writeln!(
                f,
                "({} requests are not included, because there were more keys than --max-keys.)",
                self.uncounted_requests
            )?;
        }
        writeln!(
            f,
            "\nSuggested policy; replay the log with it to see which requests it would have denied:"
        )?;
        if self.has_policy {
            writeln!(
                f,
                "(The suggested rules omit `when`. Copy only their limits into your policy.)"
            )?;
        }
        writeln!(f)?;
        f.write_str(&self.policy)
    }
}

impl Suggestions<'_> {
    fn write_rule_suggestions(
        &self,
        f: &mut fmt::Formatter<'_>,
        rule: &RuleSuggestions<'_>,
    ) -> fmt::Result {
        let title = format!("limits for {}, of {}", rule.rule, format_client_count(rule.clients));
        let with_headroom = format!("plus {} %, rounded up", self.headroom_percent);
        let head = ["max", "clients denied", &with_headroom, "clients denied"];
        let rows = rule.windows.iter().flat_map(|window| {
            let choices = window.distinct_limits();
            choices.map(|choice| {
                (
                    format!("{}: {}", window.name, choice.format_table_row_name()),
                    choice.format_table_cells(),
                )
            })
        });
        table::write(f, &title, head, &rows.collect::<Vec<_>>())?;
        write_note_on_shares_below_one_client(f, rule)
    }
}

/// Writes a note if a share of clients that may be denied is less than one client.
fn write_note_on_shares_below_one_client(
    f: &mut fmt::Formatter<'_>,
    rule: &RuleSuggestions<'_>,
) -> fmt::Result {
    let choices = rule.windows.first().map_or(&[][..], |window| &window.choices);
    let small_shares = choices.iter().filter(|choice| choice.may_deny_clients == 0);
    let small_shares: Vec<_> =
        small_shares.map(|choice| format!("{} %", choice.may_deny_percent)).collect();
    if small_shares.is_empty() {
        return Ok(());
    }
    let (shares, clients) = (small_shares.join(" or "), format_client_count(rule.clients));
    writeln!(
        f,
        "({shares} of {clients} is less than one client, so max is the highest demand of any client.)"
    )
}

fn format_client_count(number: u64) -> String {
    format!("{number} client{}", if number == 1 { "" } else { "s" })
}

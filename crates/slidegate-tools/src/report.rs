//! The report of `slidegate replay`, as text or as JSON.

mod accuracy;
mod missing_attributes;
mod rule_suggestions;
mod snippet;
mod suggestions;
mod table;

use std::fmt;

use serde::{Serialize, Serializer};
use slidegate::policy::{Override, Rule};
use slidegate::{Algorithm, Policy, Timestamp};

use self::accuracy::{AccuracyReport, DeviationReport};
use self::missing_attributes::{MissingAttribute, missing_attributes};
use self::suggestions::Suggestions;
pub use self::table::escape_control_chars;
use super::key_counts::{KeyCount, RuleKey};
use super::stats::{LimitStats, ReplayStats, RequestCounts};
use super::suggest::Headroom;

/// The report of a replay: the effect of a policy on the requests of the logs. Serialized as the JSON report.
#[derive(Debug, Serialize)]
pub struct ReplayReport<'a> {
    requests: u64,
    allowed: u64,
    denied: u64,
    unparsable: u64,
    out_of_order: u64,
    first: Option<String>,
    last: Option<String>,
    rules: Vec<RuleReport<'a>>,
    /// The attributes that rules use and that no line has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing_attributes: Vec<MissingAttribute<'a>>,
    top_denied: Vec<DeniedKey<'a>>,
    /// Number of requests whose keys were not counted, because there were more keys than `--max-keys`. They are not
    /// included in `top_denied`, `exact` and `suggestions`.
    uncounted_by_key: u64,
    /// Number of limit counters that the store evicted, because there were more counters than `--max-keys`.
    forgotten_counts: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    suggestions: Option<Suggestions<'a>>,
}

/// The results of one rule in a replay.
#[derive(Debug, Serialize)]
struct RuleReport<'a> {
    rule: &'a str,
    #[serde(flatten)]
    counts: RequestCounts,
    /// The number of keys of the rule; `None` if it has one counter for all requests.
    clients: Option<u64>,
    /// The number of keys with at least one request above a limit.
    clients_denied: Option<u64>,
    exact: DeviationReport,
    limits: Vec<LimitReport<'a>>,
}

/// The results of one limit in a replay.
#[derive(Debug, Serialize)]
struct LimitReport<'a> {
    limit: NamedQuota<'a>,
    /// The override that has the limit; `None` if the rule itself has it.
    #[serde(rename = "override", skip_serializing_if = "Option::is_none")]
    by_override: Option<String>,
    algorithm: &'static str,
    #[serde(flatten)]
    counts: RequestCounts,
    exact: AccuracyReport,
    #[serde(skip)]
    text: String,
    #[serde(skip)]
    has_burst: bool,
}

/// The name and quota of a limit, in the same form as in responses of `/v1/check`.
#[derive(Debug, Serialize)]
struct NamedQuota<'a> {
    name: &'a str,
    max: u64,
    window_ms: u64,
}

/// A key with at least one denial, and its numbers of requests and denials.
#[derive(Debug, Serialize)]
struct DeniedKey<'a> {
    rule: &'a str,
    #[serde(serialize_with = "serialize_pairs_as_map")]
    key: Vec<(&'a str, &'a str)>,
    #[serde(flatten)]
    count: KeyCount,
}

impl<'a> ReplayReport<'a> {
    /// Creates the report about the rules of one domain. It lists at most `top` denied keys.
    pub fn new(policy: &'a Policy, domain: &str, stats: &'a ReplayStats, top: usize) -> Self {
        let rules = policy.rules().iter().zip(&stats.rules);
        let rules = rules.enumerate().filter(|(_, (rule, _))| rule.domain() == domain);
        let rules = rules.map(|(index, (rule, rule_stats))| {
            let (clients, denied) = stats.keys.count_keys_and_denied_keys(index);
            let has_keys = !rule.per().entries().is_empty();
            RuleReport {
                rule: rule.name(),
                counts: rule_stats.counts,
                clients: has_keys.then_some(clients),
                clients_denied: has_keys.then_some(denied),
                exact: DeviationReport::new(rule_stats.deviation),
                limits: rule_stats
                    .limits
                    .iter()
                    .map(|limit| LimitReport::new(rule, limit))
                    .collect(),
            }
        });
        Self {
            requests: stats.counts.requests,
            allowed: stats.counts.allowed,
            denied: stats.counts.denied,
            unparsable: stats.unparsable,
            out_of_order: stats.out_of_order,
            first: stats.span.map(|(first, _)| format_timestamp(first)),
            last: stats.span.map(|(_, last)| format_timestamp(last)),
            rules: rules.collect(),
            missing_attributes: missing_attributes(policy, domain, stats),
            top_denied: stats
                .keys
                .most_denied(top)
                .into_iter()
                .map(|key| DeniedKey::new(policy, key))
                .collect(),
            uncounted_by_key: stats.keys.uncounted_requests(),
            forgotten_counts: stats.evicted_counters,
            suggestions: None,
        }
    }

    /// Adds suggested limits for the rules of one domain to the report.
    pub fn with_suggestions(
        self,
        policy: &'a Policy,
        domain: &str,
        stats: &ReplayStats,
        headroom: Headroom,
    ) -> Self {
        Self { suggestions: Some(Suggestions::new(policy, domain, stats, headroom)), ..self }
    }

    /// Removes the results of rules from the report, because the user has not provided a policy.
    pub fn without_policy(self) -> Self {
        let suggestions = self.suggestions.map(Suggestions::without_policy);
        Self { rules: Vec::new(), missing_attributes: Vec::new(), suggestions, ..self }
    }
}

impl RuleReport<'_> {
    /// Formats the number of clients with a denial, such as `3 of 250`; empty if the rule does not distinguish clients.
    fn format_clients(&self) -> String {
        match (self.clients, self.clients_denied) {
            (Some(clients), Some(denied)) => format!("{denied} of {clients}"),
            _ => String::new(),
        }
    }
}

impl<'a> LimitReport<'a> {
    fn new(
        rule: &Rule,
        LimitStats { limit: rule_limit, counts, accuracy }: &'a LimitStats,
    ) -> Self {
        let by_override = describe_override_with_limit(rule, rule_limit.index());
        let named = by_override.as_ref().map(|label| format!(" ({label})")).unwrap_or_default();
        let (limit, quota) = (rule_limit.limit(), rule_limit.limit().quota());
        Self {
            limit: NamedQuota {
                name: rule_limit.id(),
                max: quota.max(),
                window_ms: table::ceil_millis(limit.window()),
            },
            by_override,
            algorithm: limit.algorithm().name(),
            counts: *counts,
            exact: AccuracyReport::new(accuracy, quota.max()),
            has_burst: matches!(limit.algorithm(), Algorithm::TokenBucket { .. }),
            text: format!("  {}{named}: {limit}", rule_limit.id()),
        }
    }
}

impl<'a> DeniedKey<'a> {
    fn new(policy: &'a Policy, (RuleKey { rule, values }, count): (&'a RuleKey, KeyCount)) -> Self {
        let rule = &policy.rules()[*rule];
        let key = values.iter().map(|(name, value)| (&**name, &**value)).collect();
        Self { rule: rule.name(), key, count }
    }

    /// Formats a rule and its key, such as `per-ip ip=192.0.2.7`.
    fn format_rule_and_key(&self) -> String {
        let pairs =
            self.key.iter().map(|(name, value)| format!(" {name}={}", escape_control_chars(value)));
        pairs.fold(self.rule.to_owned(), |text, pair| text + &pair)
    }
}

/// Returns the override of a rule that has the limit with this index, such as ``override `pro` ``; `None` if the rule
/// itself has it.
fn describe_override_with_limit(rule: &Rule, limit_index: usize) -> Option<String> {
    let has_limit = |other: &Override| {
        other.settings().limits().iter().any(|limit| limit.index() == limit_index)
    };
    let position = rule.overrides().iter().position(has_limit)?;
    Some(match rule.overrides()[position].name() {
        Some(name) => format!("override `{name}`"),
        None => format!("override {}", position + 1),
    })
}

/// Formats a time in UTC, such as `2015-05-17T10:05:03Z`.
fn format_timestamp(time: Timestamp) -> String {
    let micros = i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
    jiff::Timestamp::from_microsecond(micros).unwrap_or(jiff::Timestamp::MAX).to_string()
}

fn serialize_pairs_as_map<S: Serializer>(
    pairs: &[(&str, &str)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().copied())
}

impl fmt::Display for ReplayReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_summary(f)?;
        if !self.rules.is_empty() {
            self.write_rule_table(f)?;
            self.missing_attributes.iter().try_for_each(|missing| missing.fmt(f))?;
            accuracy::write_accuracy_table(f, self)?;
        }
        if self.denied > 0 {
            self.write_denied_keys(f)?;
        }
        self.suggestions.iter().try_for_each(|suggestions| write!(f, "{suggestions}"))
    }
}

impl ReplayReport<'_> {
    fn write_summary(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let none = || "-".to_owned();
        let rows = [
            ("requests", self.requests.to_string()),
            ("first", self.first.clone().unwrap_or_else(none)),
            ("last", self.last.clone().unwrap_or_else(none)),
            ("allowed", self.allowed.to_string()),
            ("denied", self.denied.to_string()),
            ("unparsable", self.unparsable.to_string()),
            ("out of order", self.out_of_order.to_string()),
        ];
        rows.iter().try_for_each(|(name, value)| writeln!(f, "{name:<12}  {value}"))
    }

    fn write_rule_table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows: Vec<(String, &RequestCounts, String)> = Vec::new();
        for rule in &self.rules {
            rows.push((rule.rule.to_owned(), &rule.counts, rule.format_clients()));
            let limits = rule.limits.iter();
            rows.extend(limits.map(|limit| (limit.text.clone(), &limit.counts, String::new())));
        }
        let title = "rule and its limits";
        if rows.iter().all(|(_, counts, _)| counts.observed == 0) {
            let rows = rows.into_iter().map(|(name, counts, clients)| {
                let [requests, allowed, denied] =
                    [counts.requests, counts.allowed, counts.denied].map(|n| n.to_string());
                (name, [requests, allowed, denied, clients])
            });
            let head = ["requests", "allowed", "denied", "clients denied"];
            table::write(f, title, head, &rows.collect::<Vec<_>>())?;
        } else {
            let rows = rows.into_iter().map(|(name, counts, clients)| {
                let RequestCounts { requests, allowed, denied, observed } = *counts;
                let [requests, allowed, denied, observed] =
                    [requests, allowed, denied, observed].map(|n| n.to_string());
                (name, [requests, allowed, denied, observed, clients])
            });
            let head = ["requests", "allowed", "denied", "observed", "clients denied"];
            table::write(f, title, head, &rows.collect::<Vec<_>>())?;
            writeln!(
                f,
                "(Observed: requests that exceeded the limit but were not denied, because the rule only observes. Their clients\n\
                 count as denied.)"
            )?;
        }
        writeln!(
            f,
            "(Requests that a limit neither allowed nor denied were denied by another limit.)"
        )
    }

    fn write_denied_keys(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |key: &DeniedKey<'_>| {
            (
                key.format_rule_and_key(),
                [key.count.denied, key.count.requests].map(|n| n.to_string()),
            )
        };
        let rows: Vec<_> = self.top_denied.iter().map(row).collect();
        table::write(f, "most denied keys", ["denied", "requests"], &rows)?;
        match self.uncounted_by_key {
            0 => Ok(()),
            omitted => {
                writeln!(
                    f,
                    "({omitted} requests are missing from this list, because there were more keys than --max-keys.)"
                )
            }
        }
    }
}

//! The report of `slidegate replay`, as text or as JSON.

mod accuracy;
mod rule_suggestions;
mod snippet;
mod suggestions;
mod table;

use std::fmt;

use serde::{Serialize, Serializer};
use slidegate::{Algorithm, Policy, Timestamp};

use self::accuracy::{AccuracyReport, DeviationReport};
use self::suggestions::Suggestions;
pub use self::table::escape_control;
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
    exact: DeviationReport,
    limits: Vec<LimitReport<'a>>,
}

/// The results of one limit in a replay.
#[derive(Debug, Serialize)]
struct LimitReport<'a> {
    limit: NamedQuota<'a>,
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
        let rules =
            rules.filter(|(rule, _)| rule.domain() == domain).map(|(rule, stats)| RuleReport {
                rule: rule.name(),
                counts: stats.counts,
                exact: DeviationReport::new(stats.deviation),
                limits: stats.limits.iter().map(LimitReport::new).collect(),
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
            top_denied: stats
                .keys
                .most_denied(top)
                .into_iter()
                .map(|key| DeniedKey::new(policy, key))
                .collect(),
            uncounted_by_key: stats.keys.uncounted(),
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
        Self { rules: Vec::new(), suggestions, ..self }
    }
}

impl<'a> LimitReport<'a> {
    fn new(LimitStats { limit: rule_limit, counts, accuracy }: &'a LimitStats) -> Self {
        let (limit, quota) = (rule_limit.limit(), rule_limit.limit().quota());
        Self {
            limit: NamedQuota {
                name: rule_limit.id(),
                max: quota.max(),
                window_ms: table::ceil_millis(limit.window()),
            },
            algorithm: limit.algorithm().name(),
            counts: *counts,
            exact: AccuracyReport::new(accuracy, quota.max()),
            has_burst: matches!(limit.algorithm(), Algorithm::TokenBucket { .. }),
            text: format!("  {}: {limit}", rule_limit.id()),
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
            self.key.iter().map(|(name, value)| format!(" {name}={}", escape_control(value)));
        pairs.fold(self.rule.to_owned(), |text, pair| text + &pair)
    }
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
            accuracy::write(f, self)?;
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
        let mut rows: Vec<(String, &RequestCounts)> = Vec::new();
        for rule in &self.rules {
            rows.push((rule.rule.to_owned(), &rule.counts));
            rows.extend(rule.limits.iter().map(|limit| (limit.text.clone(), &limit.counts)));
        }
        let title = "rule and its limits";
        if rows.iter().all(|(_, counts)| counts.observed == 0) {
            let rows = rows.into_iter().map(|(name, counts)| {
                (name, [counts.requests, counts.allowed, counts.denied].map(|n| n.to_string()))
            });
            table::write(f, title, ["requests", "allowed", "denied"], &rows.collect::<Vec<_>>())?;
        } else {
            let rows = rows.into_iter().map(|(name, counts)| {
                let RequestCounts { requests, allowed, denied, observed } = *counts;
                (name, [requests, allowed, denied, observed].map(|n| n.to_string()))
            });
            let head = ["requests", "allowed", "denied", "observed"];
            table::write(f, title, head, &rows.collect::<Vec<_>>())?;
            writeln!(
                f,
                "(Observed: requests that exceeded the limit but were not denied, because the rule only observes.)"
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

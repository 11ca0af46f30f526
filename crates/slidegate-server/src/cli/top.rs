//! `slidegate top`: lists the keys that an observing rule would have denied, summed over all servers.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::num::NonZeroUsize;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::cli::args::parse_nonzero;
use crate::cli::client::{self, RequestError, ResponseBounds};

/// The flags of `slidegate top`.
#[derive(Debug, clap::Args)]
pub struct TopArgs {
    /// Admin listeners of all servers, separated by commas
    #[arg(
        long,
        value_name = "URL,…",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:6070"
    )]
    pub server: Vec<String>,

    /// Maximum number of listed keys
    #[arg(long, value_name = "N", default_value = "50", value_parser = parse_nonzero::<NonZeroUsize>)]
    pub keys: NonZeroUsize,

    /// Output as JSON
    #[arg(long)]
    pub json: bool,

    /// Name of an observing rule
    #[arg(value_name = "RULE")]
    pub rule: String,
}

/// The reason why `slidegate top` has no list.
#[derive(Debug, Error)]
enum TopError {
    #[error(
        "{url}: {cause}; --server is the URL of an admin listener, for example http://127.0.0.1:6070"
    )]
    Server { url: String, cause: RequestError },
    #[error(
        "{url}: this is not the response of an admin listener of slidegate: {cause}; use the address of --admin"
    )]
    InvalidResponse { url: String, cause: serde_json::Error },
    #[error(
        "no server has counted a request that `{0}` would have denied; if the name is wrong, or the rule has neither `mode: observe` nor a canary such as `{{ enforce: 5% }}`, correct it"
    )]
    NothingObserved(String),
}

/// The response of a server to `/v1/top?rule=RULE`.
#[derive(Deserialize)]
struct ServerReport {
    rules: Vec<ServerRuleReport>,
}

#[derive(Deserialize)]
struct ServerRuleReport {
    domain: String,
    since_seconds: u64,
    total: u64,
    max_unlisted: u64,
    observed: Vec<ServerTopKey>,
}

#[derive(Deserialize)]
struct ServerTopKey {
    key: BTreeMap<String, String>,
    count: u64,
    max_overcount: u64,
}

/// The keys of a rule of one domain, summed over the servers.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct MergedRule {
    domain: String,
    rule: String,
    servers: usize,
    /// The longest time for which a server has counted.
    since_seconds: u64,
    total: u64,
    /// Number of keys with at least one request.
    keys: usize,
    /// Whether a server had more keys than it can count, so that keys are missing, and counts are upper bounds.
    is_incomplete: bool,
    max_unlisted: u64,
    observed: Vec<MergedKey>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct MergedKey {
    key: BTreeMap<String, String>,
    /// Upper bound of the number of requests.
    count: u64,
    max_overcount: u64,
}

/// The bounds of the response of each server. 10,000 keys of 256 bytes, in several domains, are below the size.
const RESPONSE_BOUNDS: ResponseBounds =
    ResponseBounds { timeout: Duration::from_secs(10), max_body_bytes: 64 * 1024 * 1024 };

/// Runs `slidegate top`, and returns the list.
pub fn run(args: &TopArgs) -> Result<String, Box<dyn Error>> {
    let mut reports = Vec::new();
    for server in &args.server {
        let url = format!("{}/v1/top?rule={}", server.trim_end_matches('/'), args.rule);
        let report = match client::get(&url, RESPONSE_BOUNDS) {
            Ok(report) => report,
            Err(cause) => return Err(TopError::Server { url, cause }.into()),
        };
        match serde_json::from_slice(&report) {
            Ok(report) => reports.push(report),
            Err(cause) => return Err(TopError::InvalidResponse { url, cause }.into()),
        }
    }
    let rules = merge_reports(&args.rule, reports, args.keys.get());
    if rules.is_empty() {
        return Err(TopError::NothingObserved(args.rule.clone()).into());
    }
    if args.json {
        return Ok(format!("{}\n", serde_json::to_string(&rules)?));
    }
    Ok(rules.iter().map(ToString::to_string).collect())
}

/// Sums the reports of all servers, and keeps the `max_keys` keys with the most requests of each domain.
fn merge_reports(rule: &str, reports: Vec<ServerReport>, max_keys: usize) -> Vec<MergedRule> {
    let mut domains: BTreeMap<String, Vec<ServerRuleReport>> = BTreeMap::new();
    for report in reports.into_iter().flat_map(|report| report.rules) {
        domains.entry(report.domain.clone()).or_default().push(report);
    }
    let merged = domains.into_iter().map(|(domain, servers)| {
        let max_unlisted = servers.iter().map(|server| server.max_unlisted).sum();
        let mut merged = MergedRule {
            rule: rule.to_owned(),
            domain,
            servers: servers.len(),
            since_seconds: servers.iter().map(|server| server.since_seconds).max().unwrap_or(0),
            total: servers.iter().map(|server| server.total).sum(),
            max_unlisted,
            is_incomplete: max_unlisted > 0,
            ..MergedRule::default()
        };
        merged.observed = merge_keys(servers, max_unlisted);
        merged.keys = merged.observed.len();
        if let Some(omitted) = merged.observed.get(max_keys) {
            merged.max_unlisted = merged.max_unlisted.max(omitted.count);
        }
        merged.observed.truncate(max_keys);
        merged
    });
    merged.collect()
}

/// Sums the counts of each key. A server that does not list a key may have counted it up to `max_unlisted` times; the
/// sum of these bounds over all servers is `all_unlisted`.
fn merge_keys(servers: Vec<ServerRuleReport>, all_unlisted: u64) -> Vec<MergedKey> {
    let mut keys: BTreeMap<BTreeMap<String, String>, (u64, u64)> = BTreeMap::new();
    for server in servers {
        for ServerTopKey { key, count, max_overcount } in server.observed {
            // A key starts with the bounds of all servers. The count of a server that lists the key replaces the bound
            // of this server, so the bounds of the other servers remain.
            let (sum, min) = keys.entry(key).or_insert((all_unlisted, 0));
            *sum = (*sum + count).saturating_sub(server.max_unlisted);
            *min += count.saturating_sub(max_overcount);
        }
    }
    let entry = |(key, (count, min)): (_, (u64, u64))| MergedKey {
        key,
        count,
        max_overcount: count.saturating_sub(min),
    };
    let mut merged: Vec<MergedKey> = keys.into_iter().map(entry).collect();
    merged.sort_by_key(|key| Reverse(key.count));
    merged
}

fn plural_end(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}

impl fmt::Display for MergedRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, rule, servers, since_seconds, total, keys, .. } = self;
        let at_least = if self.is_incomplete { "at least " } else { "" };
        writeln!(
            f,
            "{rule} (domain {domain}): {total} request{requests_end} of {at_least}{keys} key{keys_end} would have been denied in {since_seconds} s, on {servers} server{s}",
            requests_end = plural_end(*total),
            keys_end = plural_end(*keys as u64),
            s = plural_end(*servers as u64)
        )?;
        for MergedKey { key, count, .. } in &self.observed {
            let pairs = key.iter().map(|(name, value)| format!("{name}={}", value.escape_debug()));
            writeln!(f, "{count:>9}  {}", pairs.collect::<Vec<_>>().join(","))?;
        }
        if keys > &self.observed.len() {
            writeln!(f, "({} more keys: raise --keys.)", keys - self.observed.len())?;
        }
        if self.is_incomplete {
            writeln!(f, "(More keys than a server can count; counts are upper bounds.)")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report(max_unlisted: u64, keys: &[(&str, u64)]) -> ServerReport {
        let key = |(tenant, count): &(&str, u64)| json!({"key": {"tenant": tenant}, "count": count, "max_overcount": 0});
        let observed: Vec<_> = keys.iter().map(key).collect();
        let rule = json!({"domain": "api", "since_seconds": 60, "total": 10, "max_unlisted": max_unlisted, "observed": observed});
        serde_json::from_value(json!({ "rules": [rule] })).unwrap()
    }

    fn counts(merged: &[MergedRule]) -> Vec<(&str, u64, u64)> {
        let keys = merged.iter().flat_map(|rule| &rule.observed);
        keys.map(|key| (&*key.key["tenant"], key.count, key.max_overcount)).collect()
    }

    #[test]
    fn counts_of_servers_are_summed() {
        let reports = || vec![report(0, &[("a", 3), ("b", 1)]), report(0, &[("b", 4)])];
        let merged = merge_reports("r", reports(), 9);
        assert_eq!(counts(&merged), [("b", 5, 0), ("a", 3, 0)]);
        assert_eq!((merged[0].servers, merged[0].total, merged[0].keys), (2, 20, 2));
        let first = merge_reports("r", reports(), 1);
        assert_eq!((counts(&first), first[0].max_unlisted), (vec![("b", 5, 0)], 3));
        assert!(
            first[0].to_string().ends_with("        5  tenant=b\n(1 more keys: raise --keys.)\n")
        );
    }

    #[test]
    fn key_that_server_does_not_list_has_its_bound() {
        let merged = merge_reports("r", vec![report(2, &[("a", 7)]), report(0, &[("b", 4)])], 9);
        assert_eq!(counts(&merged), [("a", 7, 0), ("b", 6, 2)]);
    }
}

//! Names that other rate limiters use, with their counterparts in policies.

/// The names of one vocabulary of policies, such as the algorithms. Each name comes with its synonyms.
type Synonyms = [(&'static str, &'static [&'static str])];

const MODE_SYNONYMS: &Synonyms = &[
    (
        "observe",
        &[
            "shadow",
            "shadow_mode",
            "dry_run",
            "dryrun",
            "log",
            "log_only",
            "monitor",
            "report",
            "report_only",
        ],
    ),
    ("enforce", &["block", "enforced", "enforcing", "on", "true", "enabled"]),
    ("off", &["disabled", "disable", "none", "false"]),
];

const ON_STORE_ERROR_SYNONYMS: &Synonyms = &[
    ("allow", &["fail_open", "open", "pass", "ignore"]),
    ("deny", &["fail_closed", "fail_close", "closed", "reject", "block"]),
    ("local", &["memory", "in_memory", "fallback"]),
];

const WHEN_MISSING_SYNONYMS: &Synonyms =
    &[("skip", &["ignore", "allow"]), ("deny", &["reject", "block"])];

const ALGORITHM_SYNONYMS: &Synonyms = &[
    ("token_bucket", &["leaky", "leaky_bucket", "gcra", "bucket", "token", "tokens"]),
    ("sliding_log", &["log", "sliding_window_log", "sliding_log_window", "exact"]),
    ("sliding_window", &["sliding", "rolling", "rolling_window"]),
    ("sliding_counter", &["sliding_window_counter", "approximate"]),
    (
        "fixed_window",
        &["fixed", "fixed_window_counter", "fixed_counter", "tumbling", "tumbling_window"],
    ),
];

const LIMITS_SYNONYMS: &Synonyms = &[
    ("denied", &["deny", "banned", "ban", "block", "blocked", "forbidden"]),
    ("unlimited", &["infinite", "infinity", "no_limit", "nolimit", "allow", "allowed", "off"]),
];

const ALIGN_SYNONYMS: &Synonyms =
    &[("clock", &["calendar", "utc", "wall_clock"]), ("key", &["first_request", "hash"])];

const NORMALIZE_STEP_SYNONYMS: &Synonyms = &[
    ("lowercase", &["case", "lower", "lower_case", "downcase", "case_insensitive"]),
    ("trim", &["strip", "whitespace"]),
    ("nfkc", &["unicode", "nfc", "normalize"]),
    ("double_slash", &["merge_slashes", "double_slashes", "slashes"]),
    ("trailing_slash", &["trailing_slashes"]),
];

const PERIOD_SYNONYMS: &Synonyms = &[
    ("day", &["daily", "d", "1d", "24h"]),
    ("week", &["weekly", "w", "1w", "7d"]),
    ("month", &["monthly", "30d"]),
    ("quarter", &["quarterly", "q"]),
    ("year", &["yearly", "annual", "annually", "y", "365d"]),
];

const WEEKDAY_SYNONYMS: &Synonyms = &[
    ("monday", &["mo", "mon", "1", "iso"]),
    ("tuesday", &["tu", "tue", "tues", "2"]),
    ("wednesday", &["we", "wed", "3"]),
    ("thursday", &["th", "thu", "thur", "thurs", "4"]),
    ("friday", &["fr", "fri", "5"]),
    ("saturday", &["sa", "sat", "6"]),
    ("sunday", &["su", "sun", "0", "7"]),
];

const FIELD_SYNONYMS: &Synonyms = &[
    ("rules", &["limits", "rate_limits", "ratelimits", "policies", "descriptors"]),
    ("name", &["id"]),
    ("domain", &["namespace"]),
    ("when", &["match", "matches", "matching", "if", "where", "condition", "conditions", "filter"]),
    ("per", &["key", "keys", "by", "group_by", "count_by", "key_by", "identifier", "dimensions"]),
    (
        "limits",
        &["limit", "rate", "rates", "rate_limit", "rate_limits", "quota", "quotas", "throttle"],
    ),
    ("max", &["limit", "rate", "count", "requests", "max_requests", "requests_per_unit", "amount"]),
    (
        "window",
        &[
            "window_size",
            "window_length",
            "period",
            "interval",
            "duration",
            "unit",
            "every",
            "per",
            "time",
        ],
    ),
    ("burst", &["burst_size", "max_burst", "burst_limit", "capacity", "bucket_size"]),
    ("timezone", &["time_zone", "tz", "zone", "location"]),
    ("week_starts", &["week_start", "week_starts_on", "first_day_of_week", "start_of_week"]),
    (
        "starts",
        &["start", "starts_at", "starts_on", "begins", "anchor", "reset_day", "billing_day"],
    ),
    ("precision", &["bucket", "bucket_length", "granularity"]),
    ("algorithm", &["type", "strategy", "kind"]),
    ("mode", &["action", "enforcement", "dry_run", "shadow_mode", "enabled"]),
    ("on_store_error", &["on_error", "on_failure", "failure_mode", "fail_mode", "fail_open"]),
    ("deny_status", &["status", "status_code", "http_status", "response_code"]),
    ("cost", &["weight", "hits_addend"]),
    ("overrides", &["exceptions", "except", "exemptions"]),
    ("not", &["exclude", "except", "is_not", "not_in", "ne"]),
    ("literal", &["exact", "equals", "eq"]),
    ("into", &["parts", "shards"]),
    ("sample", &["sampling", "sample_rate"]),
];

const ALL_SYNONYMS: [&Synonyms; 10] = [
    MODE_SYNONYMS,
    ON_STORE_ERROR_SYNONYMS,
    WHEN_MISSING_SYNONYMS,
    ALGORITHM_SYNONYMS,
    LIMITS_SYNONYMS,
    ALIGN_SYNONYMS,
    NORMALIZE_STEP_SYNONYMS,
    PERIOD_SYNONYMS,
    WEEKDAY_SYNONYMS,
    FIELD_SYNONYMS,
];

/// Attributes that are often written as fields of a rule. They belong into `when`.
const MISPLACED_ATTRIBUTES: [&str; 8] =
    ["path", "route", "method", "host", "ip", "header", "user", "tenant"];

/// Fields of a limit that are often written as fields of a rule.
const MISPLACED_LIMIT_FIELDS: [&str; 7] =
    ["max", "window", "window_size", "burst", "burst_size", "requests", "period"];

/// Returns the known name that has the same meaning as `word`; `None` if there is none.
pub(super) fn find_known_synonym<'w>(word: &str, known: &[&'w str]) -> Option<&'w str> {
    let word = normal_spelling(word);
    let mut entries = ALL_SYNONYMS.into_iter().flatten();
    // A word may be a synonym in several vocabularies. Only a name in `known` can be the correction.
    entries.find_map(|(name, synonyms)| {
        let name = known.iter().find(|known| *known == name)?;
        synonyms.contains(&&*word).then_some(*name)
    })
}

/// Returns the end of an error message that names the place of the field `word`, if `word` is written in a rule or an
/// override but belongs in its `when` or in a limit. `fields` are the fields that are valid where `word` is written.
pub(super) fn misplaced_field_advice(word: &str, fields: &[&str]) -> Option<String> {
    if !fields.contains(&"when") || !fields.contains(&"limits") {
        return None;
    }
    let name = normal_spelling(word);
    if MISPLACED_ATTRIBUTES.contains(&&*name) {
        return Some(format!("it in `when`, for example `when: {{ {name}: … }}`"));
    }
    let place = "it in a limit, for example `limits: [{ max: 100, window: 1m }]`";
    MISPLACED_LIMIT_FIELDS.contains(&&*name).then(|| place.to_owned())
}

fn normal_spelling(word: &str) -> String {
    word.to_lowercase().replace(['-', ' '], "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn synonyms_depend_on_known_names() {
        let modes = ["enforce", "jointly", "observe", "off"];
        assert_eq!(find_known_synonym("Dry-Run", &modes), Some("observe"));
        assert_eq!(find_known_synonym("block", &modes), Some("enforce"));
        assert_eq!(find_known_synonym("block", &["allow", "local", "deny"]), Some("deny"));
        assert_eq!(find_known_synonym("limit", &["name", "limits"]), Some("limits"));
        assert_eq!(find_known_synonym("limit", &["max", "window"]), Some("max"));
        assert_eq!(find_known_synonym("fortnightly", &modes), None);
    }

    #[test]
    fn no_synonym_is_name_of_same_vocabulary() {
        for vocabulary in
            ALL_SYNONYMS.into_iter().filter(|vocabulary| *vocabulary != FIELD_SYNONYMS)
        {
            for (name, _) in vocabulary {
                assert!(vocabulary.iter().all(|(_, synonyms)| !synonyms.contains(name)), "{name}");
            }
        }
    }
}

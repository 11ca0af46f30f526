//! Tests of the messages for common mistakes in policy files: unquoted values, and names of other rate limiters.

use proptest::prelude::*;
use slidegate::policy::PolicyError;
use slidegate::{Policy, Quota};

fn policy_errors(text: &str) -> Vec<PolicyError> {
    Policy::from_yaml(text).map_or_else(|errors| errors.0, |_| Vec::new())
}

/// Returns the errors of a policy without their excerpts, as `line:column: message`.
fn formatted_errors(text: &str) -> Vec<String> {
    let format =
        |error: &PolicyError| format!("{}:{}: {}", error.line, error.column, error.message);
    policy_errors(text).iter().map(format).collect()
}

/// Returns a policy whose only rule has these fields, which begin in line 3.
fn policy_with_fields(fields: &str) -> String {
    format!("rules:\n  - name: a\n{fields}\n")
}

#[test]
fn unquoted_value_error_has_source_position() {
    for (text, position) in [
        ("routes: [/users/{id}]", "1:17"),
        ("    when: { path: /a/{b} }", "3:22"),
        ("    when: { path: /a: b }", "3:21"),
        ("    when:\n      path: *", "4:13"),
        ("    when: { user: @a }", "3:19"),
        ("    per: [`ip`]", "3:11"),
        ("    when: { plan: !free }", "3:24"),
        ("    when: { plan: !not free }", "3:24"),
    ] {
        let text = if text.starts_with("routes") {
            format!("{text}\nrules: []\n")
        } else {
            policy_with_fields(&format!("{text}\n    limits: [1/s]"))
        };
        let errors = formatted_errors(&text);
        assert!(errors[0].starts_with(&format!("{position}: invalid YAML: ")), "{text} {errors:?}");
    }
    // Tags of YAML itself have no effect.
    let text = policy_with_fields("    when: { plan: !!str 5 }\n    limits: [1/s]");
    assert_eq!(formatted_errors(&text), [""; 0]);
}

#[test]
fn names_of_other_rate_limiters_have_suggestion() {
    for (fields, expected) in [
        ("mode: shadow", "`observe`"),
        ("mode: dry_run", "`observe`"),
        ("mode: Dry-Run", "`observe`"),
        ("mode: log_only", "`observe`"),
        ("mode: monitor", "`observe`"),
        ("mode: report_only", "`observe`"),
        ("mode: block", "`enforce`"),
        ("mode: enforced", "`enforce`"),
        ("mode: on", "`enforce`"),
        ("on_store_error: fail_open", "`allow`"),
        ("on_store_error: open", "`allow`"),
        ("on_store_error: fail-closed", "`deny`"),
        ("on_store_error: closed", "`deny`"),
        ("when_missing: reject", "`deny`"),
        ("algorithm: leaky_bucket", "`token_bucket`"),
        ("algorithm: GCRA", "`token_bucket`"),
        ("algorithm: sliding_window_log", "`sliding_log`"),
        ("algorithm: sliding_window_counter", "`sliding_counter`"),
        ("algorithm: rolling_window", "`sliding_window`"),
        ("algorithm: fixed", "`fixed_window`"),
        ("algorithm: fixed_window_counter", "`fixed_window`"),
        ("rate: 5/s", "`limits`"),
        ("limit: 5/s", "`limits`"),
        ("key: ip", "`per`"),
        ("keys: [ip]", "`per`"),
        ("by: [ip]", "`per`"),
        ("match: { path: /a }", "`when`"),
        ("if: { path: /a }", "`when`"),
    ] {
        let text = format!("rules: [{{ name: a, {fields}, limits: [1/s] }}]");
        let errors = formatted_errors(&text);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].ends_with(&format!("; did you mean {expected}?")), "{errors:?}");
    }
    for (limit, expected) in [
        ("requests: 5", "`max`"),
        ("limit: 5", "`max`"),
        ("requests_per_unit: 5", "`max`"),
        ("window_size: 1m", "`window`"),
        ("unit: minute", "`window`"),
        ("burst_size: 5", "`burst`"),
    ] {
        let text = format!("rules: [{{ name: a, limits: [{{ max: 5, window: 1m, {limit} }}] }}]");
        let errors = formatted_errors(&text);
        assert!(errors[0].ends_with(&format!("; did you mean {expected}?")), "{errors:?}");
    }
    for (field, expected) in [
        ("path: /a", "write it in `when`, for example `when: { path: … }`"),
        ("burst: 5", "write it in a limit, for example `limits: [{ max: 100, window: 1m }]`"),
    ] {
        let text = format!("rules: [{{ name: a, {field}, limits: [1/s] }}]");
        let errors = formatted_errors(&text);
        assert!(errors[0].ends_with(expected), "{errors:?}");
    }
}

proptest! {
    #[test]
    fn suggested_quota_parses(
        max in "|[0-9]{1,5}|[0-9]{1,3}[k,_]?[0-9]{0,3}",
        middle in "( ?r| req| requests| calls)?",
        separator in "/| / | per | every |r?p|",
        window in "[0-9]{0,3} ?(ms|millis|s|secs|seconds?|m|min|minutes?|hours?|hrs|days?|weeks?|months?|years?|x)",
    ) {
        let text = format!("{max}{middle}{separator}{window}");
        if let Err(error) = text.parse::<Quota>()
            && let Some((_, end)) = error.to_string().split_once("did you mean `")
        {
            // A month or a year may be a calendar period, which only a policy has.
            for suggested in end.strip_suffix("`?").unwrap().split("` or `") {
                let limits = format!("rules: [{{ name: a, limits: [{suggested}] }}]");
                let is_valid = suggested.parse::<Quota>().is_ok() || suggested.contains("calendar");
                let is_limit = Policy::from_yaml(&limits).is_ok();
                prop_assert!(is_valid && is_limit, "{} for {}", suggested, text);
                prop_assert_ne!(suggested, text.as_str());
            }
        }
    }
}

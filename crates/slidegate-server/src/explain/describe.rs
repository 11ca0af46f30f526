//! Formats parts of an explanation as text: the reason why a rule does not apply, limits, waits, and the summary.

use std::time::Duration;

use slidegate::policy::{NoMatchReason, Rule, RuleLimit};
use slidegate::{Decision, Descriptor, Limit, LimitStatus, Policy, Reason};

use super::UnusedOverrides;
use crate::policy::description::{describe_expected_value, override_label};

/// Returns the reason why a rule does not apply. `is_route_unmatched` states whether the request has no route because
/// its path matches none of the policy's routes.
pub fn describe_no_match(reason: &NoMatchReason<'_>, is_route_unmatched: bool) -> String {
    match reason {
        NoMatchReason::ConditionNotMet { attribute, expected, found } => match found {
            Some(found) => {
                format!("{attribute} is `{found}`, and {}", describe_expected_value(expected))
            }
            None if *attribute == "route" && is_route_unmatched => {
                let expected = describe_expected_value(expected);
                format!("the path matches none of `routes`, and the route {expected}")
            }
            None => format!("{attribute} is missing, and {}", describe_expected_value(expected)),
        },
        NoMatchReason::MissingAttribute(entry) => {
            let names: Vec<String> = entry.names().map(|name| format!("`{name}`")).collect();
            format!("attribute {}, listed in `per`, is missing", names.join(" or "))
        }
        NoMatchReason::UnnamedAttribute(name) => {
            format!("the descriptor has attribute `{name}`, which the rule does not mention")
        }
        NoMatchReason::OtherAttributeNames(names) => {
            format!(
                "the rule applies only to descriptors with exactly {}, in this order",
                names.join(", ")
            )
        }
        NoMatchReason::RequestedLimitsOnly => {
            "the rule applies only to descriptors that contain a limit".into()
        }
        NoMatchReason::Replaced(other) => format!("{other} applies and replaces it"),
        _ => "the rule is switched off".into(),
    }
}

/// Returns the overrides of a rule that are not used, grouped by the attribute that is missing or does not match. If an
/// override applies (`is_overridden`), returns only overrides whose attribute is missing: the others are meant for
/// other requests.
pub fn unused_overrides(
    policy: &Policy,
    rule: &Rule,
    descriptor: &Descriptor<'_>,
    is_overridden: bool,
) -> Vec<UnusedOverrides> {
    let mut unused: Vec<UnusedOverrides> = Vec::new();
    for (index, attribute, value) in policy.unused_overrides(rule, descriptor) {
        if is_overridden && value.is_some() {
            continue;
        }
        let label = override_label(index, &rule.overrides()[index]);
        let is_same =
            |other: &&mut UnusedOverrides| other.attribute == attribute && other.value == value;
        match unused.iter_mut().find(is_same) {
            Some(other) => other.overrides.push(label),
            None => {
                let (attribute, overrides) = (attribute.to_owned(), vec![label]);
                unused.push(UnusedOverrides { attribute, value, overrides });
            }
        }
    }
    unused
}

/// Returns the limit as text, such as `10/1s sliding_log`, `block for 10m`, or `nothing passes` if its capacity is 0.
/// `limit` is the limit that this instance enforces.
pub fn describe_limit(rule_limit: &RuleLimit, limit: &Limit) -> String {
    match limit.capacity() {
        _ if rule_limit.is_block_limit() => format!("block for {}", limit.window_text()),
        0 => "nothing passes".into(),
        _ => limit.to_string(),
    }
}

/// Returns the condition under which the request will fit the limit, such as the time until enough units are free.
/// `required` is the number of units that must be free. Returns `None` if the request fits now.
pub fn describe_requirement(limit_status: &LimitStatus<'_>, required: u64) -> Option<String> {
    let (limit, outcome) = (limit_status.limit(), limit_status.outcome());
    if outcome.fits() {
        return None;
    }
    Some(match outcome.retry_after() {
        Some(wait) if limit_status.rule_limit().is_block_limit() => {
            format!("blocked for {}", format_wait(wait))
        }
        None if limit.capacity() == 0 => "never allowed by this policy".into(),
        None => format!("never allowed at this cost: at most {} fit", limit.capacity()),
        Some(wait) => {
            let wait = format_wait(wait);
            match required.saturating_add_signed(-outcome.free()) {
                // A request without a cost needs only a counter that is not above its limit.
                _ if required == 0 => format!("the counter is above its limit for {wait}"),
                1 => {
                    format!(
                        "needs 1 more unit: free in {wait} unless another request takes it first"
                    )
                }
                units => format!(
                    "needs {units} more units: free in {wait} unless other requests take them first"
                ),
            }
        }
    })
}

/// Returns a sentence with the decision and the limit that determined the decision. `denying_rule` is the rule that
/// denies the request while the store is unavailable.
pub fn describe_decision(decision: &Decision<'_>, denying_rule: Option<&str>) -> String {
    let summary = match (decision.is_allowed(), decision.binding()) {
        (true, None) => "allowed: no enforced limit applies".into(),
        (true, Some(limit)) => format!("allowed: {} is closest to its limit", limit.policy_name()),
        (false, Some(limit)) => {
            let wait = decision.retry_after().map(|wait| format!(", for {}", format_wait(wait)));
            format!(
                "denied by {}{}",
                limit.policy_name(),
                wait.as_deref().unwrap_or(", permanently")
            )
        }
        (false, None) => format!(
            "denied by {}: the store is unavailable, and the rule has `on_store_error: deny`",
            denying_rule.unwrap_or("a rule")
        ),
    };
    if !decision.is_degraded() || decision.reason() == Some(Reason::StoreUnavailable) {
        return summary;
    }
    let effect = if decision.limits().next().is_some() {
        "counted by this instance alone"
    } else {
        "not counted, because of `on_store_error: allow`"
    };
    format!("{summary} (the store is unavailable: {effect})")
}

/// Formats a wait for people, such as `0.2 s` or `2 min 0 s`. Rounds up, so that the formatted wait is never too short.
fn format_wait(wait: Duration) -> String {
    let tenths = wait.as_micros().div_ceil(100_000);
    let seconds = wait.as_micros().div_ceil(1_000_000);
    match seconds {
        0..120 => format!("{}.{} s", tenths / 10, tenths % 10),
        120..7_200 => format!("{} min {} s", seconds / 60, seconds % 60),
        7_200..172_800 => {
            let minutes = seconds.div_ceil(60);
            format!("{} h {} min", minutes / 60, minutes % 60)
        }
        _ => {
            let hours = seconds.div_ceil(3_600);
            format!("{} d {} h", hours / 24, hours % 24)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formatted_wait_is_rounded_up() {
        for (us, expected) in [
            (1, "0.1 s"),
            (100_000, "0.1 s"),
            (100_001, "0.2 s"),
            (119_000_000, "119.0 s"),
            (119_000_001, "2 min 0 s"),
            (3_599_000_001, "60 min 0 s"),
            (7_200_000_000, "2 h 0 min"),
            (7_260_000_001, "2 h 2 min"),
            (172_800_000_000, "2 d 0 h"),
            (176_400_000_001, "2 d 2 h"),
        ] {
            assert_eq!(format_wait(Duration::from_micros(us)), expected, "{us}");
        }
    }
}

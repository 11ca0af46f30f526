//! Reasons, in words.

use std::time::Duration;

use slidegate::policy::NoMatchReason;
use slidegate::{Limit, LimitStatus, Ruling};

use crate::words;

/// Why a rule does not apply.
pub fn misfit(misfit: &NoMatchReason<'_>) -> String {
    match misfit {
        NoMatchReason::ConditionNotMet { attribute, expected, found } => match found {
            Some(found) => format!("{attribute} is `{found}`, and {}", words::must(expected)),
            None => format!("there is no {attribute}, and it {}", words::must(expected)),
        },
        NoMatchReason::MissingAttribute(entry) => {
            let names: Vec<&str> = entry.names().collect();
            format!("there is no {}, per which it counts", names.join(" or "))
        }
        NoMatchReason::UnnamedAttribute(name) => {
            format!("it does not name {name}, which the descriptor has")
        }
        NoMatchReason::OtherAttributeNames(names) => {
            format!("it is for descriptors of exactly {}, in this order", names.join(", "))
        }
        NoMatchReason::RequestedLimitsOnly => {
            "it is for limits that descriptors bring along, where no other rule applies".into()
        }
        NoMatchReason::Replaced(other) => format!("{other} applies, and replaces it"),
        _ => "it is switched off".into(),
    }
}

/// What a limit enforces.
pub fn limit(limit: &Limit) -> String {
    match limit.capacity() {
        0 => "nothing passes".into(),
        _ => limit.to_string(),
    }
}

/// Returns what would have to happen for the required units to be free; `None` if they are.
pub fn to_pass(standing: &LimitStatus<'_>, required: u64) -> Option<String> {
    let (limit, outcome) = (standing.limit.limit(), standing.outcome);
    if outcome.fits() {
        return None;
    }
    Some(match outcome.retry_after() {
        None if limit.capacity() == 0 => "it never passes, unless the policy changes".into(),
        None => format!("it never passes at this cost: at most {} fit", limit.capacity()),
        Some(wait) => {
            let wait = wait_for(wait);
            match required.saturating_sub(outcome.remaining()) {
                0 => format!("the counter is above its limit: for {wait}"),
                1 => {
                    format!("one more unit has to become free: in {wait}, if nobody takes it first")
                }
                more => format!(
                    "{more} more units have to become free: in {wait}, if nobody takes them first"
                ),
            }
        }
    })
}

/// What the decision hangs on.
pub fn verdict(ruling: &Ruling) -> String {
    let decision = ruling.decision();
    let verdict = match (decision.is_allowed(), ruling.binding()) {
        (true, None) => "allowed: nothing limits it".into(),
        (true, Some(limit)) => format!("allowed: {} has the least left", limit.policy_name()),
        (false, Some(limit)) => {
            let wait = decision.retry_after().map(|wait| format!(", for {}", wait_for(wait)));
            format!("denied by {}{}", limit.policy_name(), wait.as_deref().unwrap_or(", for ever"))
        }
        (false, None) => {
            "denied: the store does not answer, and a rule denies all meanwhile".into()
        }
    };
    match decision.is_degraded() && !decision.is_refused() {
        true => format!("{verdict} (the store does not answer: counted by this instance alone)"),
        false => verdict,
    }
}

/// A wait as people say it, never too short.
fn wait_for(wait: Duration) -> String {
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
    fn a_wait_is_never_told_too_short() {
        for (us, told) in [
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
            assert_eq!(wait_for(Duration::from_micros(us)), told, "{us}");
        }
    }
}

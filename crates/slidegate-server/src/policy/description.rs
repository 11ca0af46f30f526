//! Describes rules in words, for `validate`, `explain` and the log of a reload.

use bytesize::ByteSize;
use slidegate::headers::ProblemType;
use slidegate::policy::{
    Condition, Mode, OnStoreError, Override, Rule, RuleCost, RuleLimit, RuleSettings, When,
    WhenMissing,
};
use slidegate::store::OnPartition;
use slidegate::{Algorithm, Align};

/// Describes a rule with its overrides, such as `counted per client`. Returns one line for each part of the rule.
pub fn describe_rule(rule: &Rule) -> Vec<String> {
    let mut lines = describe_base_rule(rule);
    for (index, other) in rule.overrides().iter().enumerate() {
        lines.push(format!("{}, {}", override_label(index, other), describe_override(other)));
    }
    lines
}

/// Describes a rule without its overrides. Returns one line for each part of the rule.
pub fn describe_base_rule(rule: &Rule) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(names) = rule.descriptor() {
        let names: Vec<&str> = names.collect();
        lines.push(format!("for descriptors with exactly {}, in this order", names.join(", ")));
    }
    if rule.when().conditions().next().is_some() {
        lines.push(format!("for requests whose {}", describe_conditions(rule.when())));
    }
    if rule.is_for_requested_limits() {
        lines.extend(describe_limits_from_requests(rule))
    } else {
        lines.push(describe_counter_key(rule));
        lines.extend(describe_rule_settings(rule.settings()));
    }
    lines.extend(rule.normalized_attributes().map(|(name, steps)| {
        let steps: Vec<&str> = steps.iter().map(|step| step.name()).collect();
        format!("{name} is normalized by {}", steps.join(", "))
    }));
    lines.extend(describe_costs(rule));
    if let Some(status) = rule.deny_status() {
        lines.push(format!("denied requests have status {status}"));
    }
    if rule.problem() == ProblemType::AbnormalUsageDetected {
        lines.push("denied requests have the problem type abnormal-usage-detected".into());
    }
    if !rule.is_in_headers() {
        lines.push("left out of rate limit headers".into());
    }
    match rule.on_store_error() {
        OnStoreError::Local => {}
        OnStoreError::Allow => {
            lines.push("while the store is unavailable, all requests pass".into())
        }
        OnStoreError::Deny => {
            lines.push("while the store is unavailable, no request passes".into())
        }
    }
    lines.extend(describe_redis_options(rule));
    lines.extend(describe_cluster_options(rule));
    lines
}

/// Describes a rule that has no limits of its own. Such a rule enforces the limits that are sent in the descriptors of
/// requests.
fn describe_limits_from_requests(rule: &Rule) -> [String; 2] {
    let scope = "for descriptors that contain a limit, in place of all other rules".into();
    let mode = match rule.settings().mode() {
        Mode::Enforce => "counted per all attributes",
        Mode::Off => "switched off",
        Mode::Jointly => "counted per all attributes; denies if no joint limit fits",
        Mode::Observe | Mode::EnforceFor(_) => "counted per all attributes; only observes",
    };
    [scope, mode.into()]
}

/// Describes the condition and the limits of an override, such as `if plan is pro: …`.
pub fn describe_override(other: &Override) -> String {
    let settings = describe_rule_settings(other.settings()).join("; ");
    format!("if {}: {settings}", describe_conditions(other.when()))
}

/// Returns the name of an override, such as ``override `pro` ``, or its position from 1 if it has no name.
pub fn override_label(index: usize, other: &Override) -> String {
    match other.name() {
        Some(name) => format!("override `{name}`"),
        None => format!("override {}", index + 1),
    }
}

/// Describes the conditions in the `when` of a rule or override, such as ``plan is `pro`, and whose ip is `10.0.0.0/8`
/// ``.
pub fn describe_conditions(when: &When) -> String {
    let conditions = when.conditions().map(|(name, condition)| format!("{name} is {condition}"));
    conditions.collect::<Vec<_>>().join(", and whose ")
}

/// Describes the values that a condition requires, such as ``must be `a` or `b` ``.
pub fn describe_expected_value(condition: &Condition) -> String {
    let condition = condition.to_string();
    match condition.strip_prefix("not ") {
        Some(excluded) => format!("must not be {excluded}"),
        None => format!("must be {condition}"),
    }
}

/// Describes the attributes by which a rule counts, such as `counted per client`.
fn describe_counter_key(rule: &Rule) -> String {
    let entries = rule.per().entries();
    if entries.is_empty() {
        return "one counter for all requests".into();
    }
    let names = entries.iter().map(|entry| entry.names().collect::<Vec<_>>().join(", or else "));
    let missing = match rule.when_missing() {
        WhenMissing::Skip => "without it the rule does not apply",
        WhenMissing::Deny => "without it requests are denied",
    };
    let prefix = match rule.per().ipv6_prefix() {
        64 => String::new(),
        bits => format!("; IPv6 by /{bits}"),
    };
    format!("counted per {}; {missing}{prefix}", names.collect::<Vec<_>>().join(" and "))
}

/// Describes the settings of a rule for costs and charges. Omits settings that have the default value.
fn describe_costs(rule: &Rule) -> Vec<String> {
    let cost = match rule.cost() {
        RuleCost::Request => None,
        RuleCost::Constant(1) => Some("each request costs 1 unit".to_owned()),
        RuleCost::Constant(cost) => Some(format!("each request costs {cost} units")),
        RuleCost::Named(name) => {
            Some(format!("costs `{name}`; a request without it is checked, not charged"))
        }
    };
    let required = match rule.required() {
        0 => Some("a request of cost 0 fits unless the counter is above max".to_owned()),
        1 => None,
        units => Some(format!("at least {units} units must be free")),
    };
    let always =
        rule.charges_always().then(|| "denied requests are charged too, above max".to_owned());
    [cost, required, always].into_iter().flatten().collect()
}

fn describe_redis_options(rule: &Rule) -> Option<String> {
    let redis = rule.redis()?;
    let slot_by: Vec<String> =
        redis.slot_by().iter().map(|&index| rule.per().entries()[index].to_string()).collect();
    let slot = (!slot_by.is_empty()).then(|| format!("hash slot by {}", slot_by.join(" and ")));
    let split = redis.split_into().map(|parts| {
        let by: Vec<&str> = redis.split_by().collect();
        format!("each counter is split into {parts}, by {}", by.join(" and "))
    });
    let sample = match redis.sample().get() {
        1 => None,
        rate => Some(format!("one request in {rate} is counted, at {rate} times its cost")),
    };
    let options: Vec<String> = [slot, split, sample].into_iter().flatten().collect();
    Some(format!("in Redis: {}", options.join("; ")))
}

fn describe_cluster_options(rule: &Rule) -> Option<String> {
    let cluster = rule.cluster()?;
    let max_unsynced = cluster.max_unsynced().map(|units| {
        format!("a node allows at most {units} units per counter that are not yet replicated to all nodes")
    });
    let partition = match cluster.on_partition() {
        OnPartition::Bounded => None,
        OnPartition::Available => Some("a node does not wait for silent nodes".to_owned()),
    };
    let options: Vec<String> = [max_unsynced, partition].into_iter().flatten().collect();
    (!options.is_empty()).then(|| format!("in a cluster: {}", options.join("; ")))
}

/// Describes the maximum memory that one key needs for all limits of a rule. Returns `None` if the rule has no counters
/// of its own.
pub fn describe_max_memory(rule: &Rule) -> Option<String> {
    let bytes = |settings: &RuleSettings| match settings.mode() {
        Mode::Off => 0,
        _ => {
            let limits = settings.limits().iter().map(|rule_limit| rule_limit.limit());
            let counted = limits.filter(|limit| limit.capacity() > 0);
            counted.map(|limit| limit.max_state_bytes()).sum::<usize>()
        }
    };
    let overrides = rule.overrides().iter().map(|other| bytes(other.settings()));
    let max_bytes = overrides.fold(bytes(rule.settings()), usize::max);
    let size = ByteSize::b(max_bytes as u64).display().si();
    (max_bytes > 0).then(|| format!("at most {size} for each key in memory"))
}

fn describe_rule_settings(settings: &RuleSettings) -> Vec<String> {
    let mode = match settings.mode() {
        Mode::Off => return vec!["switched off".into()],
        Mode::Enforce => None,
        Mode::Jointly => Some("denies only if no joint limit fits".to_owned()),
        Mode::Observe => Some("only observes: never denies".to_owned()),
        Mode::EnforceFor(share) => {
            Some(format!("denies for {share} of the keys, and observes the rest"))
        }
    };
    match settings.limits() {
        [] => vec!["everything passes".into()],
        limits => {
            let limits = limits.iter().map(describe_limit);
            limits.chain(mode).collect()
        }
    }
}

fn describe_limit(rule_limit: &RuleLimit) -> String {
    let limit = rule_limit.limit();
    let quota = limit.quota();
    let (max, window) = (quota.max(), quota.window_text());
    if rule_limit.is_block_limit() {
        return format!("denies a key for {window} after it has exceeded a limit");
    }
    if limit.capacity() == 0 {
        return "nothing passes".into();
    }
    match limit.algorithm() {
        Algorithm::SlidingWindow { .. }
        | Algorithm::SlidingLog
        | Algorithm::SlidingBuckets { .. } => {
            format!("never more than {max} in any {window} ({limit})")
        }
        Algorithm::SlidingCounter => format!("about {max} in any {window} ({limit})"),
        Algorithm::FixedWindow { align: Align::Calendar(calendar) } => {
            format!("{max} in each {} in {} ({limit})", calendar.period(), calendar.time_zone())
        }
        Algorithm::FixedWindow { align } => {
            let alignment = match align {
                Align::Clock => " of the clock",
                Align::Key | Align::Calendar(_) => "",
            };
            format!(
                "{max} in each {window}{alignment}, up to twice that across two windows ({limit})"
            )
        }
        Algorithm::Concurrent => format!(
            "never more than {max} in flight; a permit expires after {window} unless it is renewed"
        ),
        Algorithm::TokenBucket { .. } => {
            let burst = limit.capacity();
            format!("{burst} at once, then {max} per {window} at a steady rate ({limit})")
        }
    }
}

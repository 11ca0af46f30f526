//! A policy in words, for `validate`, `explain` and the log of a reload.

use bytesize::ByteSize;
use slidegate::policy::{
    Condition, Mode, OnStoreError, Override, Rule, RuleSettings, When, WhenMissing,
};
use slidegate::{Algorithm, Align, Limit, OnPartition, RuleCost};

/// What a rule does, a line for each part.
pub fn rule(rule: &Rule) -> Vec<String> {
    let mut lines = own_terms(rule);
    for (nth, other) in rule.overrides().iter().enumerate() {
        lines.push(format!("{}, {}", override_name(nth, other), other_terms(other)));
    }
    lines
}

/// What a rule does where no override holds, a line for each part.
pub fn own_terms(rule: &Rule) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(names) = rule.descriptor() {
        let names: Vec<&str> = names.collect();
        lines.push(format!("for descriptors of exactly {}, in this order", names.join(", ")));
    }
    if rule.when().conditions().next().is_some() {
        lines.push(format!("for requests whose {}", when(rule.when())));
    }
    match rule.is_for_requested_limits() {
        true => lines.extend(requested(rule)),
        false => {
            lines.push(per(rule));
            lines.extend(settings(rule.settings()));
        }
    }
    lines.extend(charge(rule));
    if let Some(status) = rule.deny_status() {
        lines.push(format!("what it denies has the status {status}"));
    }
    match rule.on_store_error() {
        OnStoreError::Local => {}
        OnStoreError::Allow => lines.push("while the store does not answer, all pass".into()),
        OnStoreError::Deny => lines.push("while the store does not answer, none pass".into()),
    }
    lines.extend(redis(rule));
    lines.extend(cluster(rule));
    lines
}

/// What a rule does that has no limits of its own.
fn requested(rule: &Rule) -> [String; 2] {
    let own = "for limits that descriptors bring along, where no other rule applies".into();
    let watches = match rule.settings().mode() {
        Mode::Enforce => "counted per all attributes",
        Mode::Off => "switched off",
        Mode::Jointly => "counted per all attributes; denies if no joint limit fits",
        Mode::Observe | Mode::EnforceFor(_) => "counted per all attributes; only watches",
    };
    [own, watches.into()]
}

/// `if plan is pro: …`
pub fn other_terms(other: &Override) -> String {
    format!("if {}: {}", when(other.when()), settings(other.settings()).join("; "))
}

/// ``override `pro` ``, or by its place if it has no name.
pub fn override_name(nth: usize, other: &Override) -> String {
    match other.name() {
        Some(name) => format!("override `{name}`"),
        None => format!("override {}", nth + 1),
    }
}

/// ``plan is `pro` ``, and so on.
pub fn when(when: &When) -> String {
    let conditions = when.conditions().map(|(name, wanted)| format!("{name} is {wanted}"));
    conditions.collect::<Vec<_>>().join(", and whose ")
}

/// ``must be `a` or `b` ``
pub fn must(wanted: &Condition) -> String {
    let wanted = wanted.to_string();
    match wanted.strip_prefix("not ") {
        Some(unwanted) => format!("must not be {unwanted}"),
        None => format!("must be {wanted}"),
    }
}

fn per(rule: &Rule) -> String {
    let entries = rule.per().entries();
    if entries.is_empty() {
        return "all are counted as one".into();
    }
    let names = entries.iter().map(|entry| entry.names().collect::<Vec<_>>().join(", or else "));
    let missing = match rule.when_missing() {
        WhenMissing::Skip => "without it the rule does not apply",
        WhenMissing::Deny => "without it nothing passes",
    };
    let prefix = match rule.per().ipv6_prefix() {
        64 => String::new(),
        bits => format!("; IPv6 by /{bits}"),
    };
    format!("counted per {}; {missing}{prefix}", names.collect::<Vec<_>>().join(" and "))
}

/// Describes the charges of a rule, where they differ from the default.
fn charge(rule: &Rule) -> Vec<String> {
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

fn redis(rule: &Rule) -> Option<String> {
    let redis = rule.redis()?;
    let slot_by: Vec<String> =
        redis.slot_by().iter().map(|&place| rule.per().entries()[place].to_string()).collect();
    let slot = (!slot_by.is_empty())
        .then(|| format!("the hash slot is that of {}", slot_by.join(" and ")));
    let split = redis.split_into().map(|into| {
        let by: Vec<&str> = redis.split_by().collect();
        format!("each count is split into {into}, by {}", by.join(" and "))
    });
    let sample = match redis.sample().get() {
        1 => None,
        many => Some(format!("one request in {many} is counted, at {many} times its cost")),
    };
    let said: Vec<String> = [slot, split, sample].into_iter().flatten().collect();
    Some(format!("in Redis: {}", said.join("; ")))
}

fn cluster(rule: &Rule) -> Option<String> {
    let cluster = rule.cluster()?;
    let ahead = cluster.max_unsynced().map(|units| {
        format!("a node lets at most {units} of each count pass that not all others know of")
    });
    let silent = match cluster.on_partition() {
        OnPartition::Bounded => None,
        OnPartition::Available => Some("nodes that are silent are not waited for".to_owned()),
    };
    let said: Vec<String> = [ahead, silent].into_iter().flatten().collect();
    (!said.is_empty()).then(|| format!("in a cluster: {}", said.join("; ")))
}

/// Says how much memory a key of a rule takes at most, in all limits of the rule together. Nothing of a rule that counts
/// nothing of its own.
pub fn max_memory(rule: &Rule) -> Option<String> {
    let bytes = |settings: &RuleSettings| match settings.mode() {
        Mode::Off => 0,
        _ => {
            let counted = settings.limits().iter().map(|one| one.limit());
            let counted = counted.filter(|limit| limit.capacity() > 0);
            counted.map(|limit| limit.max_state_bytes()).sum::<usize>()
        }
    };
    let others = rule.overrides().iter().map(|other| bytes(other.settings()));
    let most = others.fold(bytes(rule.settings()), usize::max);
    let size = ByteSize::b(most as u64).display().si();
    (most > 0).then(|| format!("at most {size} for each key in memory"))
}

fn settings(settings: &RuleSettings) -> Vec<String> {
    let mode = match settings.mode() {
        Mode::Off => return vec!["switched off".into()],
        Mode::Enforce => None,
        Mode::Jointly => Some("denies only if no joint limit fits".to_owned()),
        Mode::Observe => Some("only watches: what does not fit passes all the same".to_owned()),
        Mode::EnforceFor(share) => {
            Some(format!("denies for {share} of the keys, and watches the rest"))
        }
    };
    match settings.limits() {
        [] => vec!["everything passes".into()],
        limits => limits.iter().map(|one| limit(one.limit())).chain(mode).collect(),
    }
}

fn limit(limit: &Limit) -> String {
    let quota = limit.quota();
    let (max, window) = (quota.max(), quota.window_text());
    if limit.capacity() == 0 {
        return "nothing passes".into();
    }
    match limit.algorithm() {
        Algorithm::SlidingLog | Algorithm::SlidingBuckets { .. } => {
            format!("never more than {max} in any {window} ({limit})")
        }
        Algorithm::SlidingWindow => format!("about {max} in any {window} ({limit})"),
        Algorithm::FixedWindow { align } => {
            let from = match align {
                Align::Key => "",
                Align::Clock => " of the clock",
            };
            format!("{max} in each {window}{from}, twice as many around its edge ({limit})")
        }
        Algorithm::TokenBucket { .. } => {
            format!(
                "{} at once, then {max} per {window} at a steady rate ({limit})",
                limit.capacity()
            )
        }
    }
}

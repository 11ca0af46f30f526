//! Which counts of a rule outlive its change. A count belongs to the rule, what it is counted per, and the
//! name and shape of the limit: algorithm, window, and how that is divided. Not to max or burst.

use slidegate::policy::{Override, Rule, RuleLimit, RuleSettings};

use super::override_key;

/// What becomes of the counts of limits that are not as they were; none if all are.
pub fn describe(old: &Rule, new: &Rule) -> Option<String> {
    let (before, after) = (key_attributes(old), key_attributes(new));
    if !after.iter().any(|one| before.contains(one)) {
        return Some("counters reset".into());
    }
    let mut told = Vec::new();
    let lost = |one: &&String| !before.contains(one);
    let reset: Vec<&str> = after.iter().filter(lost).map(String::as_str).collect();
    if !reset.is_empty() {
        told.push(format!("counts per {} begin anew", reset.join(" and per ")));
    }
    told.extend(describe_limits(old, new));
    if !new.per().entries().is_empty() && old.per().ipv6_prefix() != new.per().ipv6_prefix() {
        told.push("counts of IPv6 addresses begin anew".into());
    }
    if redis_placement(old) != redis_placement(new) {
        told.push("counts in Redis begin anew".into());
    }
    (!told.is_empty()).then(|| told.join(", "))
}

/// The limits of a rule as they are counted, in print.
pub fn counter_shapes(rule: &Rule) -> Vec<String> {
    let all = [rule.settings()].into_iter().chain(rule.overrides().iter().map(Override::settings));
    let limits = all.flat_map(RuleSettings::limits);
    limits.map(|limit| format!("`{}` counted as {}", limit.id(), shape(limit))).collect()
}

fn shape(limit: &RuleLimit) -> String {
    limit.limit().shape_text()
}

/// The names that are counted per, in each combination.
fn key_attributes(rule: &Rule) -> Vec<String> {
    rule.per().entries().iter().fold(vec![String::new()], |before, entry| {
        let with = |before: &String| {
            let comma = if before.is_empty() { "" } else { ", " };
            let before = format!("{before}{comma}");
            entry.names().map(move |name| format!("{before}{name}"))
        };
        before.iter().flat_map(with).collect()
    })
}

/// What chooses the key in Redis, beside who is counted.
fn redis_placement(rule: &Rule) -> (Vec<usize>, Option<u32>, Vec<String>) {
    let Some(redis) = rule.redis() else { return Default::default() };
    let by = redis.split_by().map(ToOwned::to_owned).collect();
    (redis.slot_by().to_vec(), redis.split_into().map(Into::into), by)
}

fn describe_limits(old: &Rule, new: &Rule) -> Option<String> {
    let mut changes = LimitCounterChanges::default();
    changes.settings(old.settings(), new.settings());
    for other in new.overrides() {
        // Whom a new override is for, the rule's own terms were for.
        let before =
            old.overrides().iter().find(|before| override_key(before) == override_key(other));
        changes.settings(before.map_or(old.settings(), Override::settings), other.settings());
    }
    changes.told()
}

/// What was seen of limits, by their names, each once.
#[derive(Default)]
struct LimitCounterChanges {
    kept: Vec<String>,
    reset: Vec<String>,
    has_unchanged: bool,
}

impl LimitCounterChanges {
    fn settings(&mut self, old: &RuleSettings, new: &RuleSettings) {
        for limit in new.limits().iter().filter(|limit| limit.limit().capacity() > 0) {
            let same =
                |before: &&RuleLimit| (before.id(), shape(before)) == (limit.id(), shape(limit));
            let names = match old.limits().iter().find(same) {
                Some(before) if before.limit() == limit.limit() => {
                    self.has_unchanged = true;
                    continue;
                }
                Some(_) => &mut self.kept,
                None => &mut self.reset,
            };
            let name = format!("`{}`", limit.id());
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }

    fn told(self) -> Option<String> {
        let (kept, reset) = (self.kept.join(", "), self.reset.join(", "));
        match (kept.is_empty(), reset.is_empty()) {
            (true, true) => None,
            (false, true) => Some("counts go on".into()),
            (true, false) if !self.has_unchanged => Some("counters reset".into()),
            (true, false) => Some(format!("counts of {reset} begin anew")),
            (false, false) => Some(format!("counts of {kept} go on, of {reset} begin anew")),
        }
    }
}

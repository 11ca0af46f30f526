//! Describes the counters of a rule that a changed policy keeps or resets.
//!
//! A counter is identified by the rule, the attributes of its key, and the name and shape of its limit. The shape is
//! the algorithm, the window, and the precision or alignment. In a cluster, the shape of a `sliding_window` also has the
//! resolution. A change of the limit's maximum or burst keeps the counter, and so does a change of the resolution,
//! except in a cluster.

use slidegate::policy::{Override, Rule, RuleLimit, RuleSettings};

use super::override_identifier;

/// Describes the counters that a changed rule keeps or resets. Returns `None` if there is no effect to report, for
/// example if all limits are unchanged.
pub fn describe_counter_changes(old: &Rule, new: &Rule) -> Option<String> {
    let (before, after) = (key_attribute_lists(old), key_attribute_lists(new));
    if !after.iter().any(|names| before.contains(names)) {
        return Some("counters reset".into());
    }
    let mut effects = Vec::new();
    let is_new = |names: &&String| !before.contains(names);
    let reset: Vec<&str> = after.iter().filter(is_new).map(String::as_str).collect();
    if !reset.is_empty() {
        effects.push(format!("counters per {} reset", reset.join(" and per ")));
    }
    effects.extend(describe_limit_counter_changes(old, new));
    if !new.per().entries().is_empty() && old.per().ipv6_prefix() != new.per().ipv6_prefix() {
        effects.push("counters of IPv6 addresses reset".into());
    }
    if redis_key_settings(old) != redis_key_settings(new) {
        effects.push("counters in Redis reset".into());
    }
    (!effects.is_empty()).then(|| effects.join(", "))
}

/// Returns one text for each limit of a rule and of its overrides. The text has the name of the limit,
/// its algorithm and its window, for example `` `1s` counted as sliding_window:1s ``.
pub fn counter_shapes(rule: &Rule) -> Vec<String> {
    let settings =
        [rule.settings()].into_iter().chain(rule.overrides().iter().map(Override::settings));
    let limits = settings.flat_map(RuleSettings::limits);
    limits
        .map(|limit| format!("`{}` counted as {}", limit.id(), describe_counter_shape(limit)))
        .collect()
}

fn describe_counter_shape(limit: &RuleLimit) -> String {
    limit.limit().shape_text()
}

/// Returns the attribute names of a rule's key, separated by commas. The key may have alternatives: `per: [key|ip]`
/// results in one text for `key` and one for `ip`.
fn key_attribute_lists(rule: &Rule) -> Vec<String> {
    rule.per().entries().iter().fold(vec![String::new()], |before, entry| {
        let append_names = |before: &String| {
            let comma = if before.is_empty() { "" } else { ", " };
            let before = format!("{before}{comma}");
            entry.names().map(move |name| format!("{before}{name}"))
        };
        before.iter().flat_map(append_names).collect()
    })
}

/// Returns the settings of a rule that are part of its keys in Redis, in addition to the key attributes: `slot_by`,
/// `split_into` and `split_by`.
fn redis_key_settings(rule: &Rule) -> (Vec<usize>, Option<u32>, Vec<String>) {
    let Some(redis) = rule.redis() else { return Default::default() };
    let split_by = redis.split_by().map(ToOwned::to_owned).collect();
    (redis.slot_by().to_vec(), redis.split_into().map(Into::into), split_by)
}

fn describe_limit_counter_changes(old: &Rule, new: &Rule) -> Vec<String> {
    let mut changes = LimitCounterChanges::default();
    changes.add_limit_changes(old.settings(), new.settings());
    for new_override in new.overrides() {
        // Requests that match a new override used the settings of the rule before.
        let before = old
            .overrides()
            .iter()
            .find(|before| override_identifier(before) == override_identifier(new_override));
        changes.add_limit_changes(
            before.map_or(old.settings(), Override::settings),
            new_override.settings(),
        );
    }
    changes.describe()
}

/// The names of the limits whose counters a changed rule keeps or resets. Each name is listed once in each list.
#[derive(Default)]
struct LimitCounterChanges {
    kept: Vec<String>,
    /// The limits in `kept` whose counters are reset in a cluster.
    reset_in_cluster: Vec<String>,
    reset: Vec<String>,
    has_unchanged: bool,
}

impl LimitCounterChanges {
    fn add_limit_changes(&mut self, old: &RuleSettings, new: &RuleSettings) {
        for limit in new.limits().iter().filter(|limit| limit.limit().capacity() > 0) {
            let has_same_counter = |before: &&RuleLimit| {
                (before.id(), describe_counter_shape(before))
                    == (limit.id(), describe_counter_shape(limit))
            };
            match old.limits().iter().find(has_same_counter) {
                Some(before) if before.limit() == limit.limit() => self.has_unchanged = true,
                Some(before) => {
                    add_limit_name(&mut self.kept, limit);
                    if before.limit().cluster_shape() != limit.limit().cluster_shape() {
                        add_limit_name(&mut self.reset_in_cluster, limit);
                    }
                }
                None => add_limit_name(&mut self.reset, limit),
            }
        }
    }

    fn describe(&self) -> Vec<String> {
        self.describe_kept_and_reset().into_iter().chain(self.describe_reset_in_cluster()).collect()
    }

    fn describe_reset_in_cluster(&self) -> Option<String> {
        let are_all_limits_reset =
            self.reset_in_cluster == self.kept && self.reset.is_empty() && !self.has_unchanged;
        match self.reset_in_cluster.join(", ").as_str() {
            "" => None,
            _ if are_all_limits_reset => Some("counters in a cluster reset".into()),
            names => Some(format!("counters of {names} in a cluster reset")),
        }
    }

    fn describe_kept_and_reset(&self) -> Option<String> {
        let (kept, reset) = (self.kept.join(", "), self.reset.join(", "));
        match (kept.is_empty(), reset.is_empty()) {
            (true, true) => None,
            (false, true) => Some("counters kept".into()),
            (true, false) if !self.has_unchanged => Some("counters reset".into()),
            (true, false) => Some(format!("counters of {reset} reset")),
            (false, false) => Some(format!("counters of {kept} kept, of {reset} reset")),
        }
    }
}

/// Adds the name of a limit to a list of names, unless the list contains it.
fn add_limit_name(names: &mut Vec<String>, limit: &RuleLimit) {
    let name = format!("`{}`", limit.id());
    if !names.contains(&name) {
        names.push(name);
    }
}

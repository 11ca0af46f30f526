//! The budgets of the denial log. Each rule has two of them, for enforced and for observed denials, so that a flood of
//! one rule hides no denial of another one.
//!
//! A denial above the budget is counted with its key. The next line of the rule reports these denials, or a line of
//! their own if the rule denies nothing more.

use std::fmt::{self, Write};
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::Mutex;
use slidegate::Timestamp;
use slidegate::policy::Match;

use super::decision_log::redacted_key;
use super::log_throttle::LogThrottle;
use super::redact::Redactor;
use super::top::summary::{MergedSummary, Summary, TopEntry};

/// Maximum number of keys for which a budget counts the denials that were not logged.
const MAX_UNLOGGED_KEYS: usize = 8;

/// The budgets of all rules of a policy, indexed by rule.
#[derive(Default)]
pub struct DenialLogBudgets {
    /// The budgets are created at the first denial, because most rules of a large policy deny nothing.
    rules: Box<[RuleLogBudgets]>,
    secret: foldhash::quality::RandomState,
}

/// The budgets of one rule, for enforced and observed denials.
#[derive(Default)]
struct RuleLogBudgets {
    enforced: OnceLock<Box<DenialLogBudget>>,
    observed: OnceLock<Box<DenialLogBudget>>,
}

struct DenialLogBudget {
    throttle: LogThrottle,
    unlogged: Mutex<Summary<String>>,
}

/// The denials that were not logged since the last line of a rule.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct UnloggedDenials {
    /// The number of denials.
    pub count: u64,
    /// The keys with the most of these denials, such as `20 tenant=acme, 7 tenant=zen`. A number is an upper bound if
    /// there are more than [`MAX_UNLOGGED_KEYS`] keys. `None` if the rule has one key for all requests.
    pub keys: Option<String>,
}

impl DenialLogBudgets {
    /// Creates budgets for a policy with this number of rules.
    pub fn new(rules: usize) -> Self {
        let rules = (0..rules).map(|_| RuleLogBudgets::default()).collect();
        Self { rules, secret: foldhash::quality::RandomState::default() }
    }

    /// Takes a line from a budget of the rule. Returns the denials that were not logged since the last line, or `None` if
    /// the budget is used up; the denial then counts as not logged.
    pub fn try_take_log_line(
        &self,
        rule_match: &Match<'_>,
        is_observed: bool,
        (max_per_second, redactor): (u16, &Redactor),
        now: Timestamp,
    ) -> Option<UnloggedDenials> {
        let budget = self
            .rules
            .get(rule_match.rule_index())?
            .budget(is_observed)
            .get_or_init(|| Box::new(DenialLogBudget::new(max_per_second)));
        if budget.throttle.try_acquire(now).is_some() {
            return Some(budget.take_unlogged_denials());
        }
        let mut hasher = self.secret.build_hasher();
        rule_match.identity().for_each(|pair| pair.hash(&mut hasher));
        let write_label = |label: &mut String| {
            label.clear();
            // Writing to a string cannot fail.
            let _ = write!(label, "{}", redacted_key(redactor, rule_match));
        };
        let can_grow = |keys| keys < MAX_UNLOGGED_KEYS;
        budget.unlogged.lock().add(hasher.finish(), 1, can_grow, write_label);
        None
    }

    /// Takes the denials that were not logged: the index of each rule with such denials, whether it only observed them,
    /// and the denials.
    pub fn take_unlogged_denials(&self) -> impl Iterator<Item = (usize, bool, UnloggedDenials)> {
        let of_rule = |(index, rule): (usize, &RuleLogBudgets)| {
            [false, true].map(|is_observed| {
                let budget = rule.budget(is_observed).get();
                (
                    index,
                    is_observed,
                    budget.map(|it| it.take_unlogged_denials()).unwrap_or_default(),
                )
            })
        };
        let all = self.rules.iter().enumerate().flat_map(of_rule);
        all.filter(|(_, _, unlogged)| unlogged.count > 0)
    }
}

impl RuleLogBudgets {
    fn budget(&self, is_observed: bool) -> &OnceLock<Box<DenialLogBudget>> {
        if is_observed { &self.observed } else { &self.enforced }
    }
}

impl DenialLogBudget {
    fn new(max_per_second: u16) -> Self {
        let throttle = LogThrottle::new(max_per_second, Duration::from_secs(1));
        Self { throttle, unlogged: Mutex::default() }
    }

    fn take_unlogged_denials(&self) -> UnloggedDenials {
        let summary = std::mem::take(&mut *self.unlogged.lock());
        let merged = MergedSummary::from(&summary);
        let entries = merged.top_entries();
        let has_keys = entries.iter().any(|entry| !entry.label.is_empty());
        let keys = has_keys.then(|| fmt::from_fn(|f| write_keys(f, &entries)).to_string());
        UnloggedDenials { count: merged.total(), keys }
    }
}

/// Writes the number of denials of each key before the key. No key contains a comma followed by a space, so this
/// separator is unambiguous.
fn write_keys(f: &mut fmt::Formatter<'_>, entries: &[TopEntry<&String>]) -> fmt::Result {
    for (index, TopEntry { label, count, .. }) in entries.iter().enumerate() {
        write!(f, "{}{count} {label}", if index > 0 { ", " } else { "" })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use slidegate::{Descriptor, Policy, Request};

    use super::*;

    const POLICY: &str = "
rules:
  - { name: each, per: [tenant], limits: [1/s] }
  - { name: all, limits: [1/s] }
";

    /// Takes a line of the rule with this index for a denial of a tenant, with one line per second and budget.
    fn take_line(
        budgets: &DenialLogBudgets,
        rule: usize,
        tenant: &str,
        is_observed: bool,
        at_s: u64,
    ) -> Option<UnloggedDenials> {
        let policy = Policy::from_yaml(POLICY).unwrap();
        let request = Request::new("default", Descriptor::new([("tenant", tenant)]));
        let matched = policy.apply(&request);
        let rule_match = matched.matches().find(|found| found.rule_index() == rule).unwrap();
        let settings = (1, &Redactor::default());
        budgets.try_take_log_line(rule_match, is_observed, settings, Timestamp::from_secs(at_s))
    }

    fn unlogged(count: u64, keys: &str) -> UnloggedDenials {
        UnloggedDenials { count, keys: (!keys.is_empty()).then(|| keys.to_owned()) }
    }

    #[test]
    fn flood_of_one_budget_leaves_others() {
        let budgets = DenialLogBudgets::new(2);
        assert_eq!(take_line(&budgets, 0, "a", true, 1), Some(unlogged(0, "")));
        (0..100).for_each(|_| assert_eq!(take_line(&budgets, 0, "a", true, 1), None));
        assert_eq!(take_line(&budgets, 0, "a", false, 1), Some(unlogged(0, "")));
        assert_eq!(take_line(&budgets, 1, "a", true, 1), Some(unlogged(0, "")));
        assert_eq!(take_line(&budgets, 1, "a", true, 1), None);
        assert_eq!(take_line(&budgets, 0, "b", true, 2), Some(unlogged(100, "100 tenant=a")));
        assert_eq!(take_line(&budgets, 1, "a", true, 2), Some(unlogged(1, "")));
    }

    #[test]
    fn unlogged_denials_are_reported_once_with_their_keys() {
        let budgets = DenialLogBudgets::new(2);
        for tenant in ["a", "b, 9 tenant=c", "a", "a"] {
            take_line(&budgets, 0, tenant, false, 1);
        }
        take_line(&budgets, 1, "a", true, 1);
        take_line(&budgets, 1, "a", true, 1);
        let reported: Vec<_> = budgets.take_unlogged_denials().collect();
        let keys = "2 tenant=a, 1 tenant=b%2C 9 tenant=c";
        assert_eq!(reported, [(0, false, unlogged(3, keys)), (1, true, unlogged(1, ""))]);
        assert_eq!(budgets.take_unlogged_denials().count(), 0);
        assert_eq!(take_line(&budgets, 0, "a", false, 2), Some(unlogged(0, "")));
    }

    #[test]
    fn many_unlogged_keys_are_bounded_and_counted() {
        let budgets = DenialLogBudgets::new(1);
        for nth in 0..1_001 {
            take_line(&budgets, 0, &nth.to_string(), false, 1);
        }
        let [(_, _, unlogged)] = &budgets.take_unlogged_denials().collect::<Vec<_>>()[..] else {
            panic!("one rule")
        };
        assert_eq!(unlogged.count, 1_000);
        assert_eq!(unlogged.keys.as_ref().unwrap().split(", ").count(), MAX_UNLOGGED_KEYS);
    }
}

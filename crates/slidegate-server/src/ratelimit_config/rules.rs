//! Makes rules of descriptors: a rule for each limit, which is for the descriptors that the reference server's
//! walk through the tree would lead to it.
//!
//! The walk takes one step for each entry of a descriptor, and never goes back: an exact value goes before
//! wildcards in their order, and these before the key alone. A rule knows nothing of others, so it says itself
//! for which values another branch is taken: there it is off.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::path::Path;

use slidegate::{Limit, MAX_UNITS, Quota};

use super::Counting;
use super::entries::{DescriptorEntry, DomainEntry, LimitEntry, QuotaEntry};
use super::finding::{Findings, SourcePosition};
use super::names::Names;
use super::values;

/// Values that all rules of a domain may name for which they are off: about as many as a policy may have.
const MAX_ELSEWHERE: usize = 500_000;

/// A rule of a policy, of a domain.
#[derive(Debug)]
pub struct Rule {
    pub name: String,
    /// What the names of the attributes have to be.
    pub descriptor: Vec<String>,
    pub when: Vec<(String, Values)>,
    pub per: Vec<String>,
    pub terms: Terms,
    pub mode: Mode,
    /// Names of rules.
    pub replaces: Vec<String>,
    /// Where it does not hold, since another branch is taken.
    pub off: Vec<(String, Values)>,
}

/// What holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terms {
    Unlimited,
    /// So many in each window.
    Quota(u64, &'static str),
}

/// The mode of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Enforce,
    /// `quota_mode`: denies if no limit in this mode fits.
    Jointly,
    /// `shadow_mode`
    Observe,
}

/// What an attribute has to be: one of some values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Values {
    pub literals: Vec<String>,
    pub wildcards: Vec<String>,
}

/// The rules of a domain.
pub fn of_domain(
    path: &Path,
    domain: &DomainEntry,
    counting: Counting,
    findings: &mut Findings,
) -> Vec<Rule> {
    let mut making = Making { path, counting, findings, made: Vec::new(), elsewhere: 0 };
    making.level(&domain.descriptors, &mut Vec::new());
    let made = making.made;
    let mut names = Names::new();
    names.give(made.iter().map(|one| (&*one.limit.name, &*one.path_text)));
    let mut carriers: HashMap<&str, Vec<&str>> = HashMap::new();
    for (one, name) in made.iter().zip(names.given()) {
        // What is unlimited stays so.
        if one.limit.quota.is_some() && !one.limit.name.is_empty() {
            carriers.entry(&one.limit.name).or_default().push(name);
        }
    }
    let rules = made.iter().zip(names.given()).map(|(one, name)| {
        let mut replaces = BTreeSet::new();
        for (place, replaced) in &one.limit.replaces {
            match carriers.get(&**replaced) {
                Some(names) => replaces.extend(names.iter().map(|name| (*name).to_owned())),
                None => {
                    let message = format_args!(
                        "`{replaced}` is the name of no limit of this domain: to replace it has no effect"
                    );
                    findings.note(path, *place, message);
                }
            }
        }
        one.rule(name, replaces.into_iter().collect())
    });
    rules.collect()
}

/// One step of a path through the tree.
#[derive(Clone, Debug)]
struct Step<'e> {
    /// The name of the attribute.
    name: String,
    entry: &'e DescriptorEntry,
    /// The values for which another branch is taken.
    elsewhere: Values,
}

/// A limit, and the path to it.
struct Made<'e> {
    limit: &'e LimitEntry,
    steps: Vec<Step<'e>>,
    path_text: String,
    terms: Terms,
    mode: Mode,
}

struct Making<'f, 'e> {
    path: &'f Path,
    counting: Counting,
    findings: &'f mut Findings,
    made: Vec<Made<'e>>,
    /// Values that are named for which rules are off.
    elsewhere: usize,
}

impl<'e> Making<'_, 'e> {
    /// All limits of a list of descriptors, and below it.
    fn level(&mut self, siblings: &'e [DescriptorEntry], before: &mut Vec<Step<'e>>) {
        for (nth, entry) in siblings.iter().enumerate() {
            if !self.can_be_said(entry) {
                continue;
            }
            let name = attribute_name(&entry.key, before);
            before.push(Step { name, entry, elsewhere: elsewhere(siblings, nth) });
            if let Some(limit) = &entry.limit {
                self.make(limit, before);
            }
            self.level(&entry.descriptors, before);
            before.pop();
        }
    }

    fn make(&mut self, limit: &'e LimitEntry, steps: &[Step<'e>]) {
        let Some(Step { entry, .. }) = steps.last() else { return };
        let mode = match (entry.shadow, entry.quota) {
            (false, None) => Mode::Enforce,
            (false, Some(_)) => Mode::Jointly,
            (true, None) => Mode::Observe,
            (true, Some(place)) => {
                let message = "cannot be expressed: with `quota_mode` and `shadow_mode`, the reference server lets each request of this descriptor pass all its quotas; write one of the two";
                self.findings.wrong(self.path, place, message);
                return;
            }
        };
        let Some(terms) = self.terms(limit) else { return };
        let before = self.elsewhere;
        self.elsewhere += steps.iter().map(|step| step.elsewhere.len()).sum::<usize>();
        if self.elsewhere > MAX_ELSEWHERE {
            if before <= MAX_ELSEWHERE {
                let message = "cannot be expressed: too many values go before others in this file";
                self.findings.wrong(self.path, entry.place, message);
            }
            return;
        }
        self.made.push(Made {
            limit,
            steps: steps.to_vec(),
            path_text: path_text(steps),
            terms,
            mode,
        });
    }

    fn terms(&mut self, limit: &LimitEntry) -> Option<Terms> {
        let Some(QuotaEntry { place, max, unit }) = limit.quota else {
            return Some(Terms::Unlimited);
        };
        let (max, counted) = (u64::from(max), u64::from(max).min(MAX_UNITS));
        if max > MAX_UNITS && !self.too_many(place, max, unit.is_short) {
            return None;
        }
        match self.counting.check(counted, unit.window) {
            Ok(()) => Some(Terms::Quota(counted, unit.window)),
            Err(wrong) => {
                self.findings.wrong(self.path, place, wrong);
                None
            }
        }
    }

    /// Whether more can be left out than is counted.
    fn too_many(&mut self, place: SourcePosition, max: u64, is_short: bool) -> bool {
        if is_short {
            let message =
                format_args!("{max} is more than is counted here: {MAX_UNITS} holds instead");
            self.findings.note(self.path, place, message);
        } else {
            let message = format_args!(
                "cannot be expressed: {max} is more than the {MAX_UNITS} that are counted here: write less, or `unlimited: true`"
            );
            self.findings.wrong(self.path, place, message);
        }
        is_short
    }

    /// Whether a policy can say the key and value of a descriptor.
    fn can_be_said(&mut self, entry: &DescriptorEntry) -> bool {
        let DescriptorEntry { place, key, value, value_place, .. } = entry;
        // Told already.
        if key.is_empty() {
            return false;
        }
        let counted_apart = (value.is_empty() || value.contains('*')) && !entry.shared;
        let wrong = if key.contains('*') {
            "a key with `*` cannot be expressed: `*` may stand in values"
        } else if key.len() > 128 {
            "cannot be expressed: a key has at most 128 bytes here"
        } else if is_repetition(key) {
            "cannot be expressed: a key does not end in `#` and a number here, which is how the second entry of one key is called"
        } else if key.starts_with("header.") && key.bytes().any(|byte| byte.is_ascii_uppercase()) {
            "cannot be expressed: what begins with `header.` is lower-case here"
        } else if key.trim() != key {
            "cannot be expressed: a key has no space around it here"
        } else if counted_apart && key.contains('|') {
            "cannot be expressed: a key whose values are counted apart has no `|` here"
        } else {
            ""
        };
        if !wrong.is_empty() {
            self.findings.wrong(self.path, *place, wrong);
        }
        let networks = value.contains('*') && values::is_like_network(value);
        if networks {
            let message = "cannot be expressed: a value that begins with an address and `/` is a network here, and has no `*`";
            self.findings.wrong(self.path, *value_place, message);
        }
        wrong.is_empty() && !networks
    }
}

impl Counting {
    /// Sees that a quota can be counted so, by the algorithm and by the store.
    fn check(&self, max: u64, window: &str) -> Result<(), String> {
        let unsaid = |error: &dyn fmt::Display| format!("cannot be expressed: {error}");
        let quota: Quota = format!("{max}/{window}").parse().map_err(|error| unsaid(&error))?;
        let limit = Limit::new(quota, self.algorithm).map_err(|error| unsaid(&error))?;
        (self.supports)(&limit).map_err(|why| format!("{why} (--ratelimit-algorithm)"))
    }
}

impl Made<'_> {
    fn rule(&self, name: &str, replaces: Vec<String>) -> Rule {
        let fixed = self.steps.iter().filter(|step| !step.entry.value.is_empty());
        let apart = self.steps.iter().filter(|step| step.is_counted_apart());
        let off = self.steps.iter().filter(|step| step.elsewhere.len() > 0);
        Rule {
            name: name.to_owned(),
            descriptor: self.steps.iter().map(|step| step.name.clone()).collect(),
            when: fixed.map(|step| (step.name.clone(), Values::of(&step.entry.value))).collect(),
            per: apart.map(|step| step.name.clone()).collect(),
            terms: self.terms,
            mode: self.mode,
            replaces,
            off: off.map(|step| (step.name.clone(), step.elsewhere.clone())).collect(),
        }
    }
}

impl Step<'_> {
    /// Whether each of its values has counts of its own. Of an exact one there is only one.
    fn is_counted_apart(&self) -> bool {
        let DescriptorEntry { value, shared, .. } = self.entry;
        value.is_empty() || (value.contains('*') && !shared)
    }
}

impl Values {
    fn of(value: &str) -> Self {
        let mut values = Self::default();
        values.add(value);
        values
    }

    fn add(&mut self, value: &str) {
        let list = if value.contains('*') { &mut self.wildcards } else { &mut self.literals };
        list.push(value.to_owned());
    }

    fn len(&self) -> usize {
        self.literals.len() + self.wildcards.len()
    }
}

/// The values for which not this one of some siblings is taken, although it would have them.
fn elsewhere(siblings: &[DescriptorEntry], nth: usize) -> Values {
    let entry = &siblings[nth];
    let mut elsewhere = Values::default();
    let is_bare = entry.value.is_empty();
    if !is_bare && !entry.value.contains('*') {
        return elsewhere;
    }
    let others = siblings.iter().enumerate();
    for (place, other) in others.filter(|(place, other)| *place != nth && other.key == entry.key) {
        let is_wildcard = other.value.contains('*');
        let goes_before = match (is_bare, is_wildcard) {
            (true, _) => !other.value.is_empty(),
            (false, true) => place < nth && values::may_overlap(&entry.value, &other.value),
            (false, false) => {
                !other.value.is_empty() && values::matches(&entry.value, &other.value)
            }
        };
        if goes_before {
            elsewhere.add(&other.value);
        }
    }
    elsewhere
}

/// The n-th entry of one key is called `key#n`.
fn attribute_name(key: &str, before: &[Step<'_>]) -> String {
    match before.iter().filter(|step| step.entry.key == key).count() {
        0 => key.to_owned(),
        times => format!("{key}#{}", times + 1),
    }
}

/// `key#2`
fn is_repetition(key: &str) -> bool {
    key.rsplit_once('#').is_some_and(|(_, number)| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// `plan_free.user`
fn path_text(steps: &[Step<'_>]) -> String {
    let texts = steps.iter().map(|Step { entry, .. }| match &*entry.value {
        "" => entry.key.clone(),
        value => format!("{}_{value}", entry.key),
    });
    texts.collect::<Vec<_>>().join(".")
}

//! Makes terms for Redis of what a policy file says of them.

use std::collections::HashSet;
use std::fmt;

use super::compile::Compiler;
use super::deserialize::Field;
use super::spec::{RuleSpec, SplitSpec};
use super::suggest::not_one_of;
use super::{MAX_SPLIT_BY, SourceSpan};
use crate::limit::Limit;
use crate::policy::mode::Share;
use crate::policy::per::Per;
use crate::policy::redis::RuleRedis;
use crate::redis_options::RedisOptions;

impl Compiler<'_> {
    /// What the rule says to Redis; whether its limits bear that, each of them is asked.
    pub(super) fn redis(&mut self, rule: &RuleSpec, per: &Per) -> Option<RuleRedis> {
        let (entry, at) = rule.redis.given()?;
        if entry.slot_by.is_absent() && entry.split.is_absent() && entry.sample.is_absent() {
            let message =
                "`redis` is empty: give it `slot_by`, `split` or `sample`, or leave it out";
            self.wrong(at, message);
        }
        // What nothing fits can be split and sampled as one likes.
        let mut settings = RedisOptions::new(&Limit::denied());
        if let Some((into, at)) = self.split_into(&entry.split) {
            settings = self.or_wrong(at, settings.clone().with_split(into)).unwrap_or(settings);
        }
        if let Some((many, at)) = self.sample(&entry.sample) {
            settings = self.or_wrong(at, settings.clone().with_sample(many)).unwrap_or(settings);
        }
        if let Some((places, at)) = self.slot_by(&entry.slot_by, rule, per) {
            settings =
                self.or_wrong(at, settings.clone().with_slot_by(&places)).unwrap_or(settings);
        }
        let split_by = entry.split.get().map(|split| self.split_by(split, per));
        Some(RuleRedis { settings, split_by: split_by.unwrap_or_default() })
    }

    /// The places in `per`, unless one of the entries is wrong.
    fn slot_by(
        &mut self,
        slot_by: &Field<Vec<Field<String>>>,
        rule: &RuleSpec,
        per: &Per,
    ) -> Option<(Vec<usize>, SourceSpan)> {
        let (entries, at) = slot_by.given()?;
        let known: Vec<String> = per.entries().iter().map(ToString::to_string).collect();
        if known.is_empty() {
            // A `per` that is wrong has been told.
            if rule.per.get().is_none_or(Vec::is_empty) && !entries.is_empty() {
                self.wrong(
                    at,
                    "`slot_by` chooses entries of `per`, and this rule has none: give it a `per`",
                );
            }
            return None;
        }
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        let places: Vec<Option<usize>> = entries
            .iter()
            .map(|entry| {
                let (text, at) = entry.given()?;
                let names: Vec<&str> = text.split('|').map(str::trim).collect();
                let text = names.join("|");
                let place = known.iter().position(|own| *own == text);
                if place.is_none() {
                    // What was meant is sought only if it is told.
                    let message = fmt::from_fn(|f| f.write_str(&not_one_of(&text, &known)));
                    self.wrong(at, message);
                }
                place
            })
            .collect();
        Some((places.into_iter().collect::<Option<_>>()?, at))
    }

    fn split_into(&mut self, split: &Field<SplitSpec>) -> Option<(u32, SourceSpan)> {
        let (entry, at) = split.given()?;
        for (absent, what) in
            [(entry.by.is_absent(), "by: [route]"), (entry.into.is_absent(), "into: 8")]
        {
            if absent {
                self.wrong(at, format_args!("a split needs `by` and `into`: add `{what}`"));
            }
        }
        let (&into, at) = entry.into.given()?;
        Some((into.try_into().unwrap_or(u32::MAX), at))
    }

    fn split_by(&mut self, split: &SplitSpec, per: &Per) -> Box<[Box<str>]> {
        let Some((names, at)) = split.by.given() else { return Box::default() };
        if names.is_empty() || names.len() > MAX_SPLIT_BY {
            self.wrong(at, format_args!("a split is by 1 to {MAX_SPLIT_BY} attributes"));
            return Box::default();
        }
        let mut known = HashSet::new();
        for (name, at) in names.iter().filter_map(Field::given) {
            self.attribute_name(name, at);
            if !known.insert(name.as_str()) {
                self.wrong(at, format_args!("`{name}` stands in `by` twice: take one away"));
            }
        }
        // Where the first of several names is present, the others are not asked.
        let counted: HashSet<&str> =
            per.entries().iter().filter_map(|entry| entry.names().next()).collect();
        if known.len() == names.len() && known.is_subset(&counted) {
            let message = "each count would have one part only, and its share of the limit: `by` needs an attribute that is not in `per`";
            self.wrong(at, message);
        }
        names.iter().filter_map(Field::get).map(|name| name.as_str().into()).collect()
    }

    fn sample(&mut self, sample: &Field<String>) -> Option<(u32, SourceSpan)> {
        let (text, at) = sample.given()?;
        let share: Share = self.or_wrong(at, text.parse())?;
        let many = share.one_in(RedisOptions::MAX_SAMPLE).map_err(|(nearest, many)| {
            format!(
                "a sample is one request in a whole number, from 2 to {}: the nearest to {share} is {nearest}, one in {many}",
                RedisOptions::MAX_SAMPLE
            )
        });
        Some((self.or_wrong(at, many)?, at))
    }
}

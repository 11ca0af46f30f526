//! Compiles the fields `redis` and `cluster` of a rule, which are options for some stores.

use std::collections::HashSet;
use std::fmt;

use super::bounds::MAX_SPLIT_ATTRIBUTES;
use super::compiler::Compiler;
use super::deserialize::Field;
use super::spec::{RuleSpec, SplitSpec};
use super::suggest::{missing_field_message, unknown_value_message};
use crate::cluster_options::ClusterOptions;
use crate::limit::Limit;
use crate::policy::error::SourceSpan;
use crate::policy::mode::Percentage;
use crate::policy::per::Per;
use crate::policy::redis::RuleRedisOptions;
use crate::redis_options::RedisOptions;

impl Compiler<'_> {
    /// Compiles the options of a rule for stores that count in a cluster. Returns `None` if the rule has no options, or
    /// after an error.
    pub(super) fn compile_cluster_options(&mut self, rule: &RuleSpec) -> Option<ClusterOptions> {
        let (spec, at) = rule.cluster.value_and_span()?;
        if spec.max_unsynced.is_absent() && spec.on_partition.is_absent() {
            let message =
                "`cluster` is empty; add `max_unsynced` or `on_partition`, or remove `cluster`";
            self.report(at, message);
        }
        let on_partition = spec.on_partition.get().copied().unwrap_or_default();
        let options = ClusterOptions::new().with_on_partition(on_partition);
        let Some((&units, at)) = spec.max_unsynced.value_and_span() else { return Some(options) };
        self.ok_or_report(at, options.with_max_unsynced(units))
    }

    /// Compiles the options of a rule for stores that count in Redis. Whether they are valid for each limit of the rule
    /// is checked later.
    pub(super) fn compile_redis_options(
        &mut self,
        rule: &RuleSpec,
        per: &Per,
    ) -> Option<RuleRedisOptions> {
        let (spec, at) = rule.redis.value_and_span()?;
        if spec.slot_by.is_absent() && spec.split.is_absent() && spec.sample.is_absent() {
            let message = "`redis` is empty; add `slot_by`, `split` or `sample`, or remove `redis`";
            self.report(at, message);
        }
        // The limits of the rule are not known yet. A limit that denies everything accepts any split and sample.
        let mut options = RedisOptions::new(&Limit::deny_all());
        if let Some((into, at)) = self.compile_split_into(&spec.split) {
            options = self.ok_or_report(at, options.clone().with_split(into)).unwrap_or(options);
        }
        if let Some((ratio, at)) = self.sampling_ratio_from_field(&spec.sample) {
            options = self.ok_or_report(at, options.clone().with_sample(ratio)).unwrap_or(options);
        }
        if let Some((indexes, at)) = self.compile_slot_by(&spec.slot_by, rule, per) {
            options =
                self.ok_or_report(at, options.clone().with_slot_by(&indexes)).unwrap_or(options);
        }
        let split_by = spec.split.get().map(|split| self.compile_split_by(split, per));
        Some(RuleRedisOptions { options, split_by: split_by.unwrap_or_default() })
    }

    /// Returns the entries that `slot_by` lists, as indexes into `per`, and the source position of `slot_by`. Returns
    /// `None` if `slot_by` is absent, or if one of its entries is invalid.
    fn compile_slot_by(
        &mut self,
        slot_by: &Field<Vec<Field<String>>>,
        rule: &RuleSpec,
        per: &Per,
    ) -> Option<(Vec<usize>, SourceSpan)> {
        let (entries, at) = slot_by.value_and_span()?;
        let known: Vec<String> = per.entries().iter().map(ToString::to_string).collect();
        if known.is_empty() {
            // If the rule has an invalid `per`, this has been reported, and a second error is not needed.
            if rule.per.get().is_none_or(Vec::is_empty) && !entries.is_empty() {
                self.report(
                    at,
                    "`slot_by` selects entries of `per`, but the rule has no `per`; add `per`",
                );
            }
            return None;
        }
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        let indexes: Vec<Option<usize>> = entries
            .iter()
            .map(|entry| {
                let (text, at) = entry.value_and_span()?;
                let names: Vec<&str> = text.split('|').map(str::trim).collect();
                let text = names.join("|");
                let index = known.iter().position(|entry| *entry == text);
                if index.is_none() {
                    // A message that is formatted on demand, because the search for the closest match is slow and the
                    // error may be dropped.
                    let message =
                        fmt::from_fn(|f| f.write_str(&unknown_value_message(&text, &known)));
                    self.report(at, message);
                }
                index
            })
            .collect();
        Some((indexes.into_iter().collect::<Option<_>>()?, at))
    }

    /// Returns the number of sub-keys in the field `split.into`, with its source position. Reports absent fields.
    fn compile_split_into(&mut self, split: &Field<SplitSpec>) -> Option<(u32, SourceSpan)> {
        let (spec, at) = split.value_and_span()?;
        for (is_absent, field) in
            [(spec.by.is_absent(), "by: [route]"), (spec.into.is_absent(), "into: 8")]
        {
            if is_absent {
                self.report(at, missing_field_message(field));
            }
        }
        let (&into, at) = spec.into.value_and_span()?;
        Some((into.try_into().unwrap_or(u32::MAX), at))
    }

    /// Returns the attribute names in the field `split.by`. Reports invalid names.
    fn compile_split_by(&mut self, split: &SplitSpec, per: &Per) -> Box<[Box<str>]> {
        let Some((names, at)) = split.by.value_and_span() else { return Box::default() };
        if names.is_empty() || names.len() > MAX_SPLIT_ATTRIBUTES {
            let message = format_args!(
                "`by` lists {} attributes; list 1 to {MAX_SPLIT_ATTRIBUTES}",
                names.len()
            );
            self.report(at, message);
            return Box::default();
        }
        let mut seen = HashSet::new();
        for (name, at) in names.iter().filter_map(Field::value_and_span) {
            self.report_invalid_attribute_name(name, at);
            if !seen.insert(name.as_str()) {
                self.report(at, format_args!("`{name}` is listed twice in `by`; remove one"));
            }
        }
        // Of alternatives such as `a|b`, only the first name is considered: if it is present, the others are not used.
        let counted_names: HashSet<&str> =
            per.entries().iter().filter_map(|alternatives| alternatives.names().next()).collect();
        if seen.len() == names.len() && seen.is_subset(&counted_names) {
            let message = "all attributes of `by` are in `per`, so each counter would use only one part and its share of the limit; add an attribute that is not in `per`";
            self.report(at, message);
        }
        names.iter().filter_map(Field::get).map(|name| name.as_str().into()).collect()
    }

    /// Converts a sampling percentage such as `10%` to `n`: one in `n` requests is sent to Redis.
    fn sampling_ratio_from_field(&mut self, sample: &Field<String>) -> Option<(u32, SourceSpan)> {
        let (text, at) = sample.value_and_span()?;
        let percentage: Percentage = self.ok_or_report(at, text.parse())?;
        let ratio = percentage.to_one_in_n(RedisOptions::MAX_SAMPLING_INTERVAL).map_err(|(nearest, ratio)| {
            format!(
                "{percentage} is not one in n requests, with n from 2 to {}; the nearest percentage is {nearest}, one in {ratio}",
                RedisOptions::MAX_SAMPLING_INTERVAL
            )
        });
        Some((self.ok_or_report(at, ratio)?, at))
    }
}

//! Compiles the field `block` of a rule: a time for which a key is denied once it has exceeded a limit of the rule.

use super::compiler::Compiler;
use super::limits::CompiledLimit;
use super::spec::block::BlockSpec;
use super::spec::{LimitsSpec, RuleSpec};
use crate::algorithm::Algorithm;
use crate::hit::Block;
use crate::limit::Limit;
use crate::policy::error::SourceSpan;
use crate::policy::mode::Mode;
use crate::quota::Quota;

/// The id of the limit that counts a block: one unit in the time of the block.
const KEY_BLOCK_LIMIT_ID: &str = "block";

/// The block of a rule: a limit of one unit in the time of the block.
pub(super) struct KeyBlockLimit {
    limit: Limit,
    extends: bool,
    at: SourceSpan,
}

impl Compiler<'_> {
    /// Compiles the field `block` of a rule.
    pub(super) fn compile_key_block(&mut self, spec: &RuleSpec) -> Option<KeyBlockLimit> {
        let (block, at) = spec.block.value_and_span()?;
        let (time, time_at, extends) = match block {
            BlockSpec::For(time) => (time, at, false),
            BlockSpec::Map(map) => {
                if map.r#for.is_absent() {
                    self.report(at, "`for` is missing; add it, for example `for: 10m`");
                }
                let (time, time_at) = map.r#for.value_and_span()?;
                (time, time_at, map.extend.get().copied().unwrap_or(false))
            }
        };
        if !matches!(spec.limits.get(), Some(LimitsSpec::List(_))) {
            self.report(at, "`block` needs a list of limits, for example `limits: [5/min]`");
        }
        if spec
            .redis
            .get()
            .is_some_and(|redis| !redis.split.is_absent() || !redis.sample.is_absent())
        {
            let message = "`block` needs exact counts, but the rule has `redis.split` or `redis.sample`; remove one of the two";
            self.report(at, message);
        }
        let window = self.ok_or_report(time_at, crate::quota::parse_window(time))?;
        let quota = self.ok_or_report(time_at, Quota::new(1, window))?;
        // A block must hold on all instances at once, so the store must know every single charge. `sliding_log` is the
        // only algorithm with the same need, so a store that supports it supports blocks.
        let exact = self.ok_or_report(time_at, Limit::new(quota, Algorithm::SlidingLog))?;
        if !self.store_supports(&exact) {
            let message = "`block` is not available in a cluster, because the nodes learn of a block too late; use the Redis store, or one node with the memory store";
            self.report(at, message);
        }
        Some(KeyBlockLimit { limit: Limit::from_quota(quota), extends, at })
    }

    /// Appends the limit of a block to the limits of a rule or an override. `mode` is the mode of this rule or
    /// override.
    pub(super) fn append_key_block_limit(
        &mut self,
        limits: &mut Vec<CompiledLimit>,
        block: Option<&KeyBlockLimit>,
        mode: Mode,
    ) {
        let Some(&KeyBlockLimit { limit, extends, at }) = block else { return };
        // A rule that denies or admits every request has no limit that a key can exceed, so it gets no block.
        if !limits.iter().any(|limit| limit.limit.capacity() > 0) {
            return;
        }
        if mode == Mode::Jointly {
            self.report(
                at,
                "a rule with `block` denies on its own; remove `block` or `mode: jointly`",
            );
        }
        if let Some(other) = limits.iter().find(|other| *other.id == *KEY_BLOCK_LIMIT_ID) {
            let message =
                "the name `block` is for the rule's `block`; give this limit another `name`";
            self.report(other.at, message);
        }
        let block = Some(Block { limits: limits.len() as u8, extends });
        limits.push(CompiledLimit { id: KEY_BLOCK_LIMIT_ID.into(), limit, at, block });
    }
}

//! Creates the key scopes of limits from the parts of a rule that all of its limits share. A key scope is the part of a
//! key that comes from the rule: domain, rule, limit, and attribute names.

use std::sync::Arc;

use super::bounds::MAX_KEY_SCOPES;
use super::compiler::Compiler;
use super::limits::CompiledLimit;
use crate::cluster_options::ClusterOptions;
use crate::key::Scope;
use crate::limit::Limit;
use crate::policy::error::SourceSpan;
use crate::policy::per::Per;
use crate::policy::redis::RuleRedisOptions;
use crate::redis_options::RedisOptions;
use crate::rule_limit::{LimitTexts, RuleLimit};

/// The parts of a rule that all of its limits share. The key scopes of each limit are created from them.
pub(super) struct RuleContext<'f> {
    pub(super) domain: &'f str,
    pub(super) rule: &'f str,
    pub(super) per: &'f Per,
    /// Number of combinations of attribute names in `per`. A combination takes one name from each entry.
    pub(super) combinations: usize,
    pub(super) redis: Option<&'f RuleRedisOptions>,
    pub(super) cluster: Option<ClusterOptions>,
}

impl RuleContext<'_> {
    /// Creates the key scopes of a limit: one for each combination of attribute names in `per`. `limit` is the id of
    /// the limit.
    pub(super) fn key_scopes(
        &self,
        limit: &str,
        redis: Option<&Arc<RedisOptions>>,
    ) -> Box<[Scope]> {
        let scopes = self.per.attribute_name_combinations().into_iter().map(|names| {
            let scope =
                Scope::new(self.domain, self.rule, limit, &names).with_cluster(self.cluster);
            match redis {
                Some(options) => scope.with_redis(options.clone()),
                None => scope,
            }
        });
        scopes.collect()
    }

    /// Converts named limits into the limits of the rule, with their key scopes and their names in headers.
    pub(super) fn to_rule_limits(
        &self,
        limits: Vec<(CompiledLimit, Option<Arc<RedisOptions>>)>,
    ) -> Box<[RuleLimit]> {
        let has_several = limits.iter().filter(|(limit, _)| limit.block.is_none()).count() > 1;
        let limits =
            limits.into_iter().map(|(CompiledLimit { id, limit, block, .. }, redis)| RuleLimit {
                index: 0,
                block,
                policy_name: if has_several || block.is_some() {
                    format!("{}.{id}", self.rule).into()
                } else {
                    self.rule.into()
                },
                scopes: self.key_scopes(&id, redis.as_ref()),
                id,
                limit,
                texts: LimitTexts::default(),
            });
        limits.collect()
    }

    /// Creates the limit that denies requests that lack an attribute of `per`. These requests share one key, which
    /// contains no attribute values.
    pub(super) fn new_missing_attribute_limit(&self) -> RuleLimit {
        let no_names: [&str; 0] = [];
        RuleLimit {
            index: 0,
            block: None,
            id: "missing".into(),
            limit: Limit::deny_all(),
            policy_name: self.rule.into(),
            texts: LimitTexts::default(),
            scopes: [Scope::new(self.domain, self.rule, "missing", &no_names)].into(),
        }
    }
}

impl Compiler<'_> {
    /// Converts the limits of a rule or override into rule limits with key scopes. If the policy then has more than
    /// [`MAX_KEY_SCOPES`] scopes, returns no limits, and reports an error once per policy.
    pub(super) fn add_key_scopes(
        &mut self,
        limits: Vec<CompiledLimit>,
        context: &RuleContext<'_>,
        at: SourceSpan,
    ) -> Box<[RuleLimit]> {
        let previous = self.scope_count;
        self.scope_count += limits.len() * context.combinations;
        if self.scope_count > MAX_KEY_SCOPES {
            if previous <= MAX_KEY_SCOPES {
                let message = format_args!(
                    "too many limits in the policy; the maximum is {MAX_KEY_SCOPES}, where each limit of a rule or override counts once for each combination of names in `per`"
                );
                self.report(at, message);
            }
            return Box::default();
        }
        let limits = limits.into_iter().map(|limit| {
            let options = context.redis.map(|redis| redis.options.for_limit(&limit.limit));
            let options = options.and_then(|options| self.ok_or_report(limit.at, options));
            (limit, options.map(Arc::new))
        });
        context.to_rule_limits(limits.collect())
    }
}

//! The parts that all limits of a rule share, and the scopes created from them.

use std::sync::Arc;

use super::limits::NamedLimit;
use crate::cluster_options::ClusterOptions;
use crate::key::Scope;
use crate::limit::Limit;
use crate::policy::per::Per;
use crate::policy::redis::RuleRedisOptions;
use crate::policy::rule::RuleLimit;
use crate::redis_options::RedisOptions;

/// The parts that all limits of a rule share.
pub(super) struct RuleContext<'f> {
    pub(super) domain: &'f str,
    pub(super) rule: &'f str,
    pub(super) per: &'f Per,
    /// Number of combinations of attribute names in `per`.
    pub(super) combinations: usize,
    pub(super) redis: Option<&'f RuleRedisOptions>,
    pub(super) cluster: Option<ClusterOptions>,
}

impl RuleContext<'_> {
    /// Creates one scope for each combination of attribute names.
    pub(super) fn scopes(&self, limit: &str, redis: Option<&Arc<RedisOptions>>) -> Box<[Scope]> {
        let scopes = self.per.combinations().into_iter().map(|names| {
            let scope =
                Scope::new(self.domain, self.rule, limit, &names).with_cluster(self.cluster);
            match redis {
                Some(options) => scope.with_redis(options.clone()),
                None => scope,
            }
        });
        scopes.collect()
    }

    /// Adds scopes to the limits.
    pub(super) fn rule_limits(
        &self,
        limits: Vec<(NamedLimit, Option<Arc<RedisOptions>>)>,
    ) -> Box<[RuleLimit]> {
        let has_several = limits.len() > 1;
        let limits = limits.into_iter().map(|(NamedLimit { id, limit, .. }, redis)| RuleLimit {
            index: 0,
            policy_name: match has_several {
                true => format!("{}.{id}", self.rule).into(),
                false => self.rule.into(),
            },
            scopes: self.scopes(&id, redis.as_ref()),
            id,
            limit,
        });
        limits.collect()
    }

    /// Creates the limit that denies requests without an attribute of `per`. They share one key, since they cannot be
    /// identified.
    pub(super) fn missing_limit(&self) -> RuleLimit {
        let no_names: [&str; 0] = [];
        RuleLimit {
            index: 0,
            id: "missing".into(),
            limit: Limit::denied(),
            policy_name: self.rule.into(),
            scopes: [Scope::new(self.domain, self.rule, "missing", &no_names)].into(),
        }
    }
}

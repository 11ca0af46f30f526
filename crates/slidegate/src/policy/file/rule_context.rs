//! Creates the key scopes of limits from the parts of a rule that all of its limits share. A key scope is the part of a
//! key that comes from the rule: domain, rule, limit, and attribute names.

use std::sync::Arc;

use super::limits::NamedLimit;
use crate::cluster_options::ClusterOptions;
use crate::key::Scope;
use crate::limit::Limit;
use crate::policy::per::Per;
use crate::policy::redis::RuleRedisOptions;
use crate::policy::rule::RuleLimit;
use crate::redis_options::RedisOptions;

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
        limits: Vec<(NamedLimit, Option<Arc<RedisOptions>>)>,
    ) -> Box<[RuleLimit]> {
        let has_several = limits.len() > 1;
        let limits = limits.into_iter().map(|(NamedLimit { id, limit, .. }, redis)| RuleLimit {
            index: 0,
            policy_name: match has_several {
                true => format!("{}.{id}", self.rule).into(),
                false => self.rule.into(),
            },
            scopes: self.key_scopes(&id, redis.as_ref()),
            id,
            limit,
        });
        limits.collect()
    }

    /// Creates the limit that denies requests that lack an attribute of `per`. These requests share one key, which
    /// contains no attribute values.
    pub(super) fn new_missing_attribute_limit(&self) -> RuleLimit {
        let no_names: [&str; 0] = [];
        RuleLimit {
            index: 0,
            id: "missing".into(),
            limit: Limit::deny_all(),
            policy_name: self.rule.into(),
            scopes: [Scope::new(self.domain, self.rule, "missing", &no_names)].into(),
        }
    }
}

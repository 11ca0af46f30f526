//! What all limits of a rule have in common, and the scopes that are made of it.

use std::sync::Arc;

use super::limits::Counted;
use crate::cluster_options::ClusterOptions;
use crate::key::Scope;
use crate::limit::Limit;
use crate::policy::per::Per;
use crate::policy::redis::RuleRedis;
use crate::policy::rule::RuleLimit;
use crate::redis_options::RedisOptions;

/// What all limits of a rule have in common.
pub(super) struct RuleContext<'f> {
    pub(super) domain: &'f str,
    pub(super) rule: &'f str,
    pub(super) per: &'f Per,
    /// Of the names that it counts per.
    pub(super) combinations: usize,
    pub(super) redis: Option<&'f RuleRedis>,
    pub(super) cluster: Option<ClusterOptions>,
}

impl RuleContext<'_> {
    /// A scope for each combination of names.
    pub(super) fn scopes(&self, limit: &str, redis: Option<&Arc<RedisOptions>>) -> Box<[Scope]> {
        let scopes = self.per.combinations().into_iter().map(|names| {
            let scope =
                Scope::new(self.domain, self.rule, limit, &names).with_cluster(self.cluster);
            match redis {
                Some(settings) => scope.with_redis(settings.clone()),
                None => scope,
            }
        });
        scopes.collect()
    }

    /// The limits with their scopes.
    pub(super) fn limits(
        &self,
        limits: Vec<(Counted, Option<Arc<RedisOptions>>)>,
    ) -> Box<[RuleLimit]> {
        let several = limits.len() > 1;
        let limits = limits.into_iter().map(|(Counted { id, limit, .. }, redis)| RuleLimit {
            place: 0,
            policy_name: match several {
                true => format!("{}.{id}", self.rule).into(),
                false => self.rule.into(),
            },
            scopes: self.scopes(&id, redis.as_ref()),
            id,
            limit,
        });
        limits.collect()
    }

    /// Denies who lacks an attribute: all as one, since nobody is known.
    pub(super) fn missing(&self) -> RuleLimit {
        let nobody: [&str; 0] = [];
        RuleLimit {
            place: 0,
            id: "missing".into(),
            limit: Limit::denied(),
            policy_name: self.rule.into(),
            scopes: [Scope::new(self.domain, self.rule, "missing", &nobody)].into(),
        }
    }
}

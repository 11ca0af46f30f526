//! Whether a rule applies to a descriptor, and which limits then hold.

use std::slice;
use std::sync::Arc;

use super::{Chosen, NoMatchReason, Rule, RuleLimit, RuleSettings};
use crate::algorithm::{Algorithm, Align};
use crate::hit::Veto;
use crate::key::{Key, Scope};
use crate::limit::Limit;
use crate::policy::Attributes;
use crate::policy::mode::Mode;
use crate::policy::per::Identity;
use crate::quota::Quota;

/// How a rule applies to a descriptor.
#[derive(Clone, Debug)]
pub(crate) struct Fit<'r> {
    pub(crate) chosen: Chosen,
    pub(crate) limits: &'r [RuleLimit],
    /// The one that the descriptor brings along: it holds instead.
    pub(crate) requested: Option<Arc<RuleLimit>>,
    pub(crate) identity: Identity<'r>,
    pub(crate) veto: Veto,
}

impl Rule {
    /// How it applies to a descriptor, or why it does not.
    pub(crate) fn fit<'r>(
        &'r self,
        attributes: &Attributes<'r, '_>,
    ) -> Result<Fit<'r>, NoMatchReason<'r>> {
        if self.requested {
            return Err(NoMatchReason::NotRequested);
        }
        self.when.check(attributes)?;
        if let Some(names) = &self.descriptor {
            has_names(attributes.own, names)?;
        }
        if attributes.exact {
            self.is_meant_by(attributes)?;
        }
        let (chosen, settings) = self.choose(attributes);
        if settings.mode == Mode::Off {
            return Err(NoMatchReason::Off);
        }
        // Where all pass, nobody has to be known.
        if settings.limits.is_empty() && attributes.limit.is_none() {
            if attributes.exact {
                self.per.identify(attributes).map_err(NoMatchReason::Missing)?;
            }
            return Ok(Fit {
                chosen,
                limits: &[],
                requested: None,
                identity: Identity::default(),
                veto: Veto::Alone,
            });
        }
        let mut identity = match (self.per.identify(attributes), &self.missing) {
            (Ok(identity), _) => identity,
            (Err(_), Some(missing)) if !attributes.exact => {
                return self.fit_missing(missing, settings);
            }
            (Err(lacking), _) => return Err(NoMatchReason::Missing(lacking)),
        };
        let scope = &self.identities[usize::from(identity.combination)];
        let veto = settings.mode.veto(&Key::new(scope, &identity.values));
        let requested = attributes.limit.map(|quota| {
            let names: Vec<&str> = scope.names().collect();
            identity.combination = 0;
            self.requested_limit(quota, &settings.limits, &names)
        });
        if let (Some(redis), None) = (&self.redis, &requested) {
            identity.part = redis.part(attributes);
        }
        let veto = veto.ok_or(NoMatchReason::Off)?;
        Ok(Fit { chosen, limits: &settings.limits, requested, identity, veto })
    }

    /// Denies who lacks an attribute of `per`.
    fn fit_missing<'r>(
        &'r self,
        missing: &'r RuleLimit,
        settings: &RuleSettings,
    ) -> Result<Fit<'r>, NoMatchReason<'r>> {
        let veto = settings.mode.veto(&Key::new(&missing.scopes[0], &[]));
        Ok(Fit {
            chosen: Chosen::Missing,
            limits: slice::from_ref(missing),
            requested: None,
            identity: Identity::default(),
            veto: veto.ok_or(NoMatchReason::Off)?,
        })
    }

    /// How it applies to a descriptor that brings a limit along and that no other rule applies to, if it is for
    /// those.
    pub(crate) fn fit_requested<'r>(
        &'r self,
        attributes: &Attributes<'r, '_>,
    ) -> Result<Fit<'r>, NoMatchReason<'r>> {
        let own = attributes.own;
        let quota =
            attributes.limit.filter(|_| self.requested).ok_or(NoMatchReason::NotRequested)?;
        let names: Vec<&str> = own.iter().map(|(name, _)| *name).collect();
        let limit = self.requested_limit(quota, &[], &names);
        let identity = self.per.identify_all(attributes);
        let veto = self.settings.mode.veto(&Key::new(&limit.scopes[0], &identity.values));
        Ok(Fit {
            chosen: Chosen::Base,
            limits: &self.settings.limits,
            requested: Some(limit),
            identity,
            veto: veto.ok_or(NoMatchReason::Off)?,
        })
    }

    /// Whether a descriptor that is meant for certain rules is meant for this one.
    fn is_meant_by<'r>(&'r self, attributes: &Attributes<'r, '_>) -> Result<(), NoMatchReason<'r>> {
        for (attribute, wanted) in &self.when.0 {
            if attributes.get(attribute).is_none() {
                return Err(NoMatchReason::When { attribute, wanted, found: None });
            }
        }
        let names = |name: &str| self.named.binary_search_by(|own| (**own).cmp(name)).is_ok();
        // A path stands for the route that it is of.
        let stands_for_route = |name: &str| name == "path" && names("route");
        let unnamed = |name: &&str| !names(name) && !stands_for_route(name);
        match attributes.own.iter().map(|(name, _)| *name).find(unnamed) {
            Some(name) => Err(NoMatchReason::Unnamed(name)),
            None => Ok(()),
        }
    }

    /// The limit that a quota makes which a descriptor brings along, instead of these. It counts as the first of
    /// them does, and where the same counts are meant, by the same.
    fn requested_limit(
        &self,
        quota: Quota,
        instead_of: &[RuleLimit],
        names: &[&str],
    ) -> Arc<RuleLimit> {
        let first = instead_of.first();
        let algorithm = match first.map_or(self.algorithm, |first| first.limit.algorithm()) {
            // Where a rule says nothing of it, the windows are those of who sends the limit.
            Algorithm::FixedWindow { .. } if first.is_none() => {
                Algorithm::FixedWindow { align: Align::Clock }
            }
            // What they say fits their own quota.
            Algorithm::SlidingBuckets { .. } => Algorithm::SlidingBuckets { precision: None },
            Algorithm::TokenBucket { .. } => Algorithm::TokenBucket { burst: None, max_debt: None },
            other => other,
        };
        // What an algorithm cannot count, such as a very long log, the default can.
        let limit = Limit::new(quota, algorithm).unwrap_or_else(|_| Limit::from_quota(quota));
        let id = quota.window_text();
        let scope = Scope::new(&self.domain, &self.name, &id, names).with_cluster(self.cluster);
        let place = first.or(self.settings.limits.first()).map_or(u32::MAX, |first| first.place);
        Arc::new(RuleLimit {
            place,
            limit,
            policy_name: self.name.clone(),
            scopes: [scope].into(),
            id: id.into(),
        })
    }

    fn choose(&self, attributes: &Attributes<'_, '_>) -> (Chosen, &RuleSettings) {
        let mut overrides = (0..).zip(&self.overrides);
        match overrides.find(|(_, other)| other.when.holds(attributes)) {
            Some((nth, other)) => (Chosen::Override(nth), &other.settings),
            None => (Chosen::Base, &self.settings),
        }
    }
}

/// Whether a descriptor has exactly these names, in this order.
fn has_names<'r>(own: &[(&str, &str)], names: &'r [Box<str>]) -> Result<(), NoMatchReason<'r>> {
    match own.iter().map(|(name, _)| *name).eq(names.iter().map(|name| &**name)) {
        true => Ok(()),
        false => Err(NoMatchReason::Descriptor(names)),
    }
}

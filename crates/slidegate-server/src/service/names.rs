//! Requests with names that no rule uses: costs are rejected, attributes are logged or, with `--strict`, rejected.

use std::time::Duration;

use slidegate::policy::{Rule, WhenMissing};
use slidegate::{Clock, Policy, Request, SystemClock};
use tracing::warn;

use super::{ActivePolicy, Service};
use crate::names::{
    RequestError, check_costs, check_hits, list_names, names_that_rules_use, suggest_attribute,
    unused_attributes_error,
};
use crate::telemetry::{LogThrottle, Redactor};

/// Maximum number of requests per second whose attributes are compared with the rules, to find names for the log.
const MAX_EXAMINED_PER_SECOND: u16 = 10;

/// The checks of names in requests, with the throttles of their log.
pub struct NameChecks {
    /// Whether a request is rejected if no rule applies to it and no rule uses its attributes.
    is_strict: bool,
    redactor: Redactor,
    clock: SystemClock,
    examinations: LogThrottle,
    rejection_log: LogThrottle,
    attribute_log: LogThrottle,
}

/// The origin of the attribute names of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameSource {
    /// The caller chooses the names.
    Caller,
    /// `/v1/auth` sets fixed names and the headers that the policy names.
    ForwardAuth,
}

impl NameChecks {
    /// Creates the checks. `is_strict` is whether requests with unused attributes are rejected. `redactor` decides how
    /// their names are logged.
    pub fn new(is_strict: bool, redactor: Redactor) -> Self {
        let once_a_minute = || LogThrottle::new(1, Duration::from_secs(60));
        Self {
            is_strict,
            redactor,
            clock: SystemClock::new(),
            examinations: LogThrottle::new(MAX_EXAMINED_PER_SECOND, Duration::from_secs(1)),
            rejection_log: once_a_minute(),
            attribute_log: once_a_minute(),
        }
    }
}

impl Service {
    /// Returns an error if a request has a cost that no rule of its domain charges, or too many limits. The error is also
    /// logged once a minute, because many callers allow a request if its check fails.
    pub fn check_request(&self, request: &Request<'_>) -> Result<(), RequestError> {
        let active = self.active_policy.load();
        check_costs(&active.policy, request)
            .and_then(|()| check_hits(&active.policy, request))
            .inspect_err(|error| self.log_rejected_request(error))
    }

    /// Logs a request that was rejected because of a cost that no rule charges, or of too many limits, at most once a
    /// minute.
    pub(super) fn log_rejected_request(&self, error: &RequestError) {
        let NameChecks { rejection_log, clock, .. } = &self.name_checks;
        if let Some(unlogged) = rejection_log.try_acquire(clock.now()) {
            let problem = error.to_string();
            warn!(
                problem,
                unlogged, "rejected request because of its costs or its number of limits"
            );
        }
    }

    /// Handles a request to which no limit applies. If the reason is a name that no rule uses, logs the names once a
    /// minute.
    ///
    /// # Errors
    /// With `--strict`, if no rule applies to the request because of such a name.
    pub fn check_attributes(
        &self,
        request: &Request<'_>,
        source: NameSource,
    ) -> Result<(), RequestError> {
        let checks = &self.name_checks;
        let rejects = checks.is_strict && source == NameSource::Caller;
        // Each examination compares a request with all rules of its domain.
        if !rejects && checks.examinations.try_acquire(checks.clock.now()).is_none() {
            return Ok(());
        }
        let active = self.active_policy.load();
        let ActivePolicy { policy, .. } = &**active;
        match source {
            NameSource::ForwardAuth => {
                if policy.domain_names(request.domain()).is_some()
                    && !has_rule_for_forward_auth(policy, request.domain())
                {
                    self.log_domain_without_rule_for_forward_auth(policy, request.domain());
                }
                Ok(())
            }
            NameSource::Caller => match policy.unused_attributes(request) {
                None => Ok(()),
                Some(unused) if rejects => {
                    Err(unused_attributes_error(policy, request.domain(), &unused))
                }
                Some(unused) => {
                    self.log_unused_attributes(policy, request.domain(), &unused);
                    Ok(())
                }
            },
        }
    }

    /// Logs a call of the rate limit service without descriptors, which no rule can apply to, at most once a minute.
    pub fn log_request_without_descriptors(&self) {
        let NameChecks { attribute_log, clock, .. } = &self.name_checks;
        if let Some(unlogged) = attribute_log.try_acquire(clock.now()) {
            warn!(
                unlogged,
                "rejected request without descriptors; add rate limit actions to the route of the proxy"
            );
        }
    }

    fn log_unused_attributes(&self, policy: &Policy, domain: &str, unused: &[&str]) {
        let NameChecks { attribute_log, clock, redactor, .. } = &self.name_checks;
        let Some(unlogged) = attribute_log.try_acquire(clock.now()) else { return };
        let used = names_that_rules_use(policy, domain);
        // A caller may have sent a value in place of a name.
        let shown = unused.iter().map(|name| redactor.redact(name, (*name).into()).to_string());
        let shown: Vec<String> = shown.collect();
        let sent = list_names(&shown.iter().map(String::as_str).collect::<Vec<_>>());
        warn!(
            domain,
            sent,
            rules_use = list_names(&used),
            did_you_mean = suggest_attribute(unused, &used),
            unlogged,
            "no rule applies to a request with attributes that no rule uses, so it is not limited; correct the \
             names, or list them in `attributes` of the policy"
        );
    }

    fn log_domain_without_rule_for_forward_auth(&self, policy: &Policy, domain: &str) {
        let NameChecks { attribute_log, clock, .. } = &self.name_checks;
        let Some(unlogged) = attribute_log.try_acquire(clock.now()) else { return };
        warn!(
            domain,
            sent = "`ip`, `method`, `path`, `host`, `header.*`",
            rules_use = list_names(&names_that_rules_use(policy, domain)),
            unlogged,
            "no rule of the domain can apply to requests at /v1/auth, so they are not limited; use the attributes \
             that /v1/auth sends"
        );
    }
}

/// Returns `true` if a rule of the domain can apply to a request at `/v1/auth`.
fn has_rule_for_forward_auth(policy: &Policy, domain: &str) -> bool {
    let has_routes = policy.routes().next().is_some();
    let is_sent = |name: &str| match name {
        "ip" | "method" | "path" | "host" => true,
        "route" => has_routes,
        _ => name.starts_with("header."),
    };
    let can_apply = |rule: &Rule| {
        let mut conditions = rule.when().conditions();
        let mut per = rule.per().entries().iter();
        rule.descriptor().is_none()
            && !rule.is_for_requested_limits()
            && conditions.all(|(name, condition)| is_sent(name) || condition.is_negated())
            && (rule.when_missing() == WhenMissing::Deny
                || per.all(|entry| entry.names().any(is_sent)))
    };
    policy.rules().iter().filter(|rule| rule.domain() == domain).any(can_apply)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forward_auth_applies_rules_with_its_attributes() {
        for (fields, expected) in [
            ("per: [ip]", true),
            ("per: [user|ip]", true),
            ("per: [header.x-api-key]", true),
            ("when: { route: /login }, per: [ip]", true),
            ("when: { plan: { not: [pro] } }, per: [ip]", true),
            ("per: [user], when_missing: deny", true),
            ("per: [user]", false),
            ("per: [ip, user]", false),
            ("when: { plan: pro }, per: [ip]", false),
            ("descriptor: [ip]", false),
        ] {
            let text = format!("routes: [/login]\nrules: [{{ name: a, {fields}, limits: [9/s] }}]");
            let policy = Policy::from_yaml(&text).unwrap();
            assert_eq!(has_rule_for_forward_auth(&policy, "default"), expected, "{fields}");
        }
    }
}

//! Requests with names that no rule uses: costs are rejected, attributes are logged or, with `--strict`, rejected.
//! Requests with too many limits are rejected too.
//!
//! A misspelt name would otherwise mean that a request is not limited.

use std::time::Duration;

use slidegate::clock::{Clock, SystemClock};
use slidegate::gate::ReservedCall;
use slidegate::policy::{Rule, UnknownCost, WhenMissing, most_similar_word};
use slidegate::{ActualCosts, Decision, Policy, Request};
use tracing::warn;

use super::error::{CallError, CallErrorKind};
use super::{AttributeNameSource, Call, Service};
use crate::bounds::{MAX_DESCRIPTORS_OF_SMALL_REQUEST, MAX_LIMITS_PER_REQUEST};
use crate::client_text::excerpt;
use crate::telemetry::{LogThrottle, Redactor};

/// Maximum number of names in a message.
const MAX_LISTED_NAMES: usize = 16;

/// Maximum number of requests per second whose attributes are compared with the rules, to find names for the log.
const MAX_EXAMINED_PER_SECOND: u16 = 10;

/// The checks of names in requests, with the throttles of their log.
pub struct RequestNameChecks {
    /// Whether a request is rejected if no rule applies to it and no rule uses its attributes.
    is_strict: bool,
    redactor: Redactor,
    clock: SystemClock,
    examinations: LogThrottle,
    rejection_log: LogThrottle,
    attribute_log: LogThrottle,
}

impl RequestNameChecks {
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
    /// Returns an error if a request has a cost that no rule of its domain charges, or too many limits. The error is
    /// also logged once a minute, because many callers allow a request if its check fails.
    pub fn check_request(&self, policy: &Policy, request: &Request<'_>) -> Result<(), CallError> {
        check_costs(policy, request)
            .and_then(|()| check_limit_count(policy, request))
            .inspect_err(|error| self.log_rejected_request(error))
    }

    /// Logs a request that was rejected because of a cost that no rule charges, or of too many limits, at most once a
    /// minute.
    pub(crate) fn log_rejected_request(&self, error: &CallError) {
        let RequestNameChecks { rejection_log, clock, .. } = &self.name_checks;
        if let Some(unlogged) = rejection_log.try_acquire(clock.now()) {
            let problem = error.to_string();
            warn!(
                problem,
                unlogged, "rejected request because of its costs or its number of limits"
            );
        }
    }

    /// Checks the attributes of a call if no limit applies to it: it may have misspelt names. If the reason is a name
    /// that no rule uses, logs the names once a minute.
    ///
    /// # Errors
    /// With `--strict`, if no rule applies to the call because of such a name.
    pub(super) fn check_attributes(
        &self,
        policy: &Policy,
        call: &Call<'_>,
        decision: &Decision<'_>,
    ) -> Result<(), CallError> {
        // A degraded decision, made without the store, may have no limits although a rule applies.
        if decision.limits().next().is_some() || decision.is_degraded() {
            return Ok(());
        }
        let Call { request, name_source: source, .. } = call;
        let checks = &self.name_checks;
        let rejects = checks.is_strict && *source == AttributeNameSource::Caller;
        // Examinations are throttled, because each one compares a request with all rules of its domain.
        if !rejects && checks.examinations.try_acquire(checks.clock.now()).is_none() {
            return Ok(());
        }
        match source {
            AttributeNameSource::ForwardAuth => {
                if policy.domain_names(request.domain()).is_some()
                    && !has_rule_for_forward_auth(policy, request.domain())
                {
                    self.log_domain_without_rule_for_forward_auth(policy, request.domain());
                }
                Ok(())
            }
            AttributeNameSource::Caller => match policy.unused_attributes(request) {
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
        let RequestNameChecks { attribute_log, clock, .. } = &self.name_checks;
        if let Some(unlogged) = attribute_log.try_acquire(clock.now()) {
            warn!(
                unlogged,
                "rejected request without descriptors; add rate limit actions to the route of the proxy"
            );
        }
    }

    fn log_unused_attributes(&self, policy: &Policy, domain: &str, unused: &[&str]) {
        let RequestNameChecks { attribute_log, clock, redactor, .. } = &self.name_checks;
        let Some(unlogged) = attribute_log.try_acquire(clock.now()) else { return };
        let used = names_that_rules_use(policy, domain);
        // With --redact-keys, names are hashed too, because a caller may have sent a value in place of a name.
        let shown = unused.iter().map(|name| redactor.redact("", (*name).into()).to_string());
        let shown: Vec<String> = shown.collect();
        let sent = quote_and_join_names(&shown.iter().map(String::as_str).collect::<Vec<_>>());
        warn!(
            domain,
            sent,
            rules_use = quote_and_join_names(&used),
            did_you_mean = suggest_attribute(unused, &used),
            unlogged,
            "no rule applies to a request with attributes that no rule uses, so it is not limited; correct the \
             names, or list them in `attributes` of the policy"
        );
    }

    fn log_domain_without_rule_for_forward_auth(&self, policy: &Policy, domain: &str) {
        let RequestNameChecks { attribute_log, clock, .. } = &self.name_checks;
        let Some(unlogged) = attribute_log.try_acquire(clock.now()) else { return };
        warn!(
            domain,
            sent = "`ip`, `method`, `path`, `host`, `header.*`",
            rules_use = quote_and_join_names(&names_that_rules_use(policy, domain)),
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

/// Returns the error for a request that must be corrected.
fn invalid_request_error(detail: String) -> CallError {
    CallError::new(CallErrorKind::Invalid, detail)
}

/// Returns an error if a request has a cost that no rule of its domain charges.
pub fn check_costs(policy: &Policy, request: &Request<'_>) -> Result<(), CallError> {
    let Some(unknown) = policy.unknown_cost(request) else { return Ok(()) };
    let names = policy.domain_names(request.domain());
    let known: Vec<&str> = names.iter().flat_map(|names| names.costs()).collect();
    let counts_unnamed = names.is_some_and(|names| names.counts_request_cost());
    let rules = format!("domain `{}`", excerpt(request.domain()));
    Err(unknown_cost_error(unknown, &rules, &known, counts_unnamed))
}

/// Returns an error if a request has many descriptors, to which more than [`MAX_LIMITS_PER_REQUEST`] limits apply.
fn check_limit_count(policy: &Policy, request: &Request<'_>) -> Result<(), CallError> {
    let descriptors = request.descriptors().len();
    // With few descriptors, the policy alone determines the number of limits, so it is not bounded here.
    if descriptors <= MAX_DESCRIPTORS_OF_SMALL_REQUEST {
        return Ok(());
    }
    match policy.apply(request).hits().count() {
        ..=MAX_LIMITS_PER_REQUEST => Ok(()),
        hits => Err(invalid_request_error(format!(
            "{hits} limits apply to the {descriptors} descriptors; send fewer descriptors, so that at most {MAX_LIMITS_PER_REQUEST} \
             apply"
        ))),
    }
}

/// Returns an error if the actual costs of a reservation have a cost that no rule of its domain charges.
pub fn check_actual_costs(
    policy: &Policy,
    call: &ReservedCall,
    actual: &ActualCosts<'_>,
) -> Result<(), CallError> {
    let Some(unknown) = policy.unknown_actual_cost(call, actual) else { return Ok(()) };
    let mut known: Vec<&str> = call.cost_names().collect();
    known.sort_unstable();
    known.dedup();
    Err(unknown_cost_error(unknown, "the reservation", &known, call.has_unnamed_cost()))
}

/// Returns an error for a request whose attributes `unused` no rule uses, and to which no rule applies.
fn unused_attributes_error(policy: &Policy, domain: &str, unused: &[&str]) -> CallError {
    let used = names_that_rules_use(policy, domain);
    let domain = excerpt(domain);
    let problem = match unused {
        [] => "the request has no attributes".to_owned(),
        _ => format!("no rule of domain `{domain}` uses {}", quote_and_join_names(unused)),
    };
    let remedy = match suggest_attribute(unused, &used) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => "correct the names, or list them in `attributes` of the policy".to_owned(),
    };
    invalid_request_error(format!(
        "{problem}, and none applies to the request; {remedy} Its rules use {}",
        quote_and_join_names(&used)
    ))
}

/// Returns the names of the attributes that the rules of a domain use.
fn names_that_rules_use<'p>(policy: &'p Policy, domain: &str) -> Vec<&'p str> {
    policy.domain_names(domain).into_iter().flat_map(|names| names.attributes()).collect()
}

/// Returns the attribute name in rules of which one of the unused names is probably a misspelling.
fn suggest_attribute<'u>(unused: &[&str], used: &[&'u str]) -> Option<&'u str> {
    unused
        .iter()
        .take(MAX_LISTED_NAMES)
        .find_map(|name| most_similar_word(name, used.iter().copied()))
}

/// Formats a list of names, which a client may have chosen, such as `` `a`, `b` ``. Long names and long lists are cut.
fn quote_and_join_names(names: &[&str]) -> String {
    let listed = names.iter().take(MAX_LISTED_NAMES);
    let listed: Vec<String> = listed.map(|name| format!("`{}`", excerpt(name))).collect();
    let listed = listed.join(", ");
    match names.len().checked_sub(MAX_LISTED_NAMES) {
        Some(more) if more > 0 => format!("{listed} and {more} more"),
        _ => listed,
    }
}

/// Returns the error for a cost that no rule charges. `rules` describes the rules, `known` are the names of their
/// costs, and `counts_unnamed` is whether a rule charges the unnamed cost.
fn unknown_cost_error(
    unknown: UnknownCost<'_>,
    rules: &str,
    known: &[&str],
    counts_unnamed: bool,
) -> CallError {
    invalid_request_error(match unknown {
        UnknownCost::Unnamed(units) => {
            let example = known.first().copied().unwrap_or("tokens");
            format!(
                "no rule of {rules} charges `cost`; send the units by name, for example {{\"costs\":{{\"{example}\":{units}}}}}. Its rules charge {}",
                quote_and_join_names(known)
            )
        }
        UnknownCost::Named(name) => {
            let problem = format!("no rule of {rules} charges `{}`", excerpt(name));
            let listed = quote_and_join_names(known);
            match (most_similar_word(name, known.iter().copied()), known) {
                (Some(meant), _) => {
                    format!("{problem}; did you mean `{meant}`? Its rules charge {listed}")
                }
                (None, [_, ..]) => format!("{problem}; its rules charge {listed}"),
                (None, []) if counts_unnamed => {
                    format!("{problem} or another named cost; send the units in `cost`")
                }
                (None, []) => format!("{problem} or another named cost; remove it from `costs`"),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use slidegate::Descriptor;

    use super::*;

    fn error_of(rules: &str, descriptor: Descriptor<'_>) -> String {
        let policy = Policy::from_yaml(&format!("rules: [{rules}]")).unwrap();
        check_costs(&policy, &Request::new("default", descriptor)).unwrap_err().to_string()
    }

    #[test]
    fn unknown_cost_error_names_costs_of_rules() {
        let tokens = "{ name: a, limits: [9/s], cost: tokens }";
        let images = "{ name: b, limits: [9/s], cost: images }";
        let both = format!("{tokens}, {images}");
        let named = |name| Descriptor::new([]).with_cost(name, 5);
        assert_eq!(
            error_of(&both, named("token")),
            "no rule of domain `default` charges `token`; did you mean `tokens`? Its rules charge `images`, `tokens`"
        );
        assert_eq!(
            error_of(&both, named("seconds")),
            "no rule of domain `default` charges `seconds`; its rules charge `images`, `tokens`"
        );
        assert_eq!(
            error_of(tokens, Descriptor::new([]).cost(4000)),
            "no rule of domain `default` charges `cost`; send the units by name, for example {\"costs\":{\"tokens\":4000}}. Its rules charge `tokens`"
        );
        assert_eq!(
            error_of("{ name: a, limits: [9/s] }", named("tokens")),
            "no rule of domain `default` charges `tokens` or another named cost; send the units in `cost`"
        );
        assert_eq!(
            error_of("{ name: a, limits: [9/s], cost: 1 }", named("tokens")),
            "no rule of domain `default` charges `tokens` or another named cost; remove it from `costs`"
        );
    }

    #[test]
    fn listed_names_are_cut() {
        let long = "x".repeat(1000);
        assert_eq!(quote_and_join_names(&["a", &long]), format!("`a`, `{}…`", "x".repeat(64)));
        let many = vec!["a"; MAX_LISTED_NAMES + 2];
        assert!(quote_and_join_names(&many).ends_with("`a` and 2 more"));
    }

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

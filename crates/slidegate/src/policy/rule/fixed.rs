//! Creates the rule of a [`Limiter`](crate::Limiter), whose limits are fixed in code instead of a policy.

use super::{Rule, RuleLimit, RuleSettings, When};
use crate::algorithm::Algorithm;
use crate::key::Scope;
use crate::limit::Limit;
use crate::policy::ChargeSettings;
use crate::policy::mode::{Mode, OnStoreError};
use crate::policy::per::Per;
use crate::request::DEFAULT_DOMAIN;

/// The prefix length of IPv6 addresses, in bits. A prefix of this length is a whole address, so each address has its
/// own counter.
const WHOLE_IPV6_ADDRESS_BITS: u8 = 128;

impl Rule {
    /// Creates the rule of a [`Limiter`](crate::Limiter). The rule counts by one attribute, `key`: for each limit, each
    /// value of `key` has its own counter.
    pub(crate) fn for_limiter(name: &str, limits: &[Limit], mode: Mode) -> Self {
        let name = to_rule_name(name);
        let limit = |limit: &Limit| RuleLimit {
            index: 0,
            id: new_limit_id(limit, limits).into(),
            limit: *limit,
            policy_name: match limits.len() {
                1 => name.clone(),
                _ => format!("{name}.{}", new_limit_id(limit, limits)).into(),
            },
            scopes: [Scope::new(DEFAULT_DOMAIN, &name, "", &["key"])].into(),
        };
        Self {
            when: When::default(),
            per: Per::new(vec![vec!["key".into()]], WHOLE_IPV6_ADDRESS_BITS),
            descriptor: None,
            attribute_names: Box::default(),
            replaces: Box::default(),
            is_for_requested_limits: false,
            algorithm: Algorithm::default(),
            on_store_error: OnStoreError::default(),
            charge: ChargeSettings::default(),
            deny_status: None,
            settings: RuleSettings { mode, limits: limits.iter().map(limit).collect() },
            overrides: Box::default(),
            redis: None,
            cluster: None,
            missing: Some(RuleLimit {
                index: 0,
                id: "missing".into(),
                limit: Limit::deny_all(),
                policy_name: name.clone(),
                scopes: Box::default(),
            }),
            identity_scopes: Box::default(),
            domain: DEFAULT_DOMAIN.into(),
            name,
        }
    }
}

/// Returns the id of a limit: its window, such as `1m`. `all` contains the limits of the rule. If another of these
/// limits has the same window, the id also contains the algorithm.
fn new_limit_id(limit: &Limit, all: &[Limit]) -> String {
    let window = limit.quota().window_text();
    let same_window = all.iter().filter(|other| other.quota().window() == limit.quota().window());
    match same_window.count() {
        1 => window,
        _ => format!("{window}.{}", limit.algorithm().name()),
    }
}

/// Converts a text to a valid rule name: replaces each character that is not allowed in rule names by `-`. HTTP headers
/// contain the name unescaped.
fn to_rule_name(name: &str) -> Box<str> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
    let header_name: String = name.chars().map(|c| if is_plain(c) { c } else { '-' }).collect();
    header_name.into()
}

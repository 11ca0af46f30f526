//! Limits that are fixed in code, as a rule.

use super::{Rule, RuleLimit, RuleSettings, When};
use crate::algorithm::Algorithm;
use crate::key::Scope;
use crate::limit::Limit;
use crate::policy::ChargeSettings;
use crate::policy::mode::{Mode, OnStoreError};
use crate::policy::per::Per;
use crate::request::DEFAULT_DOMAIN;

/// Bits of an IPv6 address, all of which count.
const WHOLE: u8 = 128;

impl Rule {
    /// A rule of these limits, which counts everybody apart, whoever that is.
    pub(crate) fn fixed(name: &str, limits: &[Limit], mode: Mode) -> Self {
        let name = header_name(name);
        let limit = |limit: &Limit| RuleLimit {
            place: 0,
            id: id(limit, limits).into(),
            limit: *limit,
            policy_name: match limits.len() {
                1 => name.clone(),
                _ => format!("{name}.{}", id(limit, limits)).into(),
            },
            scopes: [Scope::new(DEFAULT_DOMAIN, &name, "", &["key"])].into(),
        };
        Self {
            when: When::default(),
            per: Per::new(vec![vec!["key".into()]], WHOLE),
            descriptor: None,
            named: Box::default(),
            replaces: Box::default(),
            requested: false,
            algorithm: Algorithm::default(),
            on_store_error: OnStoreError::default(),
            charge: ChargeSettings::default(),
            deny_status: None,
            settings: RuleSettings { mode, limits: limits.iter().map(limit).collect() },
            overrides: Box::default(),
            redis: None,
            cluster: None,
            missing: Some(RuleLimit {
                place: 0,
                id: "missing".into(),
                limit: Limit::denied(),
                policy_name: name.clone(),
                scopes: Box::default(),
            }),
            identities: Box::default(),
            domain: DEFAULT_DOMAIN.into(),
            name,
        }
    }
}

/// The window, and the algorithm where another limit has the same window.
fn id(limit: &Limit, all: &[Limit]) -> String {
    let window = limit.quota().window_text();
    let alike = all.iter().filter(|other| other.quota().window() == limit.quota().window());
    match alike.count() {
        1 => window,
        _ => format!("{window}.{}", limit.algorithm().name()),
    }
}

/// The name, with `-` for what the names of rules do not have: headers tell it unescaped.
fn header_name(name: &str) -> Box<str> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
    let plain: String = name.chars().map(|c| if is_plain(c) { c } else { '-' }).collect();
    plain.into()
}

//! One limit of a rule or a limiter: its quota and algorithm, with the names that clients and operators see.

use std::sync::OnceLock;

use crate::hit::{Block, Veto};
#[cfg(feature = "policy")]
use crate::key::Scope;
use crate::limit::Limit;

/// The limits of a [`Limiter`](crate::Limiter), with the names that clients see.
#[derive(Debug)]
pub(crate) struct NamedLimits {
    name: Box<str>,
    limits: Box<[RuleLimit]>,
    /// The limit that denies a request without a key.
    missing_key_limit: RuleLimit,
    is_observing: bool,
}

impl NamedLimits {
    /// Creates the limits of a limiter. With `is_observing`, they never deny.
    pub(crate) fn new<'l>(
        name: &str,
        limits: impl IntoIterator<Item = &'l Limit>,
        is_observing: bool,
    ) -> Self {
        let name = to_rule_name(name);
        let limits: Box<[Limit]> = limits.into_iter().copied().collect();
        let missing_key_limit = RuleLimit {
            index: 0,
            block: None,
            id: "missing".into(),
            limit: Limit::deny_all(),
            policy_name: name.clone(),
            texts: LimitTexts::default(),
            #[cfg(feature = "policy")]
            scopes: Box::default(),
        };
        let limit = |limit: &Limit| RuleLimit::for_limiter(&name, limit, &limits);
        Self { limits: limits.iter().map(limit).collect(), name, missing_key_limit, is_observing }
    }

    /// Returns the name of the limiter, in the form that headers can contain.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the limits, in the order of the limiter.
    pub(crate) fn limits(&self) -> &[RuleLimit] {
        &self.limits
    }

    /// Returns the limit that denies a request without a key.
    pub(crate) fn missing_key_limit(&self) -> &RuleLimit {
        &self.missing_key_limit
    }

    /// Returns `true` if the limits never deny.
    pub(crate) fn is_observing(&self) -> bool {
        self.is_observing
    }

    /// Returns the veto of the limits: `Never` in observe mode, otherwise `Alone`.
    pub(crate) fn veto(&self) -> Veto {
        if self.is_observing { Veto::Never } else { Veto::Alone }
    }
}

/// One limit of a rule or a limiter, with its names.
#[derive(Clone, Debug)]
pub struct RuleLimit {
    /// Index of the limit in `Policy::limits`; 0 in a limiter. `Policy::new` sets it.
    pub(crate) index: u32,
    /// The condition on which the limit blocks a key; `None` if it is not the `block` of a rule.
    pub(crate) block: Option<Block>,
    pub(crate) id: Box<str>,
    pub(crate) limit: Limit,
    pub(crate) policy_name: Box<str>,
    pub(crate) texts: LimitTexts,
    /// The key scopes of the limit: one for each combination of attribute names in `per`. Limiters have none.
    #[cfg(feature = "policy")]
    pub(crate) scopes: Box<[Scope]>,
}

/// The texts about a limit that responses contain and that never change. Each is formatted when it is first needed.
#[derive(Debug, Default)]
pub(crate) struct LimitTexts {
    /// The text of the limit in the header `RateLimit-Policy`.
    pub(crate) policy_item: OnceLock<Box<str>>,
}

/// Returns empty texts, because the clone of a limit may get another max, which the texts contain.
impl Clone for LimitTexts {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl RuleLimit {
    /// Returns the index of the limit in [`Policy::limits`](crate::Policy::limits).
    pub fn index(&self) -> usize {
        self.index as usize
    }

    /// Returns the id of the limit in its rule: the name of the limit, or the window, such as `1m`, if it has no name.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the quota and the algorithm of the limit.
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Returns the name of the limit in headers: the name of the rule, or `rule.id` if the rule has several limits.
    pub fn policy_name(&self) -> &str {
        &self.policy_name
    }

    /// Returns whether the limit is the `block` of a rule: it denies a key for a while after the key has exceeded
    /// another limit of the rule.
    pub fn is_block_limit(&self) -> bool {
        self.block.is_some()
    }

    /// Creates the limit of a [`Limiter`](crate::Limiter). `name` is the name of the limiter, and `all` contains all of
    /// its limits.
    fn for_limiter(name: &str, limit: &Limit, all: &[Limit]) -> Self {
        let id = new_limit_id(limit, all);
        let policy_name = if all.len() == 1 { name.into() } else { format!("{name}.{id}").into() };
        Self {
            index: 0,
            block: None,
            id: id.into(),
            limit: *limit,
            policy_name,
            texts: LimitTexts::default(),
            #[cfg(feature = "policy")]
            scopes: Box::default(),
        }
    }
}

/// Returns the id of a limit: its window, such as `1m` or `month`. `all` contains the limits of the rule. If another of
/// these limits has the same window, the id also contains the algorithm.
fn new_limit_id(limit: &Limit, all: &[Limit]) -> String {
    let window = limit.window_text();
    let same_window = all.iter().filter(|other| other.window_text() == window);
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

//! The maximum sizes of a policy and its parts. They bound the memory and the time that reading a policy takes.

/// The maximum size of a policy, in bytes.
pub const MAX_POLICY_BYTES: usize = 8 << 20;

/// The maximum number of rules in a policy.
pub const MAX_RULES: usize = 10_000;

/// The maximum number of route templates in a policy.
pub const MAX_ROUTES: usize = 10_000;

/// The maximum number of attributes that a policy can declare for a domain.
pub const MAX_DECLARED_ATTRIBUTES: usize = 1_000;

/// The maximum number of limits that a rule or an override can list.
pub const MAX_LIMITS_PER_RULE: usize = 16;

/// The maximum number of overrides in a rule.
pub const MAX_OVERRIDES: usize = 1_000;

/// The maximum number of entries in the `per` of a rule.
pub const MAX_PER_ENTRIES: usize = 16;

/// The maximum number of attribute names in the `descriptor` of a rule.
pub const MAX_DESCRIPTOR_ATTRIBUTES: usize = 32;

/// The maximum number of rules that one rule can list in `replaces`.
pub const MAX_REPLACED_RULES: usize = 1_000;

/// The maximum number of attributes in `redis.split.by` of a rule.
pub const MAX_SPLIT_ATTRIBUTES: usize = 16;

/// The maximum number of combinations of attribute names in the `per` of a rule. A combination takes one name from each
/// entry: `[a|b, c|d]` has four.
pub const MAX_KEY_ATTRIBUTE_COMBINATIONS: usize = 64;

/// The maximum number of key scopes in a policy. Each limit of a rule or override has one scope for each combination of
/// attribute names in `per`.
pub const MAX_KEY_SCOPES: usize = 500_000;

/// The maximum number of limits in a domain, because a request can match all rules of its domain.
///
/// Each rule contributes the number of its limits, or of the limits of an override if that is larger. The reason for
/// the maximum is Redis: a call has 16 bits for the number of limits of a request.
pub const MAX_DOMAIN_LIMITS: usize = 65_535;

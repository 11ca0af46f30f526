//! The rules of a converted policy, as they are printed.

use serde::{Serialize, Serializer};
use serde_saphyr::{FlowMap, FlowSeq};

/// A rule of the converted policy.
#[derive(Debug, Serialize)]
pub struct ConvertedRule {
    pub name: String,
    pub domain: String,
    /// The attribute names that the descriptor of a request must have, in this order.
    #[serde(skip_serializing_if = "is_empty_list")]
    pub descriptor: FlowSeq<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when: Option<FlowMap<Conditions>>,
    #[serde(skip_serializing_if = "is_empty_list")]
    pub per: FlowSeq<Vec<String>>,
    pub limits: ConvertedLimits,
    /// The mode `jointly` for `quota_mode`, and `observe` for `shadow_mode`. By default, a rule enforces its limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<&'static str>,
    /// The names of the rules that this rule replaces.
    #[serde(skip_serializing_if = "is_empty_list")]
    pub replaces: FlowSeq<Vec<String>>,
    /// Switches the rule off for attribute values for which another descriptor in the file takes precedence.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<FlowMap<ConvertedOverride>>,
}

/// The limits of a converted rule.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum ConvertedLimits {
    /// `unlimited`: the rule allows every request. `requested`: it enforces the limits that descriptors contain.
    Word(&'static str),
    Quota(FlowSeq<[String; 1]>),
    ClockAligned(FlowSeq<[ClockAlignedQuota; 1]>),
}

/// A quota whose windows are aligned to the clock, as in the reference server.
#[derive(Clone, Debug, Serialize)]
pub struct ClockAlignedQuota {
    pub max: u64,
    pub window: &'static str,
    pub align: &'static str,
}

#[derive(Debug, Serialize)]
pub struct ConvertedOverride {
    pub when: Conditions,
    pub mode: &'static str,
}

/// Attribute names with their conditions, in the order of the descriptor.
#[derive(Debug)]
pub struct Conditions(pub Vec<(String, ConvertedCondition)>);

impl Serialize for Conditions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, condition)| (name, condition)))
    }
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum ConvertedCondition {
    Value(String),
    Values(Vec<String>),
    /// Values that a policy would otherwise interpret as networks.
    Literal {
        literal: Vec<String>,
    },
    /// A condition that must not match.
    #[cfg_attr(not(feature = "tools"), expect(dead_code, reason = "only `convert` uses it"))]
    Not {
        not: Box<ConvertedCondition>,
    },
}

fn is_empty_list(list: &FlowSeq<Vec<String>>) -> bool {
    list.0.is_empty()
}

impl ConvertedRule {
    /// Creates an unlimited rule for all requests of a domain.
    pub fn new(name: &str, domain: &str) -> Self {
        Self {
            name: name.to_owned(),
            domain: domain.to_owned(),
            descriptor: FlowSeq(Vec::new()),
            when: None,
            per: FlowSeq(Vec::new()),
            limits: ConvertedLimits::Word("unlimited"),
            mode: None,
            replaces: FlowSeq(Vec::new()),
            overrides: Vec::new(),
        }
    }
}

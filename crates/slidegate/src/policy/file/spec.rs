//! The types of a policy file as written, before it is compiled. The JSON Schema is generated from these types: editors
//! show the comments on their fields.

#[cfg(feature = "schema")]
mod schema;

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::deserialize::Field;
use crate::algorithm::Algorithm;
use crate::cluster_options::OnPartition;
use crate::policy::mode::{OnStoreError, WhenMissing};

/// Rate limits: rules, their defaults and route templates.
#[derive(Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(title = "slidegate policy", extend("required" = ["rules"])))]
#[serde(default, deny_unknown_fields, expecting = "a policy: a map with `rules`")]
pub(super) struct PolicySpec {
    /// The version of the policy language: 1.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1)))]
    pub(super) version: Field<u64>,
    /// Defaults for all rules.
    pub(super) defaults: Field<DefaultsSpec>,
    /// Route templates such as `/users/{id}` or `/files/{*path}`. The `path` of a request is matched against them and
    /// sets its attribute `route`.
    pub(super) routes: Field<Vec<Field<String>>>,
    /// The rules. A request passes if all rules that apply allow it.
    pub(super) rules: Field<Vec<Field<RuleSpec>>>,
}

/// Defaults for all rules.
#[derive(Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields, expecting = "a map of defaults")]
pub(super) struct DefaultsSpec {
    pub(super) algorithm: Field<AlgorithmName>,
    pub(super) when_missing: Field<WhenMissing>,
    pub(super) mode: Field<ModeSpec>,
    /// Units that must be free for a request to fit, also if its cost is lower; 1 if not given.
    #[cfg_attr(feature = "schema", schemars(range(max = 536_870_912)))]
    pub(super) required: Field<u64>,
    pub(super) on_store_error: Field<OnStoreError>,
    /// Prefix length by which IPv6 addresses are counted; 64 if not given, 128 counts each address separately.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 128)))]
    pub(super) ipv6_prefix: Field<u64>,
}

/// A rule: when it applies, the attributes that it counts by, and its limits.
#[derive(Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("required" = ["name", "limits"])))]
#[serde(default, deny_unknown_fields, expecting = "a rule: a map with `name` and `limits`")]
pub(super) struct RuleSpec {
    /// Unique in its domain; used in headers, metrics and keys.
    #[cfg_attr(feature = "schema", schemars(regex(pattern = r"^[a-z0-9._-]{1,128}$")))]
    pub(super) name: Field<String>,
    /// The domain whose requests the rule applies to; `default` if not given.
    pub(super) domain: Field<String>,
    /// Conditions on attributes; all of them must be met.
    pub(super) when: Field<WhenSpec>,
    /// The attributes that the rule counts by, each value separately; `a|b` uses the first of the two that is present.
    pub(super) per: Field<Vec<Field<String>>>,
    /// Names of the attributes of a descriptor, all of them and in this order: the rule applies only to such
    /// descriptors.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 32)))]
    pub(super) descriptor: Field<Vec<Field<String>>>,
    /// Treatment of a request without an attribute of `per`; `skip` if not given.
    pub(super) when_missing: Field<WhenMissing>,
    /// The limits, all of which must fit.
    pub(super) limits: Field<LimitsSpec>,
    /// The algorithm of limits that do not set one; `sliding_window` if not given.
    pub(super) algorithm: Field<AlgorithmName>,
    /// The effect on requests that do not fit; `enforce` if not given.
    pub(super) mode: Field<ModeSpec>,
    /// The behavior while the store is unavailable; the strictest rule wins. `local` if not given.
    pub(super) on_store_error: Field<OnStoreError>,
    /// The HTTP status of requests that the rule denies; 429 if not given.
    #[cfg_attr(feature = "schema", schemars(range(min = 400, max = 599)))]
    pub(super) deny_status: Field<u64>,
    /// The cost that the rule charges for a request: a constant number of units, or the name of a cost of the request;
    /// the request's `cost` if not given.
    pub(super) cost: Field<CostSpec>,
    /// Units that must be free for a request to fit, also if its cost is lower; 1 if not given. With 0 a request of
    /// cost 0 fits unless the counter is above max.
    #[cfg_attr(feature = "schema", schemars(range(max = 536_870_912)))]
    pub(super) required: Field<u64>,
    /// The requests that the rule charges; `if_admitted` if not given.
    pub(super) charge: Field<ChargeSpec>,
    /// Prefix length by which IPv6 addresses are counted; 64 if not given, 128 counts each address separately.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 128)))]
    pub(super) ipv6_prefix: Field<u64>,
    /// Rules of the domain that do not apply when this rule does.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 1000)))]
    pub(super) replaces: Field<Vec<Field<String>>>,
    /// Other settings for some of the rule's requests; the first override that matches applies.
    pub(super) overrides: Field<Vec<Field<OverrideSpec>>>,
    /// Options for stores that count in Redis; others ignore them.
    pub(super) redis: Field<RedisSpec>,
    /// Options for stores that count in a cluster; others ignore them.
    pub(super) cluster: Field<ClusterSpec>,
}

/// Options for stores that count in a cluster.
#[derive(Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("minProperties" = 1)))]
#[serde(default, deny_unknown_fields, expecting = "a map with `max_unsynced` or `on_partition`")]
pub(super) struct ClusterSpec {
    /// Units of each counter that a node may have allowed and that not every other node has acknowledged; max divided
    /// by twice the number of nodes if not given.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 536_870_912)))]
    pub(super) max_unsynced: Field<u64>,
    /// The behavior while nodes are unreachable; `bounded` if not given.
    pub(super) on_partition: Field<OnPartition>,
}

/// Options for stores that count in Redis.
#[derive(Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("minProperties" = 1)))]
#[serde(default, deny_unknown_fields, expecting = "a map with `slot_by`, `split` or `sample`")]
pub(super) struct RedisSpec {
    /// The entries of `per` that choose the hash slot in Redis Cluster; all if not given.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 16)))]
    pub(super) slot_by: Field<Vec<Field<String>>>,
    /// Spreads each counter over several keys, each with its share of the limit.
    pub(super) split: Field<SplitSpec>,
    /// The percentage of requests that are sent to Redis, such as 10%: one in n, for n from 2 to 100. Each is charged n
    /// times its cost.
    #[cfg_attr(feature = "schema", schemars(regex(pattern = r"^[0-9]{1,2}(\.[0-9]{1,2})? *%$")))]
    pub(super) sample: Field<String>,
}

/// The number of keys of each counter, and the attributes that choose the key.
#[derive(Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("required" = ["by", "into"])))]
#[serde(default, deny_unknown_fields, expecting = "a map with `by` and `into`")]
pub(super) struct SplitSpec {
    /// The attributes whose values choose the key.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 16)))]
    pub(super) by: Field<Vec<Field<String>>>,
    /// The number of keys of each counter.
    #[cfg_attr(feature = "schema", schemars(range(min = 2, max = 1024)))]
    pub(super) into: Field<u64>,
}

/// Other settings for some of the rule's requests.
#[derive(Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("required" = ["when"])))]
#[serde(default, deny_unknown_fields, expecting = "an override: a map with `when`")]
pub(super) struct OverrideSpec {
    #[cfg_attr(feature = "schema", schemars(regex(pattern = r"^[a-z0-9._-]{1,128}$")))]
    pub(super) name: Field<String>,
    /// Conditions on attributes; all of them must be met.
    pub(super) when: Field<WhenSpec>,
    /// Replaces the limits of the rule.
    pub(super) limits: Field<LimitsSpec>,
    /// Replaces the algorithm of the rule.
    pub(super) algorithm: Field<AlgorithmName>,
    /// Replaces the mode of the rule.
    pub(super) mode: Field<ModeSpec>,
}

/// A limit with all of its fields.
#[derive(Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("required" = ["max", "window"])))]
#[serde(default, deny_unknown_fields, expecting = "a limit: a map with `max` and `window`")]
pub(super) struct LimitMap {
    /// Replaces the window as the id of the limit.
    #[cfg_attr(feature = "schema", schemars(regex(pattern = r"^[a-z0-9._-]{1,128}$")))]
    pub(super) name: Field<String>,
    /// Units per window; 0 denies all.
    #[cfg_attr(feature = "schema", schemars(range(max = 536_870_912)))]
    pub(super) max: Field<u64>,
    /// A whole number and one of ms, s, m (or min), h, d, w; a unit alone means one of it.
    #[cfg_attr(
        feature = "schema",
        schemars(regex(pattern = r"^\s*[0-9]*\s*(ms|s|m|min|h|d|w)\s*$"))
    )]
    pub(super) window: Field<String>,
    pub(super) algorithm: Field<AlgorithmName>,
    /// For `sliding_buckets`: the length of a bucket, which divides the window; a tenth if not given.
    pub(super) precision: Field<String>,
    /// For `token_bucket`: units that fit at once; max if not given.
    #[cfg_attr(feature = "schema", schemars(range(max = 536_870_912)))]
    pub(super) burst: Field<u64>,
    /// For `token_bucket`: the largest debt in units, from charges without a check; twice max if not given.
    #[cfg_attr(feature = "schema", schemars(range(max = 536_870_912)))]
    pub(super) max_debt: Field<u64>,
    /// For `fixed_window`: the beginning of windows; `key` if not given.
    pub(super) align: Field<AlignName>,
}

/// The beginning of fixed windows.
#[derive(Clone, Copy, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(super) enum AlignName {
    /// At a different offset for each key, so that not all keys reset at the same time.
    Key,
    /// On the calendar, in UTC.
    Clock,
}

/// The name of an algorithm.
#[derive(Clone, Copy)]
pub(super) struct AlgorithmName(pub(super) Algorithm);

const ALGORITHMS: &[&str] = &{
    let mut names = [""; Algorithm::ALL.len()];
    let mut index = 0;
    while index < names.len() {
        names[index] = Algorithm::ALL[index].name();
        index += 1;
    }
    names
};

/// A limit: `100/min`, or a map.
pub(super) enum LimitSpec {
    Text(String),
    Map(Box<LimitMap>),
}

/// A list of limits, or one of the words `unlimited`, `denied` and `requested`.
pub(super) enum LimitsSpec {
    List(Vec<Field<LimitSpec>>),
    /// Every request passes.
    Unlimited,
    /// No request passes.
    Denied,
    /// The limit that a descriptor carries.
    Requested,
}

/// The cost of a request under a rule.
pub(super) enum CostSpec {
    Constant(u64),
    Named(String),
}

/// The requests that a rule charges.
#[derive(Clone, Copy, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(super) enum ChargeSpec {
    /// Requests that are admitted.
    IfAdmitted,
    /// All requests: also denied ones, above max.
    Always,
}

/// The effect of a rule on requests that do not fit.
pub(super) enum ModeSpec {
    Enforce,
    Jointly,
    Observe,
    Off,
    For(Box<EnforceMap>),
}

const MODES: &[&str] = &["enforce", "jointly", "observe", "off"];

/// Enforces the rule for a percentage of the keys, always the same keys, and observes the others.
#[derive(Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("required" = ["enforce"])))]
#[serde(default, deny_unknown_fields, expecting = "a map with `enforce`")]
pub(super) struct EnforceMap {
    /// From 0% to 100%, with two decimals at most.
    #[cfg_attr(feature = "schema", schemars(regex(pattern = r"^[0-9]{1,3}(\.[0-9]{1,2})? *%$")))]
    pub(super) enforce: Field<String>,
}

/// Attributes and their conditions, in the order of the file.
pub(super) struct WhenSpec(pub(super) Vec<(Field<String>, Field<ConditionSpec>)>);

/// A value, a list of values, or a map with `not` or `literal`.
pub(super) enum ConditionSpec {
    One(String),
    Any(Vec<Field<String>>),
    Map(Box<ConditionMap>),
}

/// Either `not` or `literal`.
#[derive(Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("minProperties" = 1, "maxProperties" = 1)))]
#[serde(default, deny_unknown_fields, expecting = "a map with `not` or `literal`")]
pub(super) struct ConditionMap {
    /// None of these values; also met if the attribute is absent.
    pub(super) not: Field<ConditionSpec>,
    /// One of these values, compared byte for byte: `*`, addresses and networks have no special meaning.
    pub(super) literal: Field<Vec<Field<String>>>,
}

impl<'de> Deserialize<'de> for AlgorithmName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let unknown = || D::Error::unknown_variant(&name, ALGORITHMS);
        Algorithm::by_name(&name).map(Self).ok_or_else(unknown)
    }
}

/// A type that is written as text, a list or a map.
trait TextListOrMap<'de>: Sized {
    const EXPECTED: &'static str;

    fn from_text<E: Error>(text: &str) -> Result<Self, E>;

    fn from_list<A: SeqAccess<'de>>(_: A) -> Result<Self, A::Error> {
        Err(Error::invalid_type(serde::de::Unexpected::Other("a list"), &Self::EXPECTED))
    }

    fn from_map<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(Error::invalid_type(serde::de::Unexpected::Other("a map"), &Self::EXPECTED))
    }
}

struct TextListOrMapVisitor<T>(PhantomData<T>);

impl<'de, T: TextListOrMap<'de>> Visitor<'de> for TextListOrMapVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        T::from_text(text)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<T, A::Error> {
        T::from_list(list)
    }

    /// Visits a map; see `NodeDeserializer::deserialize_any`.
    fn visit_newtype_struct<D: Deserializer<'de>>(self, map: D) -> Result<T, D::Error> {
        T::from_map(map)
    }
}

fn collect_list<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(
    mut list: A,
) -> Result<Vec<T>, A::Error> {
    let mut items = Vec::new();
    while let Some(item) = list.next_element()? {
        items.push(item);
    }
    Ok(items)
}

impl<'de> TextListOrMap<'de> for LimitSpec {
    const EXPECTED: &'static str = "a limit such as `100/min`, or a map with `max` and `window`,";

    fn from_text<E: Error>(text: &str) -> Result<Self, E> {
        Ok(Self::Text(text.to_owned()))
    }

    fn from_map<D: Deserializer<'de>>(map: D) -> Result<Self, D::Error> {
        LimitMap::deserialize(map).map(|map| Self::Map(Box::new(map)))
    }
}

impl<'de> TextListOrMap<'de> for LimitsSpec {
    const EXPECTED: &'static str =
        "a list of limits such as [100/min], or `unlimited`, `denied` or `requested`,";

    fn from_text<E: Error>(text: &str) -> Result<Self, E> {
        match text {
            "unlimited" => Ok(Self::Unlimited),
            "denied" => Ok(Self::Denied),
            "requested" => Ok(Self::Requested),
            quota if quota.contains('/') => Err(E::custom(format_args!(
                "found `{quota}` where {} should be: did you mean `[{quota}]`?",
                Self::EXPECTED.trim_end_matches(',')
            ))),
            other => Err(E::unknown_variant(other, &["unlimited", "denied", "requested"])),
        }
    }

    fn from_list<A: SeqAccess<'de>>(list: A) -> Result<Self, A::Error> {
        collect_list(list).map(Self::List)
    }
}

impl<'de> TextListOrMap<'de> for ModeSpec {
    const EXPECTED: &'static str = "`enforce`, `jointly`, `observe`, `off` or { enforce: 5% }";

    fn from_text<E: Error>(text: &str) -> Result<Self, E> {
        match text {
            "enforce" => Ok(Self::Enforce),
            "jointly" => Ok(Self::Jointly),
            "observe" => Ok(Self::Observe),
            // YAML 1.1 reads a bare `off` as `false`.
            "off" => Ok(Self::Off),
            other => Err(E::unknown_variant(other, MODES)),
        }
    }

    fn from_map<D: Deserializer<'de>>(map: D) -> Result<Self, D::Error> {
        EnforceMap::deserialize(map).map(|map| Self::For(Box::new(map)))
    }
}

impl<'de> TextListOrMap<'de> for CostSpec {
    const EXPECTED: &'static str = "a number of units, or the name of a cost";

    fn from_text<E: Error>(text: &str) -> Result<Self, E> {
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Ok(Self::Named(text.to_owned()));
        }
        let units = text.parse();
        units
            .map(Self::Constant)
            .map_err(|_| E::custom(format_args!("`{text}` is too large a number")))
    }
}

impl<'de> TextListOrMap<'de> for ConditionSpec {
    const EXPECTED: &'static str = "a value, a list of values, { not: … } or { literal: […] }";

    fn from_text<E: Error>(text: &str) -> Result<Self, E> {
        Ok(Self::One(text.to_owned()))
    }

    fn from_list<A: SeqAccess<'de>>(list: A) -> Result<Self, A::Error> {
        collect_list(list).map(Self::Any)
    }

    fn from_map<D: Deserializer<'de>>(map: D) -> Result<Self, D::Error> {
        ConditionMap::deserialize(map).map(|map| Self::Map(Box::new(map)))
    }
}

/// Implemented by hand, since an untagged enum would lose the source spans and report no specific error.
macro_rules! deserialize_text_list_or_map {
    ($($either:ty),*) => {$(
        impl<'de> Deserialize<'de> for $either {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(TextListOrMapVisitor(PhantomData))
            }
        }
    )*};
}

deserialize_text_list_or_map!(LimitSpec, LimitsSpec, CostSpec, ModeSpec, ConditionSpec);

impl<'de> Deserialize<'de> for WhenSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Conditions;

        impl<'de> Visitor<'de> for Conditions {
            type Value = WhenSpec;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of attributes, such as { method: POST },")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WhenSpec, A::Error> {
                let mut conditions = Vec::new();
                while let Some(condition) = map.next_entry()? {
                    conditions.push(condition);
                }
                Ok(WhenSpec(conditions))
            }
        }

        deserializer.deserialize_map(Conditions)
    }
}

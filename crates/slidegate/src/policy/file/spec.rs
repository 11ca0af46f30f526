//! What a policy file says, before it is known what that means. The JSON Schema is made of these types:
//! the comments on their fields are what an editor shows.

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

/// What requests may do, and how often.
#[derive(Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(title = "slidegate policy", extend("required" = ["rules"])))]
#[serde(default, deny_unknown_fields, expecting = "a policy: a map with `rules`")]
pub(super) struct PolicySpec {
    /// The version of the language: 1.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1)))]
    pub(super) version: Field<u64>,
    /// What holds for every rule that does not say otherwise.
    pub(super) defaults: Field<DefaultsSpec>,
    /// Templates of paths, such as `/users/{id}` or `/files/{*path}`. The attribute `path` of a request
    /// gives it the attribute `route`: the template that the path is of.
    pub(super) routes: Field<Vec<Field<String>>>,
    /// The rules; all that apply must let a request pass.
    pub(super) rules: Field<Vec<Field<RuleSpec>>>,
}

/// What holds for every rule that does not say otherwise.
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
    /// Bits by which IPv6 addresses are counted; 64 if not given, 128 counts each alone.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 128)))]
    pub(super) ipv6_prefix: Field<u64>,
}

/// When it applies, per what it counts, its limits.
#[derive(Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("required" = ["name", "limits"])))]
#[serde(default, deny_unknown_fields, expecting = "a rule: a map with `name` and `limits`")]
pub(super) struct RuleSpec {
    /// Unique in its domain; stands in headers, metrics and keys.
    #[cfg_attr(feature = "schema", schemars(regex(pattern = r"^[a-z0-9._-]{1,128}$")))]
    pub(super) name: Field<String>,
    /// The domain whose requests it is for; `default` if not given.
    pub(super) domain: Field<String>,
    /// What the attributes have to be; every entry must match.
    pub(super) when: Field<WhenSpec>,
    /// The attributes whose values are counted apart; `a|b` is the first of the two that is present.
    pub(super) per: Field<Vec<Field<String>>>,
    /// The names of a descriptor's attributes, all of them and in their order: the rule is for such descriptors
    /// only.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 32)))]
    pub(super) descriptor: Field<Vec<Field<String>>>,
    /// What becomes of a request that lacks an attribute of `per`; `skip` if not given.
    pub(super) when_missing: Field<WhenMissing>,
    /// What may pass; all of it must fit.
    pub(super) limits: Field<LimitsSpec>,
    /// How its limits count, unless they say so themselves; `sliding_window` if not given.
    pub(super) algorithm: Field<AlgorithmName>,
    /// What it does with what does not fit; `enforce` if not given.
    pub(super) mode: Field<ModeSpec>,
    /// What it wants while the store does not answer; the strictest rule wins. `local` if not given.
    pub(super) on_store_error: Field<OnStoreError>,
    /// The HTTP status of a request that it denies; 429 if not given.
    #[cfg_attr(feature = "schema", schemars(range(min = 400, max = 599)))]
    pub(super) deny_status: Field<u64>,
    /// The units that it charges for a request: a constant number of units, or the name of a cost of the request; the request's
    /// `cost` if not given.
    pub(super) cost: Field<CostSpec>,
    /// Units that must be free for a request to fit, also if its cost is lower; 1 if not given. With 0 a request of cost 0
    /// fits unless the counter is above max.
    #[cfg_attr(feature = "schema", schemars(range(max = 536_870_912)))]
    pub(super) required: Field<u64>,
    /// Which requests it charges; `if_admitted` if not given.
    pub(super) charge: Field<ChargeSpec>,
    /// Bits by which IPv6 addresses are counted; 64 if not given, 128 counts each alone.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 128)))]
    pub(super) ipv6_prefix: Field<u64>,
    /// Rules of the domain that do not apply where this one does.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 1000)))]
    pub(super) replaces: Field<Vec<Field<String>>>,
    /// Other terms for some of its requests; the first that matches holds.
    pub(super) overrides: Field<Vec<Field<OverrideSpec>>>,
    /// For stores that count in Redis; others ignore it.
    pub(super) redis: Field<RedisSpec>,
    /// For stores whose nodes tell each other what they counted; others ignore it.
    pub(super) cluster: Field<ClusterSpec>,
}

/// What holds where nodes tell each other what they counted.
#[derive(Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("minProperties" = 1)))]
#[serde(default, deny_unknown_fields, expecting = "a map with `max_unsynced` or `on_partition`")]
pub(super) struct ClusterSpec {
    /// Units of each count that a node may have allowed and that not every other node has acknowledged; max divided by
    /// twice the number of nodes if not given.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 536_870_912)))]
    pub(super) max_unsynced: Field<u64>,
    /// What holds while nodes are silent; `bounded` if not given.
    pub(super) on_partition: Field<OnPartition>,
}

/// What holds where counts are kept in Redis.
#[derive(Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("minProperties" = 1)))]
#[serde(default, deny_unknown_fields, expecting = "a map with `slot_by`, `split` or `sample`")]
pub(super) struct RedisSpec {
    /// The entries of `per` that choose the hash slot in Redis Cluster; all if not given.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 16)))]
    pub(super) slot_by: Field<Vec<Field<String>>>,
    /// Spreads each count over several keys, each with its share of the limit.
    pub(super) split: Field<SplitSpec>,
    /// The share of the requests that ask Redis, such as 10%: one in a whole number, from 2 to 100, which
    /// is charged so many times its cost.
    #[cfg_attr(feature = "schema", schemars(regex(pattern = r"^[0-9]{1,2}(\.[0-9]{1,2})? *%$")))]
    pub(super) sample: Field<String>,
}

/// Into how many keys each count is split, and by what.
#[derive(Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("required" = ["by", "into"])))]
#[serde(default, deny_unknown_fields, expecting = "a map with `by` and `into`")]
pub(super) struct SplitSpec {
    /// The attributes whose values choose the key.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 16)))]
    pub(super) by: Field<Vec<Field<String>>>,
    /// How many keys each count has.
    #[cfg_attr(feature = "schema", schemars(range(min = 2, max = 1024)))]
    pub(super) into: Field<u64>,
}

/// Other terms for some of a rule's requests.
#[derive(Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("required" = ["when"])))]
#[serde(default, deny_unknown_fields, expecting = "an override: a map with `when`")]
pub(super) struct OverrideSpec {
    #[cfg_attr(feature = "schema", schemars(regex(pattern = r"^[a-z0-9._-]{1,128}$")))]
    pub(super) name: Field<String>,
    /// What the attributes have to be; every entry must match.
    pub(super) when: Field<WhenSpec>,
    /// What may pass instead.
    pub(super) limits: Field<LimitsSpec>,
    /// How the limits count instead.
    pub(super) algorithm: Field<AlgorithmName>,
    /// What is done with what does not fit instead.
    pub(super) mode: Field<ModeSpec>,
}

/// A limit with all that there is to say of it.
#[derive(Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("required" = ["max", "window"])))]
#[serde(default, deny_unknown_fields, expecting = "a limit: a map with `max` and `window`")]
pub(super) struct LimitMap {
    /// Known by this name instead of by its window.
    #[cfg_attr(feature = "schema", schemars(regex(pattern = r"^[a-z0-9._-]{1,128}$")))]
    pub(super) name: Field<String>,
    /// Units per window; 0 denies all.
    #[cfg_attr(feature = "schema", schemars(range(max = 536_870_912)))]
    pub(super) max: Field<u64>,
    /// A whole number and one of ms, s, m (or min), h, d, w; a unit alone is one of it.
    #[cfg_attr(
        feature = "schema",
        schemars(regex(pattern = r"^\s*[0-9]*\s*(ms|s|m|min|h|d|w)\s*$"))
    )]
    pub(super) window: Field<String>,
    pub(super) algorithm: Field<AlgorithmName>,
    /// Of `sliding_buckets`: the length of a bucket, which divides the window; a tenth if not given.
    pub(super) precision: Field<String>,
    /// Of `token_bucket`: units that fit at once; max if not given.
    #[cfg_attr(feature = "schema", schemars(range(max = 536_870_912)))]
    pub(super) burst: Field<u64>,
    /// Of `token_bucket`: the largest debt in units, from charges without a check; twice max if not given.
    #[cfg_attr(feature = "schema", schemars(range(max = 536_870_912)))]
    pub(super) max_debt: Field<u64>,
    /// Of `fixed_window`: where windows begin; `key` if not given.
    pub(super) align: Field<AlignName>,
}

/// Where fixed windows begin.
#[derive(Clone, Copy, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(super) enum AlignName {
    /// At a phase of each key's own, so that not everybody resets together.
    Key,
    /// On the calendar, in UTC.
    Clock,
}

/// How a limit counts.
#[derive(Clone, Copy)]
pub(super) struct AlgorithmName(pub(super) Algorithm);

const ALGORITHMS: &[&str] = &{
    let mut names = [""; Algorithm::ALL.len()];
    let mut nth = 0;
    while nth < names.len() {
        names[nth] = Algorithm::ALL[nth].name();
        nth += 1;
    }
    names
};

/// `100/min`, or a map.
pub(super) enum LimitSpec {
    Text(String),
    Map(Box<LimitMap>),
}

/// A list of limits, or a word.
pub(super) enum LimitsSpec {
    List(Vec<Field<LimitSpec>>),
    /// Everything passes.
    Unlimited,
    /// Nothing passes.
    Denied,
    /// What a descriptor brings along.
    Requested,
}

/// The cost of a request under a rule.
pub(super) enum CostSpec {
    Constant(u64),
    Named(String),
}

/// Which requests a rule charges.
#[derive(Clone, Copy, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(super) enum ChargeSpec {
    /// Requests that are admitted.
    IfAdmitted,
    /// All requests: also denied ones, above max.
    Always,
}

/// What a rule does with what does not fit.
pub(super) enum ModeSpec {
    Enforce,
    Jointly,
    Observe,
    Off,
    For(Box<EnforceMap>),
}

const MODES: &[&str] = &["enforce", "jointly", "observe", "off"];

/// Enforces for a share of the keys, always the same, and observes the rest.
#[derive(Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("required" = ["enforce"])))]
#[serde(default, deny_unknown_fields, expecting = "a map with `enforce`")]
pub(super) struct EnforceMap {
    /// From 0% to 100%, with two decimals at most.
    #[cfg_attr(feature = "schema", schemars(regex(pattern = r"^[0-9]{1,3}(\.[0-9]{1,2})? *%$")))]
    pub(super) enforce: Field<String>,
}

/// Attributes and what they have to be, in the order of the file.
pub(super) struct WhenSpec(pub(super) Vec<(Field<String>, Field<ConditionSpec>)>);

/// A value, or a list of them, or what it must not be, or what is no pattern.
pub(super) enum ConditionSpec {
    One(String),
    Any(Vec<Field<String>>),
    Map(Box<ConditionMap>),
}

/// One of the two.
#[derive(Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("minProperties" = 1, "maxProperties" = 1)))]
#[serde(default, deny_unknown_fields, expecting = "a map with `not` or `literal`")]
pub(super) struct ConditionMap {
    /// None of these; also if the attribute is absent.
    pub(super) not: Field<ConditionSpec>,
    /// One of these values, byte for byte: a `*`, an address and a network are nothing special.
    pub(super) literal: Field<Vec<Field<String>>>,
}

impl<'de> Deserialize<'de> for AlgorithmName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let unknown = || D::Error::unknown_variant(&name, ALGORITHMS);
        Algorithm::by_name(&name).map(Self).ok_or_else(unknown)
    }
}

/// What may be text, a list or a map: which of them is wanted, and what becomes of it.
trait Either<'de>: Sized {
    const EXPECTED: &'static str;

    fn text<E: Error>(text: &str) -> Result<Self, E>;

    fn list<A: SeqAccess<'de>>(_: A) -> Result<Self, A::Error> {
        Err(Error::invalid_type(serde::de::Unexpected::Other("a list"), &Self::EXPECTED))
    }

    fn map<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(Error::invalid_type(serde::de::Unexpected::Other("a map"), &Self::EXPECTED))
    }
}

struct EitherVisitor<T>(PhantomData<T>);

impl<'de, T: Either<'de>> Visitor<'de> for EitherVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        T::text(text)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<T, A::Error> {
        T::list(list)
    }

    /// A map: see `Reading::deserialize_any`.
    fn visit_newtype_struct<D: Deserializer<'de>>(self, map: D) -> Result<T, D::Error> {
        T::map(map)
    }
}

fn all<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(mut list: A) -> Result<Vec<T>, A::Error> {
    let mut all = Vec::new();
    while let Some(item) = list.next_element()? {
        all.push(item);
    }
    Ok(all)
}

impl<'de> Either<'de> for LimitSpec {
    const EXPECTED: &'static str = "a limit such as `100/min`, or a map with `max` and `window`,";

    fn text<E: Error>(text: &str) -> Result<Self, E> {
        Ok(Self::Text(text.to_owned()))
    }

    fn map<D: Deserializer<'de>>(map: D) -> Result<Self, D::Error> {
        LimitMap::deserialize(map).map(|map| Self::Map(Box::new(map)))
    }
}

impl<'de> Either<'de> for LimitsSpec {
    const EXPECTED: &'static str =
        "a list of limits such as [100/min], or `unlimited`, `denied` or `requested`,";

    fn text<E: Error>(text: &str) -> Result<Self, E> {
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

    fn list<A: SeqAccess<'de>>(list: A) -> Result<Self, A::Error> {
        all(list).map(Self::List)
    }
}

impl<'de> Either<'de> for ModeSpec {
    const EXPECTED: &'static str = "`enforce`, `jointly`, `observe`, `off` or { enforce: 5% }";

    fn text<E: Error>(text: &str) -> Result<Self, E> {
        match text {
            "enforce" => Ok(Self::Enforce),
            "jointly" => Ok(Self::Jointly),
            "observe" => Ok(Self::Observe),
            // YAML 1.1 takes a bare `off` for `false`.
            "off" => Ok(Self::Off),
            other => Err(E::unknown_variant(other, MODES)),
        }
    }

    fn map<D: Deserializer<'de>>(map: D) -> Result<Self, D::Error> {
        EnforceMap::deserialize(map).map(|map| Self::For(Box::new(map)))
    }
}

impl<'de> Either<'de> for CostSpec {
    const EXPECTED: &'static str = "a number of units, or the name of a cost";

    fn text<E: Error>(text: &str) -> Result<Self, E> {
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Ok(Self::Named(text.to_owned()));
        }
        let units = text.parse();
        units
            .map(Self::Constant)
            .map_err(|_| E::custom(format_args!("`{text}` is too large a number")))
    }
}

impl<'de> Either<'de> for ConditionSpec {
    const EXPECTED: &'static str = "a value, a list of values, { not: … } or { literal: […] }";

    fn text<E: Error>(text: &str) -> Result<Self, E> {
        Ok(Self::One(text.to_owned()))
    }

    fn list<A: SeqAccess<'de>>(list: A) -> Result<Self, A::Error> {
        all(list).map(Self::Any)
    }

    fn map<D: Deserializer<'de>>(map: D) -> Result<Self, D::Error> {
        ConditionMap::deserialize(map).map(|map| Self::Map(Box::new(map)))
    }
}

/// By hand, because an untagged enum would lose the places and say nothing of what is wrong.
macro_rules! deserialize_either {
    ($($either:ty),*) => {$(
        impl<'de> Deserialize<'de> for $either {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(EitherVisitor(PhantomData))
            }
        }
    )*};
}

deserialize_either!(LimitSpec, LimitsSpec, CostSpec, ModeSpec, ConditionSpec);

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

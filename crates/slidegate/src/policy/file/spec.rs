//! The types into which a policy file is deserialized, before it is compiled. The JSON Schema of policy files is
//! generated from these types, and editors show the comments of their fields.

pub(super) mod block;
mod normalize;
#[cfg(feature = "schema")]
mod schema;
mod text_list_or_map;

use serde::de::Error;
use serde::{Deserialize, Deserializer};

use self::block::BlockSpec;
pub(super) use self::normalize::{AttributeSteps, NormalizeSpec};
use self::text_list_or_map::EntriesVisitor;
use super::deserialize::Field;
use crate::algorithm::Algorithm;
use crate::calendar::{Period, Weekday};
use crate::cluster_options::OnPartition;
use crate::on_store_error::OnStoreError;
use crate::policy::mode::WhenMissing;
use crate::reason::ProblemType;

/// Rate limits: rules, their defaults and route templates.
#[derive(Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(title = "slidegate policy", extend("required" = ["rules"], "patternProperties" = { "^x-": true })))]
#[serde(default, deny_unknown_fields, expecting = "a map with `rules`")]
pub(super) struct PolicySpec {
    /// The version of the policy language: 1.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1)))]
    pub(super) version: Field<u64>,
    /// Default settings for rules that do not specify them.
    pub(super) defaults: Field<DefaultsSpec>,
    /// The names of the attributes that rules may use. Any other name in a rule is an error. A list for all domains, or
    /// a map with a list for each domain.
    pub(super) attributes: Field<AttributesSpec>,
    /// The steps by which the values of attributes are normalized before rules compare and count them.
    pub(super) normalize: Field<NormalizeSpec>,
    /// Route templates such as `/users/{id}` or `/files/{*path}`. The `path` of a request is matched against them and
    /// sets its attribute `route`.
    pub(super) routes: Field<Vec<Field<String>>>,
    /// The rules. A request passes if all rules that apply allow it.
    pub(super) rules: Field<Vec<Field<RuleSpec>>>,
}

/// Default settings for rules that do not specify them.
#[derive(Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields, expecting = "a map of defaults")]
pub(super) struct DefaultsSpec {
    pub(super) algorithm: Field<AlgorithmSpec>,
    pub(super) when_missing: Field<WhenMissing>,
    pub(super) mode: Field<ModeSpec>,
    /// Minimum number of free units with which a request fits, even if its cost is lower; 1 if not given.
    #[cfg_attr(feature = "schema", schemars(range(max = crate::quota::MAX_UNITS)))]
    pub(super) required: Field<u64>,
    pub(super) on_store_error: Field<OnStoreError>,
    /// Prefix length of IPv6 addresses. Addresses with the same prefix share a counter; 64 if not given, 128 counts
    /// each address separately.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 128)))]
    pub(super) ipv6_prefix: Field<u64>,
}

/// A rule: the conditions under which it applies, the attributes by which it counts, and its limits.
#[derive(Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("required" = ["name", "limits"])))]
#[serde(default, deny_unknown_fields, expecting = "a map with `name` and `limits`")]
pub(super) struct RuleSpec {
    /// The name of the rule, unique in its domain. Headers, metrics and keys contain it.
    #[cfg_attr(feature = "schema", schemars(regex(pattern = r"^[a-z0-9._-]{1,128}$")))]
    pub(super) name: Field<String>,
    /// The domain whose requests the rule applies to; `default` if not given.
    pub(super) domain: Field<String>,
    /// Conditions on attributes; all of them must be met.
    pub(super) when: Field<WhenSpec>,
    /// The attributes by which the rule counts. Each combination of values has its own counter. `a|b` uses the first of
    /// these attributes that is present.
    pub(super) per: Field<Vec<Field<String>>>,
    /// Names of attributes. The rule applies only to a descriptor with exactly these attributes, in this order.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 32)))]
    pub(super) descriptor: Field<Vec<Field<String>>>,
    /// The treatment of a request that lacks an attribute of `per`; `skip` if not given.
    pub(super) when_missing: Field<WhenMissing>,
    /// The limits of the rule. A request must fit all of them.
    pub(super) limits: Field<LimitsSpec>,
    /// The algorithm of limits that do not specify an algorithm; `sliding_window` if not given.
    pub(super) algorithm: Field<AlgorithmSpec>,
    /// The effect of the rule on requests that exceed its limits; `enforce` if not given.
    pub(super) mode: Field<ModeSpec>,
    /// The behavior while the store is unavailable; `local` if not given. If several rules apply to a request, and one
    /// that can deny it has `deny`, the request is denied. Otherwise each rule follows its own behavior.
    pub(super) on_store_error: Field<OnStoreError>,
    /// The HTTP status of requests that the rule denies; 429 if not given.
    #[cfg_attr(feature = "schema", schemars(range(min = 400, max = 599)))]
    pub(super) deny_status: Field<u64>,
    /// The problem type in the body of a denial; `quota-exceeded` if not given. `abnormal-usage-detected` states
    /// that the requests of the client look unintended or malicious, for example on a ban.
    pub(super) problem: Field<ProblemType>,
    /// Whether rate limit headers contain the limits of the rule; true if not given. `Retry-After` is sent in any case.
    pub(super) headers: Field<bool>,
    /// The cost that the rule charges for a request: a constant number of units, or the name of a cost of the request;
    /// the request's `cost` if not given.
    pub(super) cost: Field<CostSpec>,
    /// Minimum number of free units with which a request fits, even if its cost is lower; 1 if not given. With 0 a
    /// request of cost 0 fits unless the counter is above max.
    #[cfg_attr(feature = "schema", schemars(range(max = crate::quota::MAX_UNITS)))]
    pub(super) required: Field<u64>,
    /// The requests that the rule charges; `if_admitted` if not given.
    pub(super) charge: Field<ChargeSpec>,
    /// The time for which a key is denied once it has exceeded a limit of the rule; no longer than the limit requires
    /// if not given.
    pub(super) block: Field<BlockSpec>,
    /// Prefix length of IPv6 addresses. Addresses with the same prefix share a counter; 64 if not given, 128 counts
    /// each address separately.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 128)))]
    pub(super) ipv6_prefix: Field<u64>,
    /// Rules of the domain that do not apply when this rule does.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 1000)))]
    pub(super) replaces: Field<Vec<Field<String>>>,
    /// Other settings for some of the rule's requests. The first override whose `when` matches a request applies.
    pub(super) overrides: Field<Vec<Field<OverrideSpec>>>,
    /// Options for stores that count in Redis. Other stores ignore these options.
    pub(super) redis: Field<RedisSpec>,
    /// Options for stores that count in a cluster. Other stores ignore these options.
    pub(super) cluster: Field<ClusterSpec>,
}

/// Options for stores that count in a cluster.
#[derive(Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("minProperties" = 1)))]
#[serde(default, deny_unknown_fields, expecting = "a map with `max_unsynced` or `on_partition`")]
pub(super) struct ClusterSpec {
    /// The maximum number of units of a counter that a node may have allowed and that some other node has not
    /// acknowledged yet; max divided by twice the number of nodes if not given.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = crate::quota::MAX_UNITS)))]
    pub(super) max_unsynced: Field<u64>,
    /// The behavior of a node while it cannot reach other nodes; `bounded` if not given.
    pub(super) on_partition: Field<OnPartition>,
}

/// Options for stores that count in Redis.
#[derive(Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("minProperties" = 1)))]
#[serde(default, deny_unknown_fields, expecting = "a map with `slot_by`, `split` or `sample`")]
pub(super) struct RedisSpec {
    /// The entries of `per` whose values determine the hash slot in Redis Cluster; all entries if not given.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 16)))]
    pub(super) slot_by: Field<Vec<Field<String>>>,
    /// Splits each counter over several Redis keys. Each key enforces its share of the limit.
    pub(super) split: Field<SplitSpec>,
    /// The percentage of requests that are sent to Redis, such as 10%. It must equal 1/n, for an integer n from 2 to
    /// 100. Each request that is sent is charged n times its cost.
    #[cfg_attr(feature = "schema", schemars(regex(pattern = r"^[0-9]{1,2}(\.[0-9]{1,2})? *%$")))]
    pub(super) sample: Field<String>,
}

/// A split of each counter over several Redis keys: the number of keys, and the attributes that select the key of a
/// request.
#[derive(Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("required" = ["by", "into"])))]
#[serde(default, deny_unknown_fields, expecting = "a map with `by` and `into`")]
pub(super) struct SplitSpec {
    /// The attributes whose values select the key of a request.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 16)))]
    pub(super) by: Field<Vec<Field<String>>>,
    /// The number of Redis keys over which each counter is split.
    #[cfg_attr(feature = "schema", schemars(range(min = 2, max = 1024)))]
    pub(super) into: Field<u64>,
}

/// Other settings for some of the rule's requests.
#[derive(Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("required" = ["when"])))]
#[serde(default, deny_unknown_fields, expecting = "a map with `when`")]
pub(super) struct OverrideSpec {
    #[cfg_attr(feature = "schema", schemars(regex(pattern = r"^[a-z0-9._-]{1,128}$")))]
    pub(super) name: Field<String>,
    /// Conditions on attributes; all of them must be met.
    pub(super) when: Field<WhenSpec>,
    /// Replaces the limits of the rule.
    pub(super) limits: Field<LimitsSpec>,
    /// Replaces the algorithm of the rule.
    pub(super) algorithm: Field<AlgorithmSpec>,
    /// Replaces the mode of the rule.
    pub(super) mode: Field<ModeSpec>,
}

/// A limit that is written as a map of fields.
#[derive(Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(
    feature = "schema",
    schemars(extend(
        "oneOf" = [
            { "required": ["max", "window"] },
            { "required": ["max", "calendar"] },
            { "required": ["concurrent", "permit_ttl"] }
        ]
    ))
)]
#[serde(
    default,
    deny_unknown_fields,
    expecting = "a map with `max` and `window` or `calendar`, or with `concurrent` and `permit_ttl`"
)]
pub(super) struct LimitMap {
    /// The name of the limit in headers, metrics and keys; the window if not given.
    #[cfg_attr(feature = "schema", schemars(regex(pattern = r"^[a-z0-9._-]{1,128}$")))]
    pub(super) name: Field<String>,
    /// The maximum number of units per window; 0 denies all requests.
    #[cfg_attr(feature = "schema", schemars(range(max = crate::quota::MAX_UNITS)))]
    pub(super) max: Field<u64>,
    /// The window: a whole number and one of the units ms, s, m (or min), h, d, w. A unit alone means 1 of this unit.
    #[cfg_attr(
        feature = "schema",
        schemars(regex(pattern = r"^\s*[0-9]*\s*(ms|s|m|min|h|d|w)\s*$"))
    )]
    pub(super) window: Field<String>,
    /// The period of a time zone in which units are counted, instead of a window. The count begins again with each
    /// period.
    pub(super) calendar: Field<PeriodSpec>,
    /// For `calendar`: the time zone, a name of the IANA database such as `Europe/Berlin`; `UTC` if not given.
    pub(super) timezone: Field<String>,
    /// For `calendar: week`: the first day of a week; `monday` if not given.
    pub(super) week_starts: Field<WeekdaySpec>,
    /// For `calendar`: the time of day such as `06:00`, the day of a month such as `15`, or the month and day of a
    /// quarter or year such as `04-06` at which periods begin; midnight of the first day if not given.
    #[cfg_attr(feature = "schema", schemars(extend("type" = ["string", "integer"])))]
    pub(super) starts: Field<String>,
    /// The maximum number of requests in flight, instead of `max` and a window; 0 denies all requests. Each admitted
    /// request gets a permit, which counts until it is released or expires.
    #[cfg_attr(feature = "schema", schemars(range(max = 10_000)))]
    pub(super) concurrent: Field<u64>,
    /// For `concurrent`: the time after which a permit expires if it is neither released nor renewed, from 1s to 24h.
    #[cfg_attr(
        feature = "schema",
        schemars(regex(pattern = r"^\s*[0-9]*\s*(ms|s|m|min|h|d|w)\s*$"))
    )]
    pub(super) permit_ttl: Field<String>,
    pub(super) algorithm: Field<AlgorithmSpec>,
    /// For `sliding_window`: the number of parts into which max and the window are divided; 32 if not given. If `max`
    /// is at most the resolution, the count is exact.
    #[cfg_attr(feature = "schema", schemars(range(min = 8, max = 1024)))]
    pub(super) resolution: Field<u64>,
    /// For `sliding_buckets`: the length of a bucket, which must divide the window; a tenth of the window if not given.
    pub(super) precision: Field<String>,
    /// For `token_bucket`: the maximum number of units that can be charged at once; `max` if not given.
    #[cfg_attr(feature = "schema", schemars(range(max = 536_870_912)))]
    pub(super) burst: Field<u64>,
    /// For `token_bucket`: the maximum debt in units, which charges without a check can cause; twice `max` if not
    /// given.
    #[cfg_attr(feature = "schema", schemars(range(max = 536_870_912)))]
    pub(super) max_debt: Field<u64>,
    /// For `fixed_window`: the time at which windows begin; `key` if not given.
    pub(super) align: Field<AlignSpec>,
}

/// The time at which fixed windows begin.
#[derive(Clone, Copy, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "AlignName"))]
#[serde(rename_all = "snake_case")]
pub(super) enum AlignSpec {
    /// Windows begin at a different offset for each key, so that not all keys reset at the same time.
    Key,
    /// Windows follow the calendar in UTC: a minute begins at second 0, a day at midnight.
    Clock,
}

/// The period of a calendar.
#[derive(Clone, Copy, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Period"))]
#[serde(rename_all = "snake_case")]
pub(super) enum PeriodSpec {
    /// From midnight to midnight, or from the time in `starts`.
    Day,
    /// Seven days, from the day in `week_starts`.
    Week,
    /// A month.
    Month,
    /// Three months, from January, April, July or October.
    Quarter,
    /// A year, from 1 January.
    Year,
}

/// The first day of a week.
#[derive(Clone, Copy, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Weekday"))]
#[serde(rename_all = "snake_case")]
pub(super) enum WeekdaySpec {
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

impl From<PeriodSpec> for Period {
    fn from(spec: PeriodSpec) -> Self {
        match spec {
            PeriodSpec::Day => Self::Day,
            PeriodSpec::Week => Self::Week,
            PeriodSpec::Month => Self::Month,
            PeriodSpec::Quarter => Self::Quarter,
            PeriodSpec::Year => Self::Year,
        }
    }
}

impl From<WeekdaySpec> for Weekday {
    fn from(spec: WeekdaySpec) -> Self {
        match spec {
            WeekdaySpec::Monday => Self::Monday,
            WeekdaySpec::Tuesday => Self::Tuesday,
            WeekdaySpec::Wednesday => Self::Wednesday,
            WeekdaySpec::Thursday => Self::Thursday,
            WeekdaySpec::Friday => Self::Friday,
            WeekdaySpec::Saturday => Self::Saturday,
            WeekdaySpec::Sunday => Self::Sunday,
        }
    }
}

/// An algorithm, which a policy file specifies by its name.
#[derive(Clone, Copy)]
pub(super) struct AlgorithmSpec(pub(super) Algorithm);

const ALGORITHM_NAMES: &[&str] = &{
    let mut names = [""; Algorithm::ALL.len()];
    let mut index = 0;
    while index < names.len() {
        names[index] = Algorithm::ALL[index].name();
        index += 1;
    }
    names
};

/// A limit that is written as text, such as `100/min`, or as a map.
pub(super) enum LimitSpec {
    Text(String),
    Map(Box<LimitMap>),
}

/// A list of limits, or one of the words `unlimited`, `denied` and `requested`.
pub(super) enum LimitsSpec {
    List(Vec<Field<LimitSpec>>),
    /// The word `unlimited`: every request passes.
    Unlimited,
    /// The word `denied`: no request passes.
    Denied,
    /// The word `requested`: the rule enforces the limit that a descriptor contains.
    Requested,
}

/// The cost that a rule charges for a request: a number of units, or the name of a cost of the request.
pub(super) enum CostSpec {
    Constant(u64),
    Named(String),
}

/// The requests that a rule charges.
#[derive(Clone, Copy, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(super) enum ChargeSpec {
    /// The rule charges requests that are admitted.
    IfAdmitted,
    /// The rule charges all requests. Denied requests can raise a counter above max.
    Always,
}

/// The effect of a rule on requests that exceed its limits.
pub(super) enum ModeSpec {
    Enforce,
    Jointly,
    Observe,
    Off,
    For(Box<EnforceMap>),
}

const MODE_NAMES: &[&str] = &["enforce", "jointly", "observe", "off"];

/// A mode that enforces the rule for a percentage of the keys, which are always the same keys. The other keys are
/// treated as in mode `observe`.
#[derive(Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("required" = ["enforce"])))]
#[serde(default, deny_unknown_fields, expecting = "a map with `enforce`")]
pub(super) struct EnforceMap {
    /// The percentage of the keys, from 0% to 100%, with two decimals at most.
    #[cfg_attr(feature = "schema", schemars(regex(pattern = r"^[0-9]{1,3}(\.[0-9]{1,2})? *%$")))]
    pub(super) enforce: Field<String>,
}

/// The entries of a map whose keys are names, in the order of the file.
type MapEntries<V> = Vec<(Field<String>, Field<V>)>;

/// The field `attributes`: the names of the attributes that rules may use.
pub(super) enum AttributesSpec {
    /// The names that the rules of all domains may use.
    All(Vec<Field<String>>),
    /// The names that the rules of each listed domain may use. Rules of other domains may use any names.
    ByDomain(MapEntries<Vec<Field<String>>>),
}

/// The field `when`: attribute names with their conditions, in the order of the file.
pub(super) struct WhenSpec(pub(super) MapEntries<ConditionSpec>);

/// A condition that is written as a value, a list of values, or a map with `not` or `literal`.
pub(super) enum ConditionSpec {
    One(String),
    Any(Vec<Field<String>>),
    Map(Box<ConditionMap>),
}

/// A condition that is written as a map, with either `not` or `literal`.
#[derive(Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("minProperties" = 1, "maxProperties" = 1)))]
#[serde(default, deny_unknown_fields, expecting = "a map with `not` or `literal`")]
pub(super) struct ConditionMap {
    /// Values that the attribute must not have. The condition is also met if the attribute is absent.
    pub(super) not: Field<ConditionSpec>,
    /// A list of values. The attribute must have one of them. They are compared byte for byte: `*`, addresses and
    /// networks have no special meaning.
    pub(super) literal: Field<Vec<Field<String>>>,
}

impl<'de> Deserialize<'de> for AlgorithmSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let unknown = || D::Error::unknown_variant(&name, ALGORITHM_NAMES);
        Algorithm::by_name(&name).map(Self).ok_or_else(unknown)
    }
}

impl<'de> Deserialize<'de> for WhenSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "a map of attributes, such as { method: POST }";
        deserializer.deserialize_map(EntriesVisitor { expected, entries: Vec::new() }).map(Self)
    }
}

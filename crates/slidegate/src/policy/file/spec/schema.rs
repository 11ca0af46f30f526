//! JSON Schemas of the policy file types whose `Deserialize` is implemented by hand.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::block::{BlockMap, BlockSpec};
use super::{
    ALGORITHM_NAMES, AlgorithmSpec, AttributesSpec, ConditionMap, ConditionSpec, CostSpec,
    EnforceMap, LimitMap, LimitSpec, LimitsSpec, MODE_NAMES, ModeSpec, WhenSpec,
};

macro_rules! schema {
    ($type:ty, $name:literal, |$generator:ident| $schema:expr) => {
        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                $name.into()
            }

            fn json_schema($generator: &mut SchemaGenerator) -> Schema {
                $schema
            }
        }
    };
}

schema!(AlgorithmSpec, "Algorithm", |_generator| json_schema!({
    "description": "The algorithm of a limit; `sliding_window` by default.",
    "enum": ALGORITHM_NAMES,
}));

schema!(LimitSpec, "Limit", |generator| json_schema!({
    "description": "A limit such as `100/min`, or a map with `max` and `window` or `calendar`, or with `concurrent` and `permit_ttl`.",
    "anyOf": [
        {
            "type": "string",
            "pattern": r"^\s*[0-9]+\s*/\s*[0-9]*\s*(ms|s|m|min|h|d|w)\s*$",
        },
        generator.subschema_for::<LimitMap>(),
    ],
}));

schema!(LimitsSpec, "Limits", |generator| json_schema!({
    "description": "Limits; a request must fit all of them. Or `unlimited` (every request passes), `denied` (no request passes), or `requested` (the limit that a descriptor contains).",
    "anyOf": [
        {
            "type": "array",
            "items": generator.subschema_for::<LimitSpec>(),
            "minItems": 1,
            "maxItems": crate::policy::file::MAX_LIMITS_PER_RULE,
        },
        { "enum": ["unlimited", "denied", "requested"] },
    ],
}));

schema!(ModeSpec, "Mode", |generator| json_schema!({
    "description": "`enforce` denies requests that exceed a limit; `jointly` denies a request only if it exceeds all limits in this mode; `observe` counts and never denies; `off` disables the rule; { enforce: 5% } enforces for a percentage of the keys.",
    "anyOf": [{ "enum": MODE_NAMES }, generator.subschema_for::<EnforceMap>()],
}));

schema!(BlockSpec, "Block", |generator| json_schema!({
    "description": "The time for which a key is denied once it has exceeded a limit of the rule, such as `10m`, or a map with this time.",
    "anyOf": [
        { "type": "string", "pattern": r"^\s*[0-9]*\s*(ms|s|m|min|h|d|w)\s*$" },
        generator.subschema_for::<BlockMap>(),
    ],
}));

schema!(CostSpec, "Cost", |_generator| json_schema!({
    "description": "A constant number of units, or the name of a cost of the request.",
    "anyOf": [
        { "type": "integer", "minimum": 1, "maximum": crate::quota::MAX_UNITS },
        { "type": "string", "pattern": r"^[a-z0-9._-]{1,128}$" },
    ],
}));

schema!(ConditionSpec, "Condition", |generator| {
    let values = json_schema!({ "type": ["string", "number", "boolean"] });
    json_schema!({
        "description": "A literal, a glob (`*` matches anything), a network, a list of these, or { not: … }, or { literal: […] }.",
        "anyOf": [
            values,
            { "type": "array", "items": values, "minItems": 1 },
            generator.subschema_for::<ConditionMap>(),
        ],
    })
});

schema!(WhenSpec, "When", |generator| json_schema!({
    "description": "Conditions on attributes; all of them must be met.",
    "type": "object",
    "additionalProperties": generator.subschema_for::<ConditionSpec>(),
    "minProperties": 1,
}));

schema!(AttributesSpec, "Attributes", |_generator| {
    let names = json_schema!({
        "type": "array",
        "items": { "type": "string" },
        "maxItems": crate::policy::file::MAX_DECLARED_ATTRIBUTES,
    });
    json_schema!({
        "description": "The names of the attributes that rules may use, for all domains or by domain.",
        "anyOf": [names, { "type": "object", "additionalProperties": names }],
    })
});

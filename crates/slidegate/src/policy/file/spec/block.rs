//! The field `block` of a rule, before it is compiled.

use serde::Deserialize;

use crate::policy::file::deserialize::Field;

/// The time for which a key is denied once it has exceeded a limit, such as `10m`, or a map with this time.
pub(in crate::policy::file) enum BlockSpec {
    For(String),
    Map(Box<BlockMap>),
}

/// A block that is written as a map.
#[derive(Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("required" = ["for"])))]
#[serde(default, deny_unknown_fields, expecting = "a map with `for`")]
pub(in crate::policy::file) struct BlockMap {
    /// The time for which the key is denied.
    #[cfg_attr(
        feature = "schema",
        schemars(regex(pattern = r"^\s*[0-9]*\s*(ms|s|m|min|h|d|w)\s*$"))
    )]
    pub(in crate::policy::file) r#for: Field<String>,
    /// Whether each request during the block begins its time again; false if not given.
    pub(in crate::policy::file) extend: Field<bool>,
}

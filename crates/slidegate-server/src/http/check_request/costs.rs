//! The costs of a request.

use super::text::LossyText;
use crate::json_reader::{JsonError, JsonKind, JsonReader, excerpt};

/// Maximum number of named costs in a request.
const MAX_NAMED_COSTS: usize = 64;

/// The named costs of a request. Each name occurs once.
#[derive(Default)]
pub struct NamedCosts<'b>(pub Vec<(LossyText<'b>, Cost)>);

/// The number of units that a request costs.
pub struct Cost(pub u64);

impl<'b> NamedCosts<'b> {
    /// Reads an object with costs as values.
    pub fn read(reader: &mut JsonReader<'b>) -> Result<Self, JsonError> {
        let kind = reader.peek_kind()?;
        if kind != JsonKind::Object {
            let message = format!(
                "`costs` is {}; send an object such as {{\"tokens\":1800}}",
                kind.describe()
            );
            return Err(reader.error(reader.position(), message));
        }
        let mut costs: Vec<(LossyText<'b>, Cost)> = Vec::new();
        reader.read_object(|reader, name| {
            let position = name.position;
            let name = LossyText::from(name);
            let shown = || excerpt(name.as_str().as_bytes());
            let cost = Cost::read(reader, || format!("cost `{}`", shown()))?;
            if costs.iter().any(|(other, _)| other.as_str() == name.as_str()) {
                let message = format!("duplicate cost `{}`; send each cost once", shown());
                return Err(reader.error(position, message));
            }
            if costs.len() == MAX_NAMED_COSTS {
                let message = format!(
                    "more than {MAX_NAMED_COSTS} costs; send only costs that rules charge, at most {MAX_NAMED_COSTS}"
                );
                return Err(reader.error(position, message));
            }
            costs.push((name, cost));
            Ok(())
        })?;
        Ok(Self(costs))
    }
}

impl Cost {
    /// Reads a cost. `describe` returns its name for error messages.
    pub fn read(
        reader: &mut JsonReader<'_>,
        describe: impl FnOnce() -> String,
    ) -> Result<Self, JsonError> {
        Self::read_number(reader, describe, "units").map(Self)
    }

    /// Reads a whole number of a unit, such as `milliseconds`. `describe` returns its name for error messages.
    pub fn read_number(
        reader: &mut JsonReader<'_>,
        describe: impl FnOnce() -> String,
        unit: &str,
    ) -> Result<u64, JsonError> {
        let kind = reader.peek_kind()?;
        let position = reader.position();
        let found = match kind {
            JsonKind::Number => {
                let text = reader.read_number()?.text;
                match parse_whole_number(text) {
                    Some(units) => return Ok(units),
                    None => excerpt(text.as_bytes()),
                }
            }
            other => other.describe().to_owned(),
        };
        let message = format!(
            "{} is {found}; send a whole number of {unit}, 0 or more, without quotes",
            describe()
        );
        Err(reader.error(position, message))
    }
}

/// Parses a number of units or milliseconds. Accepts whole numbers in floating-point notation, such as `2.0`, because some
/// languages write them so. Numbers of more than 64 bits saturate: a cost then exceeds every limit, and the request is
/// denied.
pub fn parse_whole_number(text: &str) -> Option<u64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        // Only an overflow fails: the text has at least one digit.
        return Some(text.parse().unwrap_or(u64::MAX));
    }
    let units: f64 = text.parse().ok()?;
    let is_whole = units == f64::INFINITY || units.fract() == 0.0;
    (is_whole && units >= 0.0).then_some(units as u64)
}

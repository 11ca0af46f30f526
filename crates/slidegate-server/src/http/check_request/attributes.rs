//! The attributes of a request.

use std::collections::HashSet;

use slidegate::Descriptor;

use super::costs::{Cost, NamedCosts};
use super::text::LossyText;
use crate::json_reader::{JsonError, JsonKind, JsonNumber, JsonReader, JsonString, excerpt};

/// Maximum number of attributes whose names are compared pairwise to find repeated names. If there are more attributes,
/// a hash set is used.
const MAX_PAIRWISE_COMPARED_ATTRIBUTES: usize = 16;

/// The names and values of a request's attributes. Each name occurs once.
pub struct Attributes<'b>(Vec<(LossyText<'b>, LossyText<'b>)>);

impl<'b> Attributes<'b> {
    /// Reads an object with strings, integers or booleans as values.
    pub fn read(reader: &mut JsonReader<'b>) -> Result<Self, JsonError> {
        let kind = reader.peek_kind()?;
        if kind != JsonKind::Object {
            let message = format!(
                "`attributes` is {}; send an object such as {{\"client\":\"alice\"}}",
                kind.describe()
            );
            return Err(reader.error(reader.position(), message));
        }
        let mut attributes: Vec<(LossyText<'b>, LossyText<'b>)> = Vec::new();
        let mut names = HashSet::new();
        reader.read_object(|reader, name| {
            let position = name.position;
            let value = read_value(reader, &name)?;
            let name = LossyText::from(name);
            // A name that is not Unicode cannot occur in a policy, so it is ignored.
            if name.invalid_bytes().is_some() {
                return Ok(());
            }
            if attributes.len() == MAX_PAIRWISE_COMPARED_ATTRIBUTES {
                names.extend(attributes.iter().map(|(name, _)| name.as_str().to_owned()));
            }
            let is_repeated = match attributes.len() < MAX_PAIRWISE_COMPARED_ATTRIBUTES {
                true => attributes.iter().any(|(other, _)| other.as_str() == name.as_str()),
                false => !names.insert(name.as_str().to_owned()),
            };
            // JSON parsers disagree on which of two equal names counts. A client could use that to bypass a limit.
            if is_repeated {
                let name = excerpt(name.as_str().as_bytes());
                let message = format!("duplicate attribute `{name}`; send each attribute once");
                return Err(reader.error(position, message));
            }
            attributes.push((name, value));
            Ok(())
        })?;
        Ok(Self(attributes))
    }

    /// Converts the attributes and the costs to a descriptor.
    pub fn to_descriptor<'d>(
        &'d self,
        cost: Option<&Cost>,
        costs: &'d NamedCosts<'_>,
    ) -> Descriptor<'d> {
        let pairs = self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let mut descriptor = Descriptor::new(pairs);
        if let Some(Cost(units)) = cost {
            descriptor = descriptor.cost(*units);
        }
        for (name, Cost(units)) in &costs.0 {
            descriptor = descriptor.with_cost(name.as_str(), *units);
        }
        for (name, value) in &self.0 {
            if let Some(bytes) = value.invalid_bytes() {
                descriptor = descriptor.with_bytes(name.as_str(), bytes);
            }
        }
        descriptor
    }
}

/// Reads the value of the attribute `name`. An integer or a boolean counts as its text.
#[inline]
fn read_value<'b>(
    reader: &mut JsonReader<'b>,
    name: &JsonString<'_>,
) -> Result<LossyText<'b>, JsonError> {
    match reader.peek_kind()? {
        JsonKind::String => Ok(reader.read_string()?.into()),
        JsonKind::Number => match reader.read_number()? {
            number if has_single_spelling(number) => Ok(number.text.into()),
            number => Err(number_with_several_spellings_error(reader, name, number)),
        },
        JsonKind::Boolean => Ok(reader.read_boolean().into()),
        other => Err(invalid_value_error(reader, name, other)),
    }
}

/// Returns `true` for integers except -0. Other numbers have several spellings, such as 1e3 and 1000.0, which would
/// have separate counters.
fn has_single_spelling(number: JsonNumber<'_>) -> bool {
    number.is_integer() && number.text != "-0"
}

fn number_with_several_spellings_error(
    reader: &JsonReader<'_>,
    name: &JsonString<'_>,
    number: JsonNumber<'_>,
) -> JsonError {
    let (name, text) = (excerpt(&name.bytes), excerpt(number.text.as_bytes()));
    let message = format!(
        "attribute `{name}` is the number {text}, and only integers such as 42 are accepted; send \
         it as a string: \"{text}\""
    );
    reader.error(number.position, message)
}

fn invalid_value_error(
    reader: &JsonReader<'_>,
    name: &JsonString<'_>,
    kind: JsonKind,
) -> JsonError {
    let remedy = match kind {
        JsonKind::Null => "send a string, or omit the attribute",
        JsonKind::List => {
            "send a string, an integer or a boolean, for example one attribute per element"
        }
        _ => "send a string, an integer or a boolean, for example one attribute per field",
    };
    let message = format!("attribute `{}` is {}; {remedy}", excerpt(&name.bytes), kind.describe());
    reader.error(reader.position(), message)
}

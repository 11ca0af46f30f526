//! The fields of request bodies, and their names.

use slidegate::internal::most_similar_word;

use super::attributes::Attributes;
use super::call_fields::{IdempotencyText, ReservationTtl};
use super::costs::{Cost, NamedCosts};
use super::text::{LossyText, default_domain};
use super::wait::WaitMillis;
use crate::json_reader::{JsonError, JsonKind, JsonReader, JsonString, excerpt};

/// The kind of a JSON object, which determines its fields.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum BodyKind {
    /// The body of `/v1/check`.
    Check,
    /// The body of `/v1/peek`.
    Peek,
    /// The body of `/v1/reserve`.
    Reserve,
    /// The body of `/v1/settle`.
    Settle,
    /// The body of `/v1/release` and `/v1/renew`.
    Permit,
    /// The body of `/v1/report`.
    Report,
    /// The body of `/v1/explain`.
    Explain,
    /// An element of `descriptors` in the body of `/v1/explain`.
    Descriptor,
}

/// The fields of a body.
pub struct BodyFields<'b> {
    pub domain: LossyText<'b>,
    pub attributes: Option<Attributes<'b>>,
    pub cost: Option<Cost>,
    pub costs: NamedCosts<'b>,
    pub idempotency_key: Option<IdempotencyText<'b>>,
    pub ttl_ms: Option<ReservationTtl>,
    /// The token of a reservation. Text that is not Unicode is never a valid token.
    pub reservation: Option<LossyText<'b>>,
    pub wait_ms: Option<WaitMillis>,
    /// The token of a permit.
    pub permit: Option<LossyText<'b>>,
    /// `None` if the field is missing.
    pub descriptors: Option<Vec<ExplainDescriptor<'b>>>,
}

/// One descriptor in the body of `/v1/explain`.
pub struct ExplainDescriptor<'b> {
    pub attributes: Attributes<'b>,
    pub cost: Option<Cost>,
    pub costs: NamedCosts<'b>,
}

/// Field names of other rate limiters, and common mistakes, each with the field that corresponds to it.
const SYNONYMS: [(&str, &str); 27] = [
    ("attribute", "attributes"),
    ("attrs", "attributes"),
    ("key", "attributes"),
    ("keys", "attributes"),
    ("label", "attributes"),
    ("labels", "attributes"),
    ("tags", "attributes"),
    ("descriptor", "attributes"),
    ("entries", "attributes"),
    ("hits", "cost"),
    ("hitsAddend", "cost"),
    ("hits_addend", "cost"),
    ("units", "cost"),
    ("amount", "cost"),
    ("weight", "cost"),
    ("quantity", "cost"),
    ("namespace", "domain"),
    ("idempotencyKey", "idempotency_key"),
    ("request_id", "idempotency_key"),
    ("ttl", "ttl_ms"),
    ("token", "reservation"),
    ("reservation_id", "reservation"),
    ("wait", "wait_ms"),
    ("max_wait", "wait_ms"),
    ("timeout_ms", "wait_ms"),
    ("token", "permit"),
    ("permit_id", "permit"),
];

impl BodyKind {
    /// Returns the names of the fields.
    fn field_names(self) -> &'static [&'static str] {
        match self {
            Self::Check => &["domain", "attributes", "cost", "costs", "idempotency_key", "wait_ms"],
            Self::Report => &["domain", "attributes", "cost", "costs", "idempotency_key"],
            Self::Peek => &["domain", "attributes", "cost", "costs"],
            Self::Reserve => {
                &["domain", "attributes", "cost", "costs", "idempotency_key", "ttl_ms"]
            }
            Self::Settle => &["reservation", "cost", "costs"],
            Self::Permit => &["permit"],
            Self::Explain => &["domain", "attributes", "cost", "costs", "descriptors"],
            Self::Descriptor => &["attributes", "cost", "costs"],
        }
    }
}

impl<'b> BodyFields<'b> {
    /// Parses a body, which must be a JSON object with fields of this kind.
    pub fn parse(body: &'b [u8], kind: BodyKind) -> Result<Self, JsonError> {
        let mut reader = JsonReader::from_object(body)?;
        let fields = Self::read(&mut reader, kind)?;
        reader.finish()?;
        Ok(fields)
    }

    /// Reads an object with fields of this kind.
    fn read(reader: &mut JsonReader<'b>, kind: BodyKind) -> Result<Self, JsonError> {
        let (mut domain, mut attributes, mut cost, mut costs) = (None, None, None, None);
        let (mut idempotency_key, mut ttl_ms, mut reservation) = (None, None, None);
        let (mut wait_ms, mut permit, mut descriptors) = (None, None, None);
        reader.read_object(|reader, name| {
            let known = name.as_str();
            match known.filter(|name| kind.field_names().contains(name)) {
                Some("attributes") => {
                    set(&mut attributes, Attributes::read(reader)?, reader, &name)
                }
                Some("domain") => set(&mut domain, read_domain(reader)?, reader, &name),
                Some("cost") => {
                    set(&mut cost, Cost::read(reader, || "`cost`".into())?, reader, &name)
                }
                Some("costs") => set(&mut costs, NamedCosts::read(reader)?, reader, &name),
                Some("idempotency_key") => {
                    set(&mut idempotency_key, IdempotencyText::read(reader)?, reader, &name)
                }
                Some("ttl_ms") => set(&mut ttl_ms, ReservationTtl::read(reader)?, reader, &name),
                Some("reservation") => {
                    let token = read_token(reader, "reservation", "/v1/reserve")?;
                    set(&mut reservation, token, reader, &name)
                }
                Some("permit") => {
                    set(&mut permit, read_token(reader, "permit", "/v1/check")?, reader, &name)
                }
                Some("wait_ms") => set(&mut wait_ms, WaitMillis::read(reader)?, reader, &name),
                Some("descriptors") => {
                    set(&mut descriptors, read_descriptors(reader)?, reader, &name)
                }
                _ => Err(unknown_field_error(reader, &name, kind)),
            }
        })?;
        Ok(Self {
            domain: domain.unwrap_or_else(default_domain),
            attributes,
            cost,
            costs: costs.unwrap_or_default(),
            idempotency_key,
            ttl_ms,
            reservation,
            wait_ms,
            permit,
            descriptors,
        })
    }
}

/// Sets a field. Fails if it is already set: JSON parsers disagree on which of two equal names counts.
fn set<T>(
    field: &mut Option<T>,
    value: T,
    reader: &JsonReader<'_>,
    name: &JsonString<'_>,
) -> Result<(), JsonError> {
    match field.replace(value) {
        None => Ok(()),
        Some(_) => {
            let message = format!("duplicate field `{}`; send it once", excerpt(&name.bytes));
            Err(reader.error(name.position, message))
        }
    }
}

fn read_domain<'b>(reader: &mut JsonReader<'b>) -> Result<LossyText<'b>, JsonError> {
    match reader.peek_kind()? {
        JsonKind::String => Ok(reader.read_string()?.into()),
        other => {
            let message = format!(
                "`domain` is {}; send a string, or omit the field for the domain `default`",
                other.describe()
            );
            Err(reader.error(reader.position(), message))
        }
    }
}

/// Reads the token in a field, which is also a field in the response at `path`.
fn read_token<'b>(
    reader: &mut JsonReader<'b>,
    field: &str,
    path: &str,
) -> Result<LossyText<'b>, JsonError> {
    match reader.peek_kind()? {
        JsonKind::String => Ok(reader.read_string()?.into()),
        other => {
            let message = format!(
                "`{field}` is {}; send the `{field}` in the response of {path}",
                other.describe()
            );
            Err(reader.error(reader.position(), message))
        }
    }
}

fn read_descriptors<'b>(
    reader: &mut JsonReader<'b>,
) -> Result<Vec<ExplainDescriptor<'b>>, JsonError> {
    let kind = reader.peek_kind()?;
    if kind != JsonKind::List {
        let message = format!(
            "`descriptors` is {}; send a list such as [{{\"attributes\":{{\"client\":\"alice\"}}}}]",
            kind.describe()
        );
        return Err(reader.error(reader.position(), message));
    }
    let mut descriptors = Vec::new();
    reader.read_list(|reader| {
        let kind = reader.peek_kind()?;
        let position = reader.position();
        if kind != JsonKind::Object {
            let message = format!(
                "a descriptor is {}; send an object such as {{\"attributes\":{{\"client\":\"alice\"}}}}",
                kind.describe()
            );
            return Err(reader.error(position, message));
        }
        let BodyFields { attributes, cost, costs, .. } =
            BodyFields::read(reader, BodyKind::Descriptor)?;
        let attributes = attributes.ok_or_else(|| {
            let message = "field `attributes` of a descriptor is missing; add it, for example \
                           \"attributes\":{\"client\":\"alice\"}";
            reader.error(position, message)
        })?;
        descriptors.push(ExplainDescriptor { attributes, cost, costs });
        Ok(())
    })?;
    Ok(descriptors)
}

/// Returns the error for a field that objects of this kind do not have. The reader must be at the value of the field.
fn unknown_field_error(
    reader: &mut JsonReader<'_>,
    name: &JsonString<'_>,
    kind: BodyKind,
) -> JsonError {
    let fields = kind.field_names();
    let known_fields = || {
        let names: Vec<String> = fields.iter().map(|name| format!("`{name}`")).collect();
        format!("known fields are {}", names.join(", "))
    };
    if name.as_str().is_none() {
        let problem = "field name with an unpaired surrogate or bytes that are not UTF-8";
        return reader.error(name.position, format!("{problem}; {}", known_fields()));
    }
    let field = excerpt(&name.bytes);
    let synonym =
        SYNONYMS.iter().find(|(synonym, meant)| *synonym == field && fields.contains(meant));
    let synonym = synonym.map(|(_, meant)| *meant);
    let meant = synonym.or_else(|| most_similar_word(&field, fields.iter().copied()));
    let is_scalar =
        matches!(reader.peek_kind(), Ok(JsonKind::String | JsonKind::Number | JsonKind::Boolean));
    let remedy = match meant {
        _ if field == "descriptors" => {
            "send `attributes`; only /json and /v1/explain accept descriptors".to_owned()
        }
        Some(meant) => format!("did you mean `{meant}`?"),
        None if is_scalar => {
            format!(r#"if it is an attribute, send {{"attributes":{{"{field}":…}}}}"#)
        }
        None => known_fields(),
    };
    reader.error(name.position, format!("unknown field `{field}`; {remedy}"))
}

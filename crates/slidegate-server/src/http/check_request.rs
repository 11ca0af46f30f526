//! JSON bodies of checks, reports and explanations.
//!
//! No value, domain, number of units or number of attributes makes a check fail. End clients choose many of these values,
//! and callers often allow a request if its check fails: with a value that is not accepted, a client could bypass its
//! limits. Names of costs are chosen by callers, and a name that no rule charges is rejected after parsing: see
//! [`crate::names`].

mod attributes;
mod call_fields;
mod costs;
mod fields;
mod permits;
mod reservations;
mod text;
mod wait;

use std::time::Duration;

use slidegate::{IdempotencyKey, Request};

use self::attributes::Attributes;
use self::call_fields::IdempotencyText;
use self::costs::{Cost, NamedCosts};
use self::fields::{BodyFields, BodyKind};
pub use self::permits::PermitRequest;
pub use self::reservations::{ReserveRequest, SettleRequest};
pub use self::text::{LossyText, default_domain};
use self::wait::WaitMillis;
use crate::json_reader::JsonError;
use crate::rendering::problem::HttpProblem;
use crate::request_handler::ParsedRequest;

/// The body of `/v1/check`: the request to decide.
pub struct CheckRequest<'b> {
    /// The domain whose rules apply, by default `default`.
    domain: LossyText<'b>,
    /// The attributes of the request. Integers, written without fraction and exponent, and booleans count as their
    /// text: 42 and "42" are the same value.
    attributes: Attributes<'b>,
    /// Units for rules that state no cost: 1 by default. 0 checks whether one unit would fit.
    cost: Option<Cost>,
    /// Units for rules that charge a named cost, such as {"tokens": 1800}. If the name of a rule's cost is missing
    /// here, the rule is checked, but not charged.
    costs: NamedCosts<'b>,
    /// Identifies the request, so that a repetition within 10 minutes returns the same decision and charges nothing.
    idempotency_key: Option<IdempotencyText<'b>>,
    /// Milliseconds for which the call may wait until the request fits, in the order of arrival; bounded by the server.
    wait_ms: WaitMillis,
}

/// The body of `/v1/peek`: the request to decide without a charge.
pub struct PeekRequest<'b> {
    /// The domain whose rules apply, by default `default`.
    domain: LossyText<'b>,
    /// The attributes of the request. Integers, written without fraction and exponent, and booleans count as their
    /// text: 42 and "42" are the same value.
    attributes: Attributes<'b>,
    /// Units for rules that state no cost: 1 by default. 0 checks whether one unit would fit.
    cost: Option<Cost>,
    /// Units for rules that charge a named cost, such as {"tokens": 1800}.
    costs: NamedCosts<'b>,
}

/// The body of `/v1/report`: units that have been consumed, at least one cost.
pub struct ReportRequest<'b> {
    /// The domain whose rules apply, by default `default`.
    domain: LossyText<'b>,
    /// The attributes of the request. Integers, written without fraction and exponent, and booleans count as their
    /// text: 42 and "42" are the same value.
    attributes: Attributes<'b>,
    /// Units that rules without a stated cost charge. If this field is missing, these rules are skipped.
    cost: Option<Cost>,
    /// Units that rules with a named cost charge, such as {"tokens": 1800}.
    costs: NamedCosts<'b>,
    /// Identifies the report, so that a repetition within 10 minutes records nothing.
    idempotency_key: Option<IdempotencyText<'b>>,
}

impl<'b> ReportRequest<'b> {
    /// Parses the body of a report, which must contain at least one cost.
    pub fn parse(body: &'b [u8]) -> Result<Self, HttpProblem> {
        let fields = BodyFields::parse(body, BodyKind::Report)?;
        if fields.cost.is_none() && fields.costs.0.is_empty() {
            return Err(HttpProblem::bad_request(
                r#"the report contains no units; add `cost`, or `costs` such as {"tokens":1800}"#,
            ));
        }
        Ok(Self {
            domain: fields.domain,
            attributes: fields.attributes.ok_or_else(missing_attributes_problem)?,
            cost: fields.cost,
            costs: fields.costs,
            idempotency_key: fields.idempotency_key,
        })
    }
}

impl ParsedRequest for ReportRequest<'_> {
    fn to_gate_request(&self) -> Request<'_> {
        let descriptor = self.attributes.to_descriptor(self.cost.as_ref(), &self.costs);
        Request::new(self.domain.as_str(), descriptor)
    }

    fn idempotency_key(&self) -> Option<IdempotencyKey<'_>> {
        let key = self.idempotency_key.as_ref()?;
        Some(IdempotencyKey::new(key.as_str()).with_operation("report"))
    }
}

impl<'b> CheckRequest<'b> {
    /// Parses the body of a check.
    pub fn parse(body: &'b [u8]) -> Result<Self, HttpProblem> {
        let fields = BodyFields::parse(body, BodyKind::Check)?;
        Ok(Self {
            domain: fields.domain,
            attributes: fields.attributes.ok_or_else(missing_attributes_problem)?,
            cost: fields.cost,
            costs: fields.costs,
            idempotency_key: fields.idempotency_key,
            wait_ms: fields.wait_ms.unwrap_or_default(),
        })
    }
}

impl ParsedRequest for CheckRequest<'_> {
    fn to_gate_request(&self) -> Request<'_> {
        let descriptor = self.attributes.to_descriptor(self.cost.as_ref(), &self.costs);
        Request::new(self.domain.as_str(), descriptor)
    }

    fn idempotency_key(&self) -> Option<IdempotencyKey<'_>> {
        let key = self.idempotency_key.as_ref()?;
        Some(IdempotencyKey::new(key.as_str()).with_operation("check"))
    }

    fn max_wait(&self) -> Duration {
        self.wait_ms.duration()
    }
}

impl<'b> PeekRequest<'b> {
    /// Parses the body of a peek.
    pub fn parse(body: &'b [u8]) -> Result<Self, HttpProblem> {
        let fields = BodyFields::parse(body, BodyKind::Peek)?;
        Ok(Self {
            domain: fields.domain,
            attributes: fields.attributes.ok_or_else(missing_attributes_problem)?,
            cost: fields.cost,
            costs: fields.costs,
        })
    }
}

impl ParsedRequest for PeekRequest<'_> {
    fn to_gate_request(&self) -> Request<'_> {
        let descriptor = self.attributes.to_descriptor(self.cost.as_ref(), &self.costs);
        Request::new(self.domain.as_str(), descriptor)
    }
}

/// The body of `/v1/explain`: attributes as in [`CheckRequest`], or descriptors as in a request to Envoy's rate limit
/// service.
pub struct ExplainRequest<'b>(BodyFields<'b>);

impl<'b> ExplainRequest<'b> {
    /// Parses the body of a request to `/v1/explain`, which must contain either attributes or descriptors.
    pub fn parse(body: &'b [u8]) -> Result<Self, HttpProblem> {
        let fields = BodyFields::parse(body, BodyKind::Explain)?;
        let problem = match (&fields.attributes, &fields.descriptors) {
            (Some(_), None) => return Ok(Self(fields)),
            (Some(_), Some(_)) => {
                "`attributes` and `descriptors` exclude each other; send one of them"
            }
            (None, None) => {
                r#"the body contains neither `attributes` nor `descriptors`; send attributes such as {"attributes":{"client":"alice"}}"#
            }
            (None, Some(descriptors)) if descriptors.is_empty() => {
                r#"`descriptors` is empty; send descriptors such as [{"attributes":{"client":"alice"},"cost":1}]"#
            }
            (None, Some(_)) if fields.cost.is_some() || !fields.costs.0.is_empty() => {
                "`cost` and `costs` have no effect together with `descriptors`; move them into a descriptor"
            }
            (None, Some(_)) => return Ok(Self(fields)),
        };
        Err(HttpProblem::bad_request(problem))
    }

    /// Converts this body to the request type that the gate evaluates.
    pub fn to_gate_request(&self) -> Request<'_> {
        let Self(fields) = self;
        let single = fields.attributes.iter();
        let single =
            single.map(|attributes| attributes.to_descriptor(fields.cost.as_ref(), &fields.costs));
        let several = fields.descriptors.iter().flatten();
        let several = several.map(|descriptor| {
            descriptor.attributes.to_descriptor(descriptor.cost.as_ref(), &descriptor.costs).exact()
        });
        Request::with_descriptors(fields.domain.as_str(), single.chain(several))
    }
}

fn missing_attributes_problem() -> HttpProblem {
    HttpProblem::bad_request(
        r#"field `attributes` is missing; send {"attributes":{"client":"alice"}}, or {"attributes":{}} for a request without attributes"#,
    )
}

impl From<JsonError> for HttpProblem {
    fn from(error: JsonError) -> Self {
        Self::bad_request(error.to_string())
    }
}

#[cfg(test)]
mod tests;

//! JSON bodies of requests. Each body lists all its fields, because serde cannot reject unknown fields of a body that
//! shares fields with others by `flatten`.
//!
//! No value, domain, number of units or number of attributes makes a check fail. End clients choose many of these values,
//! and callers often allow a request if its check fails: with a value that is not accepted, a client could bypass its
//! limits. Names of costs are chosen by callers, and a name that no rule charges is rejected after parsing: see
//! [`crate::names`].

mod fields;

use std::time::Duration;

use serde::Deserialize;
use slidegate::{ActualCosts, DEFAULT_CALL_TTL, IdempotencyKey, Request};

use self::fields::{
    Attributes, JsonObject, NamedCosts, read_cost, read_idempotency_key, read_some, read_ttl_ms,
    read_wait_ms,
};
pub use self::fields::{Text, default_domain};
use crate::bounds::MAX_DESCRIPTORS;
use crate::client_text::describe_json_error;
use crate::rendering::problem::HttpProblem;
use crate::request_handler::ParsedRequest;

/// A JSON body, which borrows its strings from the text of a request.
pub trait RequestBody<'b>: Deserialize<'b> {
    /// The remedy in errors about the JSON text.
    const REMEDY: &'static str = r#"send a JSON object such as {"attributes":{"client":"alice"}}"#;

    /// Checks rules that concern several fields. Fails with a problem and a remedy.
    fn validate(&self) -> Result<(), &'static str> {
        Ok(())
    }
}

/// Parses a body that [`repair_json`](crate::client_text::repair_json) has made readable. Positions in errors refer to
/// the repaired text.
pub fn parse<'b, T: RequestBody<'b>>(text: &'b str) -> Result<T, HttpProblem> {
    let JsonObject(body) = serde_json::from_str::<JsonObject<T>>(text).map_err(|error| {
        let mut problem = describe_json_error(&error);
        // Errors of the module `fields` contain a more specific remedy.
        if !problem.contains("; ") {
            problem = format!("{problem}; {}", T::REMEDY);
        }
        HttpProblem::bad_request(problem)
    })?;
    body.validate().map_err(HttpProblem::bad_request)?;
    Ok(body)
}

/// The body of `/v1/check`: the request to decide.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckRequest<'b> {
    /// The domain whose rules apply, by default `default`.
    #[serde(borrow, default = "default_domain")]
    domain: Text<'b>,
    /// The attributes of the request. Integers, written without fraction and exponent, and booleans count as their
    /// text: 42 and "42" are the same value. In a string that is not Unicode, U+FFFD replaces each invalid part.
    attributes: Attributes<'b>,
    /// Units for rules that state no cost: 1 by default. 0 checks whether one unit would fit.
    #[serde(default, deserialize_with = "read_cost")]
    cost: Option<u64>,
    /// Units for rules that charge a named cost, such as {"tokens": 1800}. If the name of a rule's cost is missing
    /// here, the rule is checked, but not charged.
    #[serde(default)]
    costs: NamedCosts<'b>,
    /// Identifies the request, so that a repetition within 10 minutes returns the same decision and charges nothing.
    #[serde(default, deserialize_with = "read_idempotency_key")]
    idempotency_key: Option<Text<'b>>,
    /// Milliseconds for which the call may wait until the request fits, in the order of arrival; bounded by the server.
    #[serde(default, deserialize_with = "read_wait_ms")]
    wait_ms: Option<Duration>,
}

/// The body of `/v1/peek`: the request to decide without a charge.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeekRequest<'b> {
    /// The domain whose rules apply, by default `default`.
    #[serde(borrow, default = "default_domain")]
    domain: Text<'b>,
    /// The attributes of the request, as in [`CheckRequest`].
    attributes: Attributes<'b>,
    /// Units for rules that state no cost: 1 by default. 0 checks whether one unit would fit.
    #[serde(default, deserialize_with = "read_cost")]
    cost: Option<u64>,
    /// Units for rules that charge a named cost, such as {"tokens": 1800}.
    #[serde(default)]
    costs: NamedCosts<'b>,
}

/// The body of `/v1/report`: units that have been consumed, at least one cost.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReportRequest<'b> {
    /// The domain whose rules apply, by default `default`.
    #[serde(borrow, default = "default_domain")]
    domain: Text<'b>,
    /// The attributes of the request, as in [`CheckRequest`].
    attributes: Attributes<'b>,
    /// Units that rules without a stated cost charge. If this field is missing, these rules are skipped.
    #[serde(default, deserialize_with = "read_cost")]
    cost: Option<u64>,
    /// Units that rules with a named cost charge, such as {"tokens": 1800}.
    #[serde(default)]
    costs: NamedCosts<'b>,
    /// Identifies the report, so that a repetition within 10 minutes records nothing.
    #[serde(default, deserialize_with = "read_idempotency_key")]
    idempotency_key: Option<Text<'b>>,
}

/// The body of `/v1/reserve`: the request to decide, with its estimated costs.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReserveRequest<'b> {
    /// The domain whose rules apply, by default `default`.
    #[serde(borrow, default = "default_domain")]
    domain: Text<'b>,
    /// The attributes of the request, as in [`CheckRequest`].
    attributes: Attributes<'b>,
    /// Estimated units for rules that state no cost: 1 by default.
    #[serde(default, deserialize_with = "read_cost")]
    cost: Option<u64>,
    /// Estimated units for rules that charge a named cost, such as {"tokens": 2000}.
    #[serde(default)]
    costs: NamedCosts<'b>,
    /// Identifies the request, so that a repetition returns the same reservation and charges nothing.
    #[serde(default, deserialize_with = "read_idempotency_key")]
    idempotency_key: Option<Text<'b>>,
    /// Milliseconds for which the reservation can be settled, at most 24 hours.
    #[serde(default, deserialize_with = "read_ttl_ms")]
    ttl_ms: Option<Duration>,
}

/// The body of `/v1/settle`: a reservation, and the actual costs, at least one.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettleRequest<'b> {
    /// The `reservation` in the response of `/v1/reserve`.
    #[serde(borrow)]
    reservation: Text<'b>,
    /// Actual units for rules that state no cost. 0 without `costs` cancels the reservation: all its charges are
    /// reverted.
    #[serde(default, deserialize_with = "read_cost")]
    cost: Option<u64>,
    /// Actual units for rules that charge a named cost, such as {"tokens": 1830}.
    #[serde(default)]
    costs: NamedCosts<'b>,
}

/// The body of `/v1/release` and `/v1/renew`: a permit.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PermitRequest<'b> {
    /// The `permit` in the response of `/v1/check` or `/v1/reserve`.
    #[serde(borrow)]
    permit: Text<'b>,
}

/// The body of `/v1/explain`: attributes as in [`CheckRequest`], or descriptors as in a request to Envoy's rate limit
/// service.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExplainRequest<'b> {
    /// The domain whose rules apply, by default `default`.
    #[serde(borrow, default = "default_domain")]
    domain: Text<'b>,
    #[serde(default, deserialize_with = "read_some")]
    attributes: Option<Attributes<'b>>,
    #[serde(default, deserialize_with = "read_cost")]
    cost: Option<u64>,
    #[serde(default)]
    costs: NamedCosts<'b>,
    #[serde(default, deserialize_with = "read_some")]
    descriptors: Option<Vec<JsonObject<ExplainDescriptor<'b>>>>,
}

/// One descriptor in the body of `/v1/explain`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExplainDescriptor<'b> {
    #[serde(borrow)]
    attributes: Attributes<'b>,
    #[serde(default, deserialize_with = "read_cost")]
    cost: Option<u64>,
    #[serde(default)]
    costs: NamedCosts<'b>,
}

impl<'b> RequestBody<'b> for CheckRequest<'b> {}

impl ParsedRequest for CheckRequest<'_> {
    fn to_gate_request(&self) -> Request<'_> {
        Request::new(&self.domain, self.attributes.to_descriptor(self.cost, &self.costs))
    }

    fn idempotency_key(&self) -> Option<IdempotencyKey<'_>> {
        let key = self.idempotency_key.as_ref()?;
        Some(IdempotencyKey::new(key).with_operation("check"))
    }

    fn max_wait(&self) -> Duration {
        self.wait_ms.unwrap_or_default()
    }
}

impl<'b> RequestBody<'b> for PeekRequest<'b> {}

impl ParsedRequest for PeekRequest<'_> {
    fn to_gate_request(&self) -> Request<'_> {
        Request::new(&self.domain, self.attributes.to_descriptor(self.cost, &self.costs))
    }
}

impl<'b> RequestBody<'b> for ReportRequest<'b> {
    fn validate(&self) -> Result<(), &'static str> {
        if self.cost.is_none() && self.costs.0.is_empty() {
            return Err(
                r#"the report contains no units; add `cost`, or `costs` such as {"tokens":1800}"#,
            );
        }
        Ok(())
    }
}

impl ParsedRequest for ReportRequest<'_> {
    fn to_gate_request(&self) -> Request<'_> {
        Request::new(&self.domain, self.attributes.to_descriptor(self.cost, &self.costs))
    }

    fn idempotency_key(&self) -> Option<IdempotencyKey<'_>> {
        let key = self.idempotency_key.as_ref()?;
        Some(IdempotencyKey::new(key).with_operation("report"))
    }
}

impl<'b> RequestBody<'b> for ReserveRequest<'b> {}

impl ReserveRequest<'_> {
    /// Returns the time for which the reservation can be settled.
    pub fn ttl(&self) -> Duration {
        self.ttl_ms.unwrap_or(DEFAULT_CALL_TTL)
    }
}

impl ParsedRequest for ReserveRequest<'_> {
    fn to_gate_request(&self) -> Request<'_> {
        Request::new(&self.domain, self.attributes.to_descriptor(self.cost, &self.costs))
    }

    fn idempotency_key(&self) -> Option<IdempotencyKey<'_>> {
        let key = self.idempotency_key.as_ref()?;
        Some(IdempotencyKey::new(key).with_operation("reserve"))
    }
}

impl<'b> RequestBody<'b> for SettleRequest<'b> {
    const REMEDY: &'static str =
        "send the `reservation` in the response of /v1/reserve, and `cost` or `costs`";

    fn validate(&self) -> Result<(), &'static str> {
        if self.cost.is_none() && self.costs.0.is_empty() {
            return Err(
                r#"the settlement contains no units; add `cost`, or `costs` such as {"tokens":1830}; {"cost":0} cancels the reservation"#,
            );
        }
        Ok(())
    }
}

impl SettleRequest<'_> {
    /// Returns the token of the reservation.
    pub fn token(&self) -> &str {
        &self.reservation
    }

    /// Returns the actual costs.
    pub fn actual_costs(&self) -> ActualCosts<'_> {
        let costs = match self.cost {
            Some(units) => ActualCosts::new().cost(units),
            None => ActualCosts::new(),
        };
        self.costs.0.iter().fold(costs, |costs, (name, units)| costs.with_cost(name, *units))
    }
}

impl<'b> RequestBody<'b> for PermitRequest<'b> {
    const REMEDY: &'static str = "send the `permit` in the response of /v1/check";
}

impl PermitRequest<'_> {
    /// Returns the token of the permit.
    pub fn token(&self) -> &str {
        &self.permit
    }
}

impl<'b> RequestBody<'b> for ExplainRequest<'b> {
    /// Checks that the body contains either attributes or descriptors.
    fn validate(&self) -> Result<(), &'static str> {
        match (&self.attributes, &self.descriptors) {
            (Some(_), None) => Ok(()),
            (Some(_), Some(_)) => {
                Err("`attributes` and `descriptors` exclude each other; send one of them")
            }
            (None, None) => Err(
                r#"the body contains neither `attributes` nor `descriptors`; send attributes such as {"attributes":{"client":"alice"}}"#,
            ),
            (None, Some(descriptors)) if descriptors.is_empty() => Err(
                r#"`descriptors` is empty; send descriptors such as [{"attributes":{"client":"alice"},"cost":1}]"#,
            ),
            (None, Some(descriptors)) if descriptors.len() > MAX_DESCRIPTORS => {
                Err("`descriptors[100]` is the 101st descriptor; send at most 100 in one request")
            }
            (None, Some(_)) if self.cost.is_some() || !self.costs.0.is_empty() => Err(
                "`cost` and `costs` have no effect together with `descriptors`; move them into a descriptor",
            ),
            (None, Some(_)) => Ok(()),
        }
    }
}

impl ExplainRequest<'_> {
    /// Converts this body to the request type that the gate evaluates.
    pub fn to_gate_request(&self) -> Request<'_> {
        let single = self.attributes.iter();
        let single = single.map(|attributes| attributes.to_descriptor(self.cost, &self.costs));
        let several = self.descriptors.iter().flatten().map(|JsonObject(descriptor)| {
            descriptor.attributes.to_descriptor(descriptor.cost, &descriptor.costs).exact()
        });
        Request::with_descriptors(&self.domain, single.chain(several))
    }
}

#[cfg(test)]
mod tests;

//! The bodies of calls: of `/v1/check`, `/v1/peek`, `/v1/report` and `/v1/reserve`, and of `/v1/explain`. Each body
//! lists all its fields, because serde cannot reject unknown fields of a body that shares fields with others by
//! `flatten`.

use std::time::Duration;

use serde::Deserialize;
use slidegate::store::DEFAULT_CALL_TTL;
use slidegate::{IdempotencyKey, Request};

use super::Endpoint;
use crate::bounds::MAX_DESCRIPTORS;
use crate::decide::{Call, Operation};
use crate::json::{
    Attributes, CowText, InvalidBody, JsonBody, JsonObject, NamedCosts, default_domain,
    parse_with_fields, read_cost, read_idempotency_key, read_non_null, read_ttl_ms, read_wait_ms,
};

/// The body of `/v1/check`, `/v1/peek`, `/v1/report` and `/v1/reserve`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallBody<'b> {
    /// The domain whose rules apply, by default `default`.
    #[serde(borrow, default = "default_domain")]
    domain: CowText<'b>,
    /// The attributes of the request. Integers, written without fraction and exponent, and booleans count as their
    /// text: 42 and "42" are the same value. In a string that is not Unicode, U+FFFD replaces each invalid part.
    attributes: Attributes<'b>,
    /// Units for rules that state no cost: 1 by default. 0 checks whether one unit would fit. If this field of a report
    /// is missing, these rules are skipped.
    #[serde(default, deserialize_with = "read_cost")]
    cost: Option<u64>,
    /// Units for rules that charge a named cost, such as {"tokens": 1800}. If the name of a rule's cost is missing
    /// here, the rule is checked, but not charged.
    #[serde(default)]
    costs: NamedCosts<'b>,
    /// Identifies the call, so that a repetition within 10 minutes returns the same decision and charges nothing. Not
    /// for `/v1/peek`.
    #[serde(default, deserialize_with = "read_idempotency_key")]
    idempotency_key: Option<CowText<'b>>,
    /// Milliseconds for which a check or a reservation may wait until the request fits, in the order of arrival;
    /// bounded by the server.
    #[serde(default, deserialize_with = "read_wait_ms")]
    wait_ms: Option<Duration>,
    /// Milliseconds for which a reservation can be settled, at most 24 hours.
    #[serde(default, deserialize_with = "read_ttl_ms")]
    ttl_ms: Option<Duration>,
}

/// The body of `/v1/explain`: attributes as in [`CallBody`], or descriptors as in a request to Envoy's rate limit
/// service.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExplainBody<'b> {
    /// The domain whose rules apply, by default `default`.
    #[serde(borrow, default = "default_domain")]
    domain: CowText<'b>,
    #[serde(default, deserialize_with = "read_non_null")]
    attributes: Option<Attributes<'b>>,
    #[serde(default, deserialize_with = "read_cost")]
    cost: Option<u64>,
    #[serde(default)]
    costs: NamedCosts<'b>,
    #[serde(default, deserialize_with = "read_non_null")]
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

impl<'b> JsonBody<'b> for CallBody<'b> {}

impl<'b> CallBody<'b> {
    /// Parses the body of a request for an endpoint.
    pub fn parse(endpoint: Endpoint, text: &'b str) -> Result<Self, InvalidBody> {
        let body: Self = parse_with_fields(text, allowed_fields(endpoint))?;
        if matches!(endpoint, Endpoint::Report) && body.cost.is_none() && body.costs.0.is_empty() {
            let problem =
                r#"the report contains no units; add `cost`, or `costs` such as {"tokens":1800}"#;
            return Err(InvalidBody(problem.to_owned()));
        }
        Ok(body)
    }

    /// Converts this body to the call of an endpoint.
    pub fn to_call(&self, endpoint: Endpoint) -> Call<'_> {
        let descriptor = self.attributes.to_descriptor(self.cost, &self.costs);
        let request = Request::new(&self.domain, descriptor);
        let (operation, name) = match endpoint {
            Endpoint::Peek => (Operation::Peek, "peek"),
            Endpoint::Report => (Operation::Report, "report"),
            Endpoint::Reserve => {
                (Operation::Reserve { ttl: self.ttl_ms.unwrap_or(DEFAULT_CALL_TTL) }, "reserve")
            }
            _ => (Operation::Check, "check"),
        };
        // The record of a reservation must live at least as long as its token.
        let ttl = self.ttl_ms.unwrap_or_default().max(DEFAULT_CALL_TTL);
        let request = match &self.idempotency_key {
            Some(key) => {
                let key = IdempotencyKey::new(key).with_operation(name).with_ttl(ttl);
                request.with_idempotency_key(key)
            }
            None => request,
        };
        let request = request.with_max_wait(self.wait_ms.unwrap_or_default());
        let request = match operation {
            Operation::Reserve { .. } => request.waiting_for_settlements(),
            _ => request,
        };
        Call {
            returns_permit: matches!(operation, Operation::Check | Operation::Reserve { .. }),
            ..Call::new(operation, request)
        }
    }
}

/// Returns the fields that the body for an endpoint accepts.
fn allowed_fields(endpoint: Endpoint) -> &'static [&'static str] {
    match endpoint {
        Endpoint::Peek => &["domain", "attributes", "cost", "costs"],
        Endpoint::Report => &["domain", "attributes", "cost", "costs", "idempotency_key"],
        Endpoint::Reserve => {
            &["domain", "attributes", "cost", "costs", "idempotency_key", "wait_ms", "ttl_ms"]
        }
        _ => &["domain", "attributes", "cost", "costs", "idempotency_key", "wait_ms"],
    }
}

impl<'b> JsonBody<'b> for ExplainBody<'b> {
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

impl ExplainBody<'_> {
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

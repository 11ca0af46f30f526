//! JSON bodies of `/v1/reserve` and `/v1/settle`.

use slidegate::{ActualCosts, IdempotencyKey, Request};

use super::attributes::Attributes;
use super::call_fields::{IdempotencyText, ReservationTtl};
use super::costs::{Cost, NamedCosts};
use super::fields::{BodyFields, BodyKind};
use super::missing_attributes_problem;
use super::text::LossyText;
use crate::rendering::problem::HttpProblem;
use crate::request_handler::ParsedRequest;

/// The body of `/v1/reserve`: the request to decide, with its estimated costs.
pub struct ReserveRequest<'b> {
    /// The domain whose rules apply, by default `default`.
    domain: LossyText<'b>,
    /// The attributes of the request. Integers, written without fraction and exponent, and booleans count as their
    /// text: 42 and "42" are the same value.
    attributes: Attributes<'b>,
    /// Estimated units for rules that state no cost: 1 by default.
    cost: Option<Cost>,
    /// Estimated units for rules that charge a named cost, such as {"tokens": 2000}.
    costs: NamedCosts<'b>,
    /// Identifies the request, so that a repetition returns the same reservation and charges nothing.
    idempotency_key: Option<IdempotencyText<'b>>,
    /// Milliseconds for which the reservation can be settled, at most 24 hours.
    ttl_ms: ReservationTtl,
}

/// The body of `/v1/settle`: a reservation, and the actual costs, at least one.
pub struct SettleRequest<'b> {
    /// The `reservation` in the response of `/v1/reserve`.
    reservation: LossyText<'b>,
    /// Actual units for rules that state no cost. 0 without `costs` cancels the reservation: all its charges are
    /// reverted.
    cost: Option<Cost>,
    /// Actual units for rules that charge a named cost, such as {"tokens": 1830}.
    costs: NamedCosts<'b>,
}

impl<'b> ReserveRequest<'b> {
    /// Parses the body.
    pub fn parse(body: &'b [u8]) -> Result<Self, HttpProblem> {
        let fields = BodyFields::parse(body, BodyKind::Reserve)?;
        Ok(Self {
            domain: fields.domain,
            attributes: fields.attributes.ok_or_else(missing_attributes_problem)?,
            cost: fields.cost,
            costs: fields.costs,
            idempotency_key: fields.idempotency_key,
            ttl_ms: fields.ttl_ms.unwrap_or_default(),
        })
    }

    /// Returns the time for which the reservation can be settled.
    pub fn ttl(&self) -> ReservationTtl {
        self.ttl_ms
    }
}

impl ParsedRequest for ReserveRequest<'_> {
    fn to_gate_request(&self) -> Request<'_> {
        let descriptor = self.attributes.to_descriptor(self.cost.as_ref(), &self.costs);
        Request::new(self.domain.as_str(), descriptor)
    }

    fn idempotency_key(&self) -> Option<IdempotencyKey<'_>> {
        self.idempotency_key
            .as_ref()
            .map(|key| IdempotencyKey::new(key.as_str()).with_operation("reserve"))
    }
}

impl<'b> SettleRequest<'b> {
    /// Parses the body, which must contain at least one cost.
    pub fn parse(body: &'b [u8]) -> Result<Self, HttpProblem> {
        let fields = BodyFields::parse(body, BodyKind::Settle)?;
        if fields.cost.is_none() && fields.costs.0.is_empty() {
            return Err(HttpProblem::bad_request(
                r#"the settlement contains no units; add `cost`, or `costs` such as {"tokens":1830}; {"cost":0} cancels the reservation"#,
            ));
        }
        let reservation = fields.reservation.ok_or_else(|| {
            HttpProblem::bad_request(
                "field `reservation` is missing; send the `reservation` in the response of /v1/reserve",
            )
        })?;
        Ok(Self { reservation, cost: fields.cost, costs: fields.costs })
    }

    /// Returns the token of the reservation.
    pub fn token(&self) -> &str {
        self.reservation.as_str()
    }

    /// Returns the actual costs.
    pub fn actual_costs(&self) -> ActualCosts<'_> {
        let costs = ActualCosts::new();
        let costs = match &self.cost {
            Some(Cost(units)) => costs.cost(*units),
            None => costs,
        };
        let named = self.costs.0.iter();
        named.fold(costs, |costs, (name, Cost(units))| costs.with_cost(name.as_str(), *units))
    }
}

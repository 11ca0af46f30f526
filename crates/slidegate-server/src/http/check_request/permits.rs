//! The JSON body of `/v1/release` and `/v1/renew`.

use super::fields::{BodyFields, BodyKind};
use super::text::LossyText;
use crate::rendering::problem::HttpProblem;

/// The body of `/v1/release` and `/v1/renew`: a permit.
pub struct PermitRequest<'b> {
    /// The `permit` in the response of `/v1/check` or `/v1/reserve`.
    permit: LossyText<'b>,
}

impl<'b> PermitRequest<'b> {
    /// Parses the body.
    pub fn parse(body: &'b [u8]) -> Result<Self, HttpProblem> {
        let fields = BodyFields::parse(body, BodyKind::Permit)?;
        let permit = fields.permit.ok_or_else(|| {
            HttpProblem::bad_request(
                "field `permit` is missing; send the `permit` in the response of /v1/check",
            )
        })?;
        Ok(Self { permit })
    }

    /// Returns the token of the permit.
    pub fn token(&self) -> &str {
        self.permit.as_str()
    }
}

//! The bodies of `/v1/release` and `/v1/renew`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::durations::ceil_millis;
use crate::json::{CowText, JsonBody};

/// The body of `/v1/release` and `/v1/renew`: a permit.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PermitBody<'b> {
    /// The `permit` in the response of `/v1/check` or `/v1/reserve`.
    #[serde(borrow)]
    pub permit: CowText<'b>,
}

/// The response to a release.
#[derive(Serialize)]
pub struct ReleaseResponse {
    /// Whether the permit was live until now. False if it had been released or had expired.
    pub released: bool,
}

/// The response to a renewal.
#[derive(Serialize)]
pub struct RenewResponse {
    /// Always true.
    renewed: bool,
    /// Milliseconds after which the permit expires, unless it is renewed again.
    permit_ttl_ms: u64,
}

impl<'b> JsonBody<'b> for PermitBody<'b> {
    const REMEDY: &'static str = "send the `permit` in the response of /v1/check";
}

impl RenewResponse {
    /// Creates the response for a permit that expires after `ttl`.
    pub fn new(ttl: Duration) -> Self {
        Self { renewed: true, permit_ttl_ms: ceil_millis(ttl) }
    }
}

//! The serialized form of limits.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Limit, LimitError};
use crate::algorithm::Algorithm;
#[cfg(feature = "calendar")]
use crate::algorithm::Align;
use crate::quota::Quota;

/// The serialized form of a limit.
#[derive(Serialize, Deserialize)]
pub(super) struct LimitFields {
    max: u64,
    window_us: u64,
    algorithm: Algorithm,
}

impl From<Limit> for LimitFields {
    fn from(limit: Limit) -> Self {
        let quota = limit.quota();
        Self { max: quota.max(), window_us: quota.window_us(), algorithm: limit.algorithm() }
    }
}

impl TryFrom<LimitFields> for Limit {
    type Error = LimitError;

    fn try_from(fields: LimitFields) -> Result<Self, LimitError> {
        #[cfg(feature = "calendar")]
        if let Algorithm::FixedWindow { align: Align::Calendar(calendar) } = fields.algorithm {
            return Self::calendar(fields.max, calendar);
        }
        let quota = Quota::new(fields.max, Duration::from_micros(fields.window_us))?;
        Self::new(quota, fields.algorithm)
    }
}

//! The serialized form of a limit: max, window and algorithm.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{Limit, LimitError};
use crate::algorithm::Algorithm;
#[cfg(feature = "calendar")]
use crate::algorithm::Align;
use crate::quota::Quota;

#[derive(Serialize, Deserialize)]
#[serde(rename = "Limit")]
struct LimitFields {
    max: u64,
    window_us: u64,
    algorithm: Algorithm,
}

impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let quota = self.quota();
        let (max, window_us) = (quota.max(), quota.window_us());
        LimitFields { max, window_us, algorithm: self.algorithm() }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        LimitFields::deserialize(deserializer)?.into_limit().map_err(de::Error::custom)
    }
}

impl LimitFields {
    fn into_limit(self) -> Result<Limit, LimitError> {
        #[cfg(feature = "calendar")]
        if let Algorithm::FixedWindow { align: Align::Calendar(calendar) } = self.algorithm {
            return Limit::calendar(self.max, calendar);
        }
        let quota = Quota::new(self.max, Duration::from_micros(self.window_us))?;
        Limit::new(quota, self.algorithm)
    }
}

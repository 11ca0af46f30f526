//! Fields that identify a call: the idempotency key, and the time for which a reservation can be settled.

use std::borrow::Cow;
use std::time::Duration;

use slidegate::{DEFAULT_CALL_TTL, MAX_CALL_TTL};

use super::costs::parse_whole_number;
use crate::json_reader::{JsonError, JsonKind, JsonReader, excerpt};

/// Maximum length of an idempotency key in bytes.
const MAX_IDEMPOTENCY_KEY_BYTES: usize = 255;

/// An idempotency key, which the caller chooses.
pub struct IdempotencyText<'b>(Cow<'b, str>);

/// The time in milliseconds for which a reservation can be settled.
#[derive(Clone, Copy)]
pub struct ReservationTtl(u64);

impl IdempotencyText<'_> {
    /// Returns the key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<'b> IdempotencyText<'b> {
    /// Reads an idempotency key.
    pub fn read(reader: &mut JsonReader<'b>) -> Result<Self, JsonError> {
        let kind = reader.peek_kind()?;
        let position = reader.position();
        let remedy = "send a string of 1 to 255 bytes that is new for each request, such as a UUID";
        if kind != JsonKind::String {
            let message = format!("`idempotency_key` is {}; {remedy}", kind.describe());
            return Err(reader.error(position, message));
        }
        let text = match reader.read_string()?.bytes {
            Cow::Borrowed(bytes) => str::from_utf8(bytes).ok().map(Cow::Borrowed),
            Cow::Owned(bytes) => String::from_utf8(bytes).ok().map(Cow::Owned),
        };
        let problem = match text {
            Some(text) if (1..=MAX_IDEMPOTENCY_KEY_BYTES).contains(&text.len()) => {
                return Ok(Self(text));
            }
            Some(text) if text.is_empty() => "is empty",
            Some(_) => "is too long",
            None => "is not Unicode",
        };
        Err(reader.error(position, format!("`idempotency_key` {problem}; {remedy}")))
    }
}

impl ReservationTtl {
    /// Returns the time as a duration.
    pub fn duration(self) -> Duration {
        Duration::from_millis(self.0)
    }

    /// Reads a number of milliseconds.
    pub fn read(reader: &mut JsonReader<'_>) -> Result<Self, JsonError> {
        let kind = reader.peek_kind()?;
        let position = reader.position();
        let found = match kind {
            JsonKind::Number => {
                let text = reader.read_number()?.text;
                match parse_whole_number(text) {
                    Some(millis) if (1..=max_ttl_millis()).contains(&millis) => {
                        return Ok(Self(millis));
                    }
                    _ => excerpt(text.as_bytes()),
                }
            }
            other => other.describe().to_owned(),
        };
        let message = format!(
            "`ttl_ms` is {found}; send a whole number of milliseconds from 1 to {} (24 hours)",
            max_ttl_millis()
        );
        Err(reader.error(position, message))
    }
}

fn max_ttl_millis() -> u64 {
    u64::try_from(MAX_CALL_TTL.as_millis()).unwrap_or(u64::MAX)
}

impl Default for ReservationTtl {
    fn default() -> Self {
        Self(u64::try_from(DEFAULT_CALL_TTL.as_millis()).unwrap_or(u64::MAX))
    }
}

//! The error of one value of a YAML file.

use std::fmt;

use serde::de::{Error, Expected, Unexpected};

use crate::policy::file::suggest;

/// The reason why a value of a YAML file could not be deserialized.
#[derive(Debug)]
pub(super) enum DeserializeError {
    Message(String),
    /// The text is not one of the known names. The error message suggests the most similar known name. The search for
    /// it runs only when the message is created.
    UnknownName(String, &'static [&'static str]),
    /// The error has been reported already, so it must not be reported again.
    AlreadyReported,
}

impl std::error::Error for DeserializeError {}

impl fmt::Display for DeserializeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message(message) => f.write_str(message),
            Self::UnknownName(word, known) => {
                f.write_str(&suggest::unknown_value_message(word, known))
            }
            Self::AlreadyReported => f.write_str("already reported"),
        }
    }
}

impl Error for DeserializeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::Message(message.to_string())
    }

    fn invalid_type(unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::custom(format_args!("expected {expected}, found {unexpected}"))
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        Self::UnknownName(variant.to_owned(), expected)
    }
}

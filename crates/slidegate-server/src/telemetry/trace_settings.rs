//! The settings of tracing. They are read also by a program without the feature `otlp`, which rejects them.

use std::fmt;
use std::str::FromStr;

use axum::http::Uri;
use axum::http::uri::Scheme;
use thiserror::Error;

/// Settings for the export of trace spans.
#[derive(Debug)]
#[cfg_attr(not(feature = "otlp"), expect(dead_code, reason = "only the exporter reads the fields"))]
pub struct TraceSettings {
    pub collector: CollectorUrl,
    /// The share of decisions that is traced, from 0 to 1. Applies only if the caller has not made a sampling decision.
    pub sample: f64,
    /// Whether the header `traceparent` of a request forwarded to `/v1/auth` decides if the decision is traced.
    pub trust_forwarded: bool,
}

/// The URL of an OTLP collector. Its path always ends in `/v1/traces`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectorUrl(Uri);

/// The error if a text is not the URL of an OTLP collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CollectorUrlError {
    #[error("write http://HOST:4318 or https://HOST:4318, with or without the path /v1/traces")]
    Malformed,
    #[error(
        "contains a user name or password; pass credentials in OTEL_EXPORTER_OTLP_HEADERS=name=value"
    )]
    Credentials,
    #[error("contains a query or fragment, which collectors do not support; remove it")]
    Query,
}

impl FromStr for CollectorUrl {
    type Err = CollectorUrlError;

    fn from_str(text: &str) -> Result<Self, CollectorUrlError> {
        let url: Uri = text.parse().map_err(|_| CollectorUrlError::Malformed)?;
        let (Some(scheme), Some(authority)) = (url.scheme(), url.authority()) else {
            return Err(CollectorUrlError::Malformed);
        };
        if authority.as_str().contains('@') {
            return Err(CollectorUrlError::Credentials);
        }
        if text.contains(['?', '#']) {
            return Err(CollectorUrlError::Query);
        }
        if ![Scheme::HTTP, Scheme::HTTPS].contains(scheme) || authority.host().is_empty() {
            return Err(CollectorUrlError::Malformed);
        }
        let path = url.path().trim_end_matches('/');
        let path = path.strip_suffix("/v1/traces").unwrap_or(path);
        let full_url = format!("{scheme}://{authority}{path}/v1/traces");
        full_url.parse().map(Self).map_err(|_| CollectorUrlError::Malformed)
    }
}

#[cfg(feature = "otlp")]
impl CollectorUrl {
    /// Returns the scheme, `http` or `https`.
    pub fn scheme(&self) -> Option<&Scheme> {
        self.0.scheme()
    }
}

impl fmt::Display for CollectorUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collector_url_ends_in_traces_path() {
        for (text, url) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("https://otel.example/", "https://otel.example/v1/traces"),
            ("http://[::1]:4318/otlp/", "http://[::1]:4318/otlp/v1/traces"),
            ("http://c/v1/traces", "http://c/v1/traces"),
        ] {
            assert_eq!(text.parse::<CollectorUrl>().unwrap().to_string(), url);
        }
    }

    #[test]
    fn invalid_collector_url_is_rejected() {
        use CollectorUrlError::{Credentials, Malformed, Query};
        for (text, error) in [
            ("", Malformed),
            ("127.0.0.1:4318", Malformed),
            ("localhost", Malformed),
            ("/v1/traces", Malformed),
            ("grpc://c:4317", Malformed),
            ("http://", Malformed),
            ("http://a b", Malformed),
            ("http://me:secret@c:4318", Credentials),
            ("http://c/?token=secret", Query),
            ("http://c/#a", Query),
        ] {
            assert_eq!(text.parse::<CollectorUrl>(), Err(error), "{text}");
        }
    }
}

//! The HTTP client that sends spans to an OTLP collector.

use std::error::Error;
use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::http::Uri;
use axum::http::uri::Scheme;
use hyper_rustls::HttpsConnectorBuilder;
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response, ResponseExt};
use slidegate::clock::{Clock, SystemClock};
use thiserror::Error;
use tokio::runtime::Handle;
use tracing::warn;

use crate::telemetry::log_throttle::LogThrottle;

/// Maximum duration of the export of one batch of spans.
const SPAN_EXPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Minimum interval between two log messages about failed exports of spans.
const FAILED_EXPORT_LOG_INTERVAL: Duration = Duration::from_secs(60);

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

impl fmt::Display for CollectorUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A client that sends spans to an OTLP collector: the client of `opentelemetry-http`, with two additions. It runs on
/// the Tokio runtime, because the exporter calls it from a thread that has no runtime. And it logs spans that the
/// collector rejects, once a minute, which the SDK does not do.
pub struct CollectorClient {
    client: Arc<dyn HttpClient>,
    runtime: Handle,
    log_throttle: LogThrottle,
    clock: SystemClock,
}

impl CollectorClient {
    /// Creates a client of the collector. Must be called within a Tokio runtime. Does not connect yet.
    pub fn new(url: &CollectorUrl) -> io::Result<Self> {
        let client: Arc<dyn HttpClient> = if url.0.scheme() == Some(&Scheme::HTTPS) {
            let tls = HttpsConnectorBuilder::new().with_native_roots()?;
            let connector = tls.https_only().enable_http1().build();
            Arc::new(HyperClient::new(connector, SPAN_EXPORT_TIMEOUT, None))
        } else {
            Arc::new(HyperClient::with_default_connector(SPAN_EXPORT_TIMEOUT, None))
        };
        let log_throttle = LogThrottle::new(1, FAILED_EXPORT_LOG_INTERVAL);
        Ok(Self { client, runtime: Handle::current(), log_throttle, clock: SystemClock::new() })
    }

    fn log_failed_span_export(&self, problem: &dyn Error) {
        if let Some(unlogged) = self.log_throttle.try_acquire(self.clock.now()) {
            warn!(
                %problem,
                unlogged,
                "traces lost, because the collector did not accept them; check --otlp-endpoint and the \
                 collector"
            );
        }
    }
}

#[async_trait]
impl HttpClient for CollectorClient {
    /// Sends a batch of spans. A failed batch is logged and lost. The exporter does not receive the error, because it
    /// would retry, log each attempt, and delay a shutdown.
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        let sent = async move { client.send_bytes(request).await?.error_for_status() };
        match self.runtime.spawn(sent).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => self.log_failed_span_export(find_root_cause(&*error)),
            // The runtime has shut down; `flush` has already logged the loss.
            Err(_) => {}
        }
        Ok(Response::new(Bytes::new()))
    }
}

/// Writes only the text `Collector`. The trait `HttpClient` requires `Debug`, but the connections may contain secrets.
impl fmt::Debug for CollectorClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Collector")
    }
}

/// Returns the innermost source of an error, because the outer errors do not state a cause.
fn find_root_cause<'e>(error: &'e (dyn Error + 'static)) -> &'e (dyn Error + 'static) {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error
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

//! The HTTP client that sends spans to an OTLP collector.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::http::uri::Scheme;
use hyper_rustls::HttpsConnectorBuilder;
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response, ResponseExt};
use slidegate::clock::{Clock, SystemClock};
use tokio::runtime::Handle;
use tracing::warn;

use crate::telemetry::log_throttle::LogThrottle;
use crate::telemetry::trace_settings::CollectorUrl;

/// Maximum duration of the export of one batch of spans.
const SPAN_EXPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Minimum interval between two log messages about failed exports of spans.
const FAILED_EXPORT_LOG_INTERVAL: Duration = Duration::from_secs(60);

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
        let client: Arc<dyn HttpClient> = if url.scheme() == Some(&Scheme::HTTPS) {
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
                problem = problem.to_string(),
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

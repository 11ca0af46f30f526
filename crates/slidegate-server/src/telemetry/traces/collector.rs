//! The way to a collector.

use std::error::Error;
use std::fmt;
use std::io;
use std::str::FromStr;
use std::time::Duration;

use async_trait::async_trait;
use axum::http::uri::Scheme;
use axum::http::{StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use slidegate::{Clock, SystemClock};
use thiserror::Error;
use tokio::runtime::Handle;
use tokio::time::timeout;
use tracing::warn;

use crate::telemetry::pace::LogThrottle;

/// How long a collector may take for one batch.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes that it may answer.
const MAX_ANSWER: usize = 64 * 1024;

/// How often it is told that it does not take what it is sent.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// Where a collector takes spans: what ends in `/v1/traces`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectorUrl(Uri);

/// Why a text is no such address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CollectorUrlError {
    #[error("write http://HOST:4318 or https://HOST:4318, without the path /v1/traces or with it")]
    Form,
    #[error(
        "it has a name or a password: give what proves who asks as OTEL_EXPORTER_OTLP_HEADERS=name=value"
    )]
    Credentials,
    #[error("it has a query or a fragment, which collectors do not take")]
    Query,
}

impl FromStr for CollectorUrl {
    type Err = CollectorUrlError;

    fn from_str(text: &str) -> Result<Self, CollectorUrlError> {
        let url: Uri = text.parse().map_err(|_| CollectorUrlError::Form)?;
        let (Some(scheme), Some(authority)) = (url.scheme(), url.authority()) else {
            return Err(CollectorUrlError::Form);
        };
        if authority.as_str().contains('@') {
            return Err(CollectorUrlError::Credentials);
        }
        if text.contains(['?', '#']) {
            return Err(CollectorUrlError::Query);
        }
        if ![Scheme::HTTP, Scheme::HTTPS].contains(scheme) || authority.host().is_empty() {
            return Err(CollectorUrlError::Form);
        }
        let path = url.path().trim_end_matches('/');
        let path = path.strip_suffix("/v1/traces").unwrap_or(path);
        let whole = format!("{scheme}://{authority}{path}/v1/traces");
        whole.parse().map(Self).map_err(|_| CollectorUrlError::Form)
    }
}

impl fmt::Display for CollectorUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Sends to a collector. What fails is told here, now and then.
pub struct CollectorClient {
    connection: Connection,
    /// What sends spans has a thread of its own, and no runtime.
    runtime: Handle,
    pace: LogThrottle,
    clock: SystemClock,
}

#[derive(Clone)]
enum Connection {
    Plain(Client<HttpConnector, Full<Bytes>>),
    Tls(Client<HttpsConnector<HttpConnector>, Full<Bytes>>),
}

impl CollectorClient {
    /// Within a runtime. Nothing is sent yet.
    pub fn of(url: &CollectorUrl) -> io::Result<Self> {
        let client = Client::builder(TokioExecutor::new());
        let connection = match url.0.scheme() == Some(&Scheme::HTTPS) {
            true => {
                let tls = HttpsConnectorBuilder::new().with_native_roots()?;
                Connection::Tls(client.build(tls.https_only().enable_http1().build()))
            }
            false => Connection::Plain(client.build_http()),
        };
        let pace = LogThrottle::new(1, TOLD_EVERY);
        Ok(Self { connection, runtime: Handle::current(), pace, clock: SystemClock::new() })
    }

    fn tell(&self, problem: &dyn fmt::Display) {
        if let Some(unlogged) = self.pace.next(self.clock.now()) {
            warn!(unlogged, "traces were lost, the collector did not take them: {problem}");
        }
    }
}

#[async_trait]
impl HttpClient for CollectorClient {
    /// What fails is lost, and has been told. It is no error to the exporter: that would hold up a shutdown with
    /// further attempts, and tell each of them.
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let sent = timeout_of(self.connection.clone(), request);
        match self.runtime.spawn(sent).await {
            Ok(Ok(status)) if status.is_success() => {}
            Ok(Ok(status)) => self.tell(&format_args!("it answers {status}")),
            Ok(Err(problem)) => self.tell(&problem),
            // The server has ended meanwhile, and has said that not all was sent.
            Err(_) => {}
        }
        Ok(Response::new(Bytes::new()))
    }
}

/// By the exporter's trait it can be shown, and it may have secrets: its connections.
impl fmt::Debug for CollectorClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Collector")
    }
}

async fn timeout_of(connection: Connection, request: Request<Bytes>) -> Result<StatusCode, String> {
    match timeout(PATIENCE, connection.send(request)).await {
        Ok(answer) => answer.map_err(|error| innermost(&*error).to_string()),
        Err(_) => Err(format!("no answer within {PATIENCE:?}")),
    }
}

impl Connection {
    async fn send(&self, request: Request<Bytes>) -> Result<StatusCode, HttpError> {
        let request = request.map(Full::new);
        let answer = match self {
            Self::Plain(client) => client.request(request).await?,
            Self::Tls(client) => client.request(request).await?,
        };
        let (head, body) = answer.into_parts();
        // Read to its end, so that the connection can be used again.
        Limited::new(body, MAX_ANSWER).collect().await?;
        Ok(head.status)
    }
}

/// The outer errors only say that there is one.
fn innermost<'e>(error: &'e (dyn Error + 'static)) -> &'e (dyn Error + 'static) {
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
    fn an_address_leads_to_where_spans_are_taken() {
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
    fn what_leads_to_no_collector_is_refused() {
        use CollectorUrlError::{Credentials, Form, Query};
        for (text, error) in [
            ("", Form),
            ("127.0.0.1:4318", Form),
            ("localhost", Form),
            ("/v1/traces", Form),
            ("grpc://c:4317", Form),
            ("http://", Form),
            ("http://a b", Form),
            ("http://me:secret@c:4318", Credentials),
            ("http://c/?token=secret", Query),
            ("http://c/#a", Query),
        ] {
            assert_eq!(text.parse::<CollectorUrl>(), Err(error), "{text}");
        }
    }
}

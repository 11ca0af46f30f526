//! Errors as responses: problem+json (RFC 9457).
//!
//! Only this module turns an error into an HTTP response.

use std::error::Error;
use std::time::Duration;

use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use slidegate::OnceError;

use crate::bounds::MAX_BODY_BYTES;
use crate::client_text::excerpt;
use crate::names::NameError;
use crate::reservation_token::SealError;
use crate::telemetry::request_result::RequestResult;

/// The media type of error responses.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// An error response. The server returns it instead of a decision, for example if the request is malformed.
#[derive(Debug)]
pub struct HttpProblem {
    status: StatusCode,
    detail: String,
    /// Methods for the `Allow` header. `None` omits the header.
    allow: Option<&'static str>,
    closes_connection: bool,
}

impl HttpProblem {
    fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), allow: None, closes_connection: false }
    }

    /// Creates a problem with status 400.
    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// Creates a problem with status 403: the sender must not make the request.
    pub fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, detail)
    }

    /// Creates a problem with status 409: the call contradicts an earlier one.
    pub fn conflict(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, detail)
    }

    /// Creates a problem with status 410: the reservation or the permit has ended.
    pub fn gone(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, detail)
    }

    /// Creates a problem with status 421: the request is not for this instance or this listener.
    pub fn misdirected(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::MISDIRECTED_REQUEST, detail)
    }

    /// Creates a problem with status 422: the request is well-formed, but cannot be carried out.
    pub fn unprocessable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
    }

    /// Creates a problem with status 503: the store is unavailable.
    pub fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    }

    /// Creates a problem with status 500.
    pub fn internal(error: impl Error) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
    }

    /// Creates a problem with status 413: the body is too large.
    pub fn body_too_large() -> Self {
        let detail =
            format!("the body is over {MAX_BODY_BYTES} bytes; send fewer or shorter attributes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
    }

    /// Creates a problem with status 408: the body did not arrive within `client_timeout`.
    pub fn body_timeout(client_timeout: Duration) -> Self {
        let detail = format!(
            "the body did not arrive within {client_timeout:?}; check that Content-Length is not \
             larger than the body, or raise --client-timeout"
        );
        Self::new(StatusCode::REQUEST_TIMEOUT, detail).closing_connection()
    }

    /// Creates a problem with status 400: the body ends early, or its chunks are malformed.
    pub fn unreadable_body(error: impl Error) -> Self {
        // The outer error does not contain the cause.
        let mut reason: &dyn Error = &error;
        while let Some(source) = reason.source() {
            reason = source;
        }
        let detail = format!(
            "the body cannot be read: {reason}; send as many bytes as Content-Length states, or \
             well-formed chunks"
        );
        Self::bad_request(detail).closing_connection()
    }

    /// Makes the server close the connection after the response. Used if the request was not read to its end, because
    /// the start of the next request is then unknown.
    pub fn closing_connection(self) -> Self {
        Self { closes_connection: true, ..self }
    }

    /// Adds an `Allow` header with these methods.
    pub fn with_allow(self, methods: &'static str) -> Self {
        Self { allow: Some(methods), ..self }
    }

    /// Returns the status of the response.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the result that metrics record for the request.
    pub fn result(&self) -> RequestResult {
        if self.status.is_client_error() { RequestResult::Invalid } else { RequestResult::Error }
    }

    /// Serializes the problem as JSON.
    pub fn json(&self) -> Vec<u8> {
        let body = ProblemBody {
            r#type: "about:blank",
            title: self.status.canonical_reason().unwrap_or("Error"),
            status: self.status.as_u16(),
            detail: &self.detail,
        };
        // Strings and numbers always serialize. If they did not, the status would have to suffice.
        serde_json::to_vec(&body).unwrap_or_default()
    }
}

impl From<SealError> for HttpProblem {
    fn from(error: SealError) -> Self {
        Self::unprocessable(error.to_string())
    }
}

impl From<NameError> for HttpProblem {
    fn from(error: NameError) -> Self {
        Self::bad_request(error.to_string())
    }
}

/// Converts the error of a call with an idempotency key.
impl From<OnceError> for HttpProblem {
    fn from(error: OnceError) -> Self {
        match error {
            OnceError::InProgress => Self::conflict(error.to_string()),
            _ => Self::unprocessable(error.to_string()),
        }
    }
}

/// The reason why a request has no decision (RFC 9457).
#[derive(Serialize)]
pub struct ProblemBody<'p> {
    /// Always `about:blank`: the status identifies the kind of problem.
    r#type: &'p str,
    /// The standard phrase for the status, such as `Bad Request`.
    title: &'p str,
    /// The status of the response.
    status: u16,
    /// The cause, and how to correct it.
    detail: &'p str,
}

/// Creates a problem with status 404. `remedy` lists the paths that exist, or states the prerequisite of the path.
pub fn path_not_found(uri: &Uri, remedy: &str) -> HttpProblem {
    let path = excerpt(uri.path());
    HttpProblem::new(StatusCode::NOT_FOUND, format!("path `{path}` does not exist; {remedy}"))
}

/// Creates a problem with status 405 for a method that the path does not accept. The header `Allow` of the response,
/// which axum's router or the caller adds, lists the methods that it accepts.
pub async fn method_not_allowed(method: Method, uri: Uri) -> HttpProblem {
    let (path, method) = (uri.path(), excerpt(method.as_str()));
    let detail =
        format!("`{path}` does not accept {method}; use a method that the header Allow lists");
    HttpProblem::new(StatusCode::METHOD_NOT_ALLOWED, detail)
}

impl IntoResponse for HttpProblem {
    fn into_response(self) -> Response {
        let body = self.json();
        let mut response =
            (self.status, [(header::CONTENT_TYPE, PROBLEM_JSON)], body).into_response();
        if let Some(methods) = self.allow {
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(methods));
        }
        if self.closes_connection {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

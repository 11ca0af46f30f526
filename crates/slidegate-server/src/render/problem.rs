//! Errors as responses: problem+json (RFC 9457).
//!
//! Only this module turns an error into an HTTP response.

use std::error::Error;

use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::client_text::excerpt;
use crate::connections::bodies::BodyError;
use crate::decide::error::{CallError, CallErrorKind};
use crate::json::InvalidBody;
use crate::telemetry::results::RequestResult;

/// The media type of error responses.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// An error response. The server returns it instead of a decision, for example if the request is malformed.
#[derive(Debug)]
pub struct HttpProblem {
    status: StatusCode,
    detail: String,
    /// Methods for the `Allow` header. `None` omits the header.
    allow: Option<&'static str>,
    /// Whether the connection closes after the response. Set if the request was not read to its end, because the start
    /// of the next request is then unknown.
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

    /// Creates a problem with status 421: the request is not for this instance or this listener.
    pub fn misdirected_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::MISDIRECTED_REQUEST, detail)
    }

    /// Creates a problem with status 500.
    pub fn internal(error: impl Error) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
    }

    /// Adds an `Allow` header with these methods.
    pub fn with_allow_header(self, methods: &'static str) -> Self {
        Self { allow: Some(methods), ..self }
    }

    /// Returns the status of the response.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the result that metrics record for the request.
    pub fn result(&self) -> RequestResult {
        match self.status {
            StatusCode::SERVICE_UNAVAILABLE => RequestResult::StoreUnavailable,
            status if status.is_client_error() => RequestResult::Invalid,
            _ => RequestResult::Error,
        }
    }

    /// Serializes the problem as JSON.
    pub fn json(&self) -> Vec<u8> {
        let body = ProblemBody {
            r#type: "about:blank",
            title: self.status.canonical_reason().unwrap_or("Error"),
            status: self.status.as_u16(),
            detail: &self.detail,
        };
        // Strings and numbers always serialize. If they did not, the response would have an empty body.
        serde_json::to_vec(&body).unwrap_or_default()
    }
}

impl From<BodyError> for HttpProblem {
    fn from(error: BodyError) -> Self {
        let (status, is_read) = match error {
            BodyError::TooLarge { is_read } => (StatusCode::PAYLOAD_TOO_LARGE, is_read),
            BodyError::Slow { .. } => (StatusCode::REQUEST_TIMEOUT, false),
            BodyError::Overlong(_) | BodyError::Unreadable(_) => (StatusCode::BAD_REQUEST, false),
        };
        Self { closes_connection: !is_read, ..Self::new(status, error.to_string()) }
    }
}

impl From<InvalidBody> for HttpProblem {
    fn from(error: InvalidBody) -> Self {
        Self::bad_request(error.0)
    }
}

impl From<CallError> for HttpProblem {
    fn from(error: CallError) -> Self {
        let status = match error.kind {
            CallErrorKind::Invalid => StatusCode::BAD_REQUEST,
            CallErrorKind::Conflict => StatusCode::CONFLICT,
            CallErrorKind::Ended => StatusCode::GONE,
            CallErrorKind::OtherInstance => StatusCode::MISDIRECTED_REQUEST,
            CallErrorKind::Unprocessable => StatusCode::UNPROCESSABLE_ENTITY,
            CallErrorKind::StoreUnavailable => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, error.to_string())
    }
}

/// The body of an error response (RFC 9457): the reason why a request has no decision.
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

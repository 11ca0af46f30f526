//! The one place that makes an error a response: problem+json (RFC 9457).

use std::error::Error;
use std::time::Duration;

use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;

use super::{MAX_BODY_BYTES, MAX_HEAD_BYTES, MAX_HEADERS};
use crate::watch::metrics::RequestResult;

/// The media type of a problem.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// Why there is no decision.
#[derive(Debug)]
pub struct Problem {
    status: StatusCode,
    detail: String,
    /// The methods that there are, for the header Allow.
    allow: Option<&'static str>,
    closes_connection: bool,
}

impl Problem {
    fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), allow: None, closes_connection: false }
    }

    /// The request makes no sense.
    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// The fault is ours.
    pub fn internal(error: impl Error) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
    }

    /// The body has too many bytes.
    pub fn too_large() -> Self {
        let detail = format!("the body is over {MAX_BODY} bytes, which is the most it may have");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
    }

    /// The body did not come in time.
    pub fn body_timeout(client_timeout: Duration) -> Self {
        let detail =
            format!("the body did not come whole within {client_timeout:?}: send it faster");
        Self::new(StatusCode::REQUEST_TIMEOUT, detail).closing_connection()
    }

    /// The body ends early, or its chunks make no sense.
    pub fn unreadable(error: impl Error) -> Self {
        // The outer error only says that there is one.
        let mut reason: &dyn Error = &error;
        while let Some(source) = reason.source() {
            reason = source;
        }
        let detail = format!(
            "the body cannot be read: {reason}; its bytes must be as many as content-length says, \
             or come in well-formed chunks"
        );
        Self::bad_request(detail).closing_connection()
    }

    /// The head cannot be read as HTTP. None if this status says something else.
    pub fn from_head_status(status: StatusCode) -> Option<Self> {
        let detail = match status {
            StatusCode::BAD_REQUEST => "this is no HTTP/1.1 request: its first line, a header's \
                name or value, content-length or transfer-encoding is malformed"
                .to_owned(),
            StatusCode::URI_TOO_LONG => format!("the path is over {MAX_HEAD} bytes"),
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
                format!("the head has over {MAX_HEAD} bytes or over {MAX_HEADERS} headers")
            }
            _ => return None,
        };
        Some(Self::new(status, detail).closing_connection())
    }

    /// For when what the client sends next could not be told from the rest of this.
    pub fn closing_connection(self) -> Self {
        Self { closes_connection: true, ..self }
    }

    /// For a path that knows these methods only.
    pub fn with_allow(self, methods: &'static str) -> Self {
        Self { allow: Some(methods), ..self }
    }

    /// The status that goes with it.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// How the request was answered.
    pub fn result(&self) -> RequestResult {
        if self.status.is_client_error() { RequestResult::Invalid } else { RequestResult::Error }
    }

    /// The problem as JSON.
    pub fn json(&self) -> Vec<u8> {
        let body = ProblemBody {
            r#type: "about:blank",
            title: self.status.canonical_reason().unwrap_or("Error"),
            status: self.status.as_u16(),
            detail: &self.detail,
        };
        // Text and a number always serialize. Were it not so, the status alone would have to do.
        serde_json::to_vec(&body).unwrap_or_default()
    }
}

/// Why a request was not decided (RFC 9457).
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Problem")]
pub struct ProblemBody<'p> {
    /// `about:blank`: the status says what kind of problem it is.
    r#type: &'p str,
    /// The status in words.
    title: &'p str,
    /// The status of the response.
    #[schemars(range(min = 400, max = 599))]
    status: u16,
    /// What is wrong, and what would be right.
    detail: &'p str,
}

/// For a path that leads nowhere.
pub async fn not_found(uri: Uri) -> Problem {
    not_found_with_hint(&uri, "GET /v1/openapi.json lists what there is")
}

/// The same; `instead` says where to look.
pub fn not_found_with_hint(uri: &Uri, hint: &str) -> Problem {
    let detail = format!("there is nothing at `{}`: {hint}", uri.path());
    Problem::new(StatusCode::NOT_FOUND, detail)
}

/// For a path that knows other methods; a router adds `Allow`.
pub async fn method_not_allowed(method: Method, uri: Uri) -> Problem {
    let detail =
        format!("`{}` does not take {method}: the header Allow says what it takes", uri.path());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail)
}

impl IntoResponse for Problem {
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

//! The one place that makes an error a response: problem+json (RFC 9457).

use std::error::Error;

use axum::extract::rejection::{BytesRejection, FailedToBufferBody};
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::MAX_BODY;

/// Why there is no decision.
pub struct Problem {
    status: StatusCode,
    detail: String,
}

impl Problem {
    /// The request makes no sense.
    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, detail: detail.into() }
    }

    /// The fault is ours.
    pub fn internal(error: impl Error) -> Self {
        Self { status: StatusCode::INTERNAL_SERVER_ERROR, detail: error.to_string() }
    }
}

/// For a path that leads nowhere.
pub async fn not_found(uri: Uri) -> Problem {
    let detail = format!("there is nothing at `{}`", uri.path());
    Problem { status: StatusCode::NOT_FOUND, detail }
}

/// For a path that knows other methods; the router adds `Allow`.
pub async fn method_not_allowed(method: Method, uri: Uri) -> Problem {
    let detail =
        format!("`{}` does not take {method}: the header Allow says what it takes", uri.path());
    Problem { status: StatusCode::METHOD_NOT_ALLOWED, detail }
}

impl From<BytesRejection> for Problem {
    fn from(rejection: BytesRejection) -> Self {
        match rejection {
            BytesRejection::FailedToBufferBody(FailedToBufferBody::LengthLimitError(_)) => Self {
                status: StatusCode::PAYLOAD_TOO_LARGE,
                detail: format!("the body is over {MAX_BODY} bytes"),
            },
            other => Self::bad_request(other.body_text()),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        #[derive(Serialize)]
        struct Body<'p> {
            r#type: &'static str,
            title: &'static str,
            status: u16,
            detail: &'p str,
        }

        let body = Body {
            r#type: "about:blank",
            title: self.status.canonical_reason().unwrap_or("Error"),
            status: self.status.as_u16(),
            detail: &self.detail,
        };
        // Text and a number always serialize. Were it not so, the status alone would have to do.
        let body = serde_json::to_vec(&body).unwrap_or_default();
        (self.status, [(header::CONTENT_TYPE, "application/problem+json")], body).into_response()
    }
}

//! Adds problem+json bodies to the error responses of hyper.
//!
//! If hyper cannot parse the head of a request, hyper itself responds, with an error status and an empty body.

use std::str;

use axum::http::StatusCode;
use memchr::memrchr_iter;

use crate::rendering::problem::{HttpProblem, PROBLEM_JSON};

const STATUS_LINE_START: &[u8] = b"HTTP/1.1 ";
const EMPTY_BODY_HEADER: &str = "content-length: 0\r\n";

/// Adds a problem+json body if the bytes `written` end with an error response of hyper. Such a response has an error
/// status and an empty body, and is the last response on its connection. Returns all bytes including the added body, or
/// `None` if the bytes do not end with such a response.
pub fn with_problem_body(written: &[u8]) -> Option<Vec<u8>> {
    // Nearly all other responses have a body and end here, at no further cost.
    if !written.ends_with(b"\r\n\r\n") {
        return None;
    }
    // Responses of `/v1/auth` without a body also get here. They cost a search for `H` and a look at the status.
    let start =
        memrchr_iter(b'H', written).find(|&at| written[at..].starts_with(STATUS_LINE_START))?;
    let (before, head) = written.split_at(start);
    let status = StatusCode::from_bytes(head.get(STATUS_LINE_START.len()..)?.get(..3)?).ok()?;
    let body = HttpProblem::from_head_status(status)?.json();
    let (front, rest) = str::from_utf8(head).ok()?.split_once(EMPTY_BODY_HEADER)?;
    let head =
        format!("{front}content-type: {PROBLEM_JSON}\r\ncontent-length: {}\r\n{rest}", body.len());
    Some([before, head.as_bytes(), &body].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYPER_ERROR_RESPONSE: &[u8] =
        b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\ndate: x\r\n\r\n";
    const OK_RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

    #[test]
    fn hyper_error_gets_problem_body_after_earlier_response() {
        let alone = with_problem_body(HYPER_ERROR_RESPONSE).unwrap();
        let after_response =
            with_problem_body(&[OK_RESPONSE, HYPER_ERROR_RESPONSE].concat()).unwrap();
        assert_eq!(after_response, [OK_RESPONSE, &alone].concat());
    }

    #[test]
    fn response_without_hyper_error_stays_unchanged() {
        let head_response = b"HTTP/1.1 404 Not Found\r\ncontent-length: 99\r\n\r\n";
        let continue_response = b"HTTP/1.1 100 Continue\r\n\r\n";
        for written in [OK_RESPONSE, head_response, continue_response, b"", b"\r\n\r\n"] {
            assert_eq!(with_problem_body(written), None);
        }
    }
}

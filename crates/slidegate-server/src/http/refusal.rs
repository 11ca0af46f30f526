//! What hyper answers by itself when it cannot read a head: a status, and nothing else. Here it
//! gets the problem+json that every other error has.

use std::str;

use axum::http::StatusCode;
use memchr::memrchr_iter;

use super::problem::{PROBLEM_JSON, Problem};

const VERSION: &[u8] = b"HTTP/1.1 ";
const NO_BODY: &str = "content-length: 0\r\n";

/// The same bytes with a reason in them, if they end in a refusal of hyper's own. It is the only
/// response without a body, and the last on its connection.
pub fn explained(written: &[u8]) -> Option<Vec<u8>> {
    // Nearly all other responses end in a body, so this is all that it costs them.
    if !written.ends_with(b"\r\n\r\n") {
        return None;
    }
    // What may pass is told to a proxy without a body: it costs that to look for the letter, and at the status.
    let start = memrchr_iter(b'H', written).find(|&at| written[at..].starts_with(VERSION))?;
    let (before, head) = written.split_at(start);
    let status = StatusCode::from_bytes(head.get(VERSION.len()..)?.get(..3)?).ok()?;
    let body = Problem::of_head(status)?.json();
    let (front, rest) = str::from_utf8(head).ok()?.split_once(NO_BODY)?;
    let head =
        format!("{front}content-type: {PROBLEM_JSON}\r\ncontent-length: {}\r\n{rest}", body.len());
    Some([before, head.as_bytes(), &body].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSAL: &[u8] =
        b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\ndate: x\r\n\r\n";
    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

    #[test]
    fn a_refusal_behind_an_answer_that_still_waits_to_be_sent_is_explained_too() {
        let alone = explained(REFUSAL).unwrap();
        let behind = explained(&[ANSWER, REFUSAL].concat()).unwrap();
        assert_eq!(behind, [ANSWER, &alone].concat());
    }

    #[test]
    fn what_is_no_refusal_stays_as_it_is() {
        let of_head = b"HTTP/1.1 404 Not Found\r\ncontent-length: 99\r\n\r\n";
        let of_client_who_asks = b"HTTP/1.1 100 Continue\r\n\r\n";
        for written in [ANSWER, of_head, of_client_who_asks, b"", b"\r\n\r\n"] {
            assert_eq!(explained(written), None);
        }
    }
}

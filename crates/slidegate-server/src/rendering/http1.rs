//! Responses in the form of HTTP/1.1, as hyper writes them.

use std::cell::Cell;
use std::time::{Duration, UNIX_EPOCH};

use axum::http::{HeaderValue, StatusCode};
use slidegate::{Clock, WallClock};

use super::problem::HttpProblem;

/// Length of a date in a header.
const DATE_LENGTH: usize = "Thu, 01 Jan 1970 00:00:00 GMT".len();

/// A writer of the head of a response.
pub struct ResponseHead<'m>(&'m mut Vec<u8>);

impl<'m> ResponseHead<'m> {
    /// Appends the status line to `message`.
    pub fn new(message: &'m mut Vec<u8>, status: StatusCode) -> Self {
        let mut head = Self(message);
        head.write("HTTP/1.1 ");
        head.write(status.as_str());
        head.write(" ");
        head.write(status.canonical_reason().unwrap_or("<none>"));
        head.write("\r\n");
        head
    }

    /// Appends a header. The name and the value must be valid.
    pub fn write_header(&mut self, name: &str, value: &str) {
        self.write(name);
        self.write(": ");
        self.write(value);
        self.write("\r\n");
    }

    /// Appends the headers `Content-Length` and `Date`, the end of the head, and the body.
    pub fn finish(mut self, body: &[u8]) {
        self.write_header("content-length", itoa::Buffer::new().format(body.len()));
        self.write("date: ");
        self.0.extend_from_slice(&current_date());
        self.write("\r\n\r\n");
        self.0.extend_from_slice(body);
    }

    fn write(&mut self, text: &str) {
        self.0.extend_from_slice(text.as_bytes());
    }
}

/// Fails if a value contains characters that headers must not contain.
pub fn check_header_value(value: &str) -> Result<(), HttpProblem> {
    // All bytes are inspected, because a loop without an early exit takes less time.
    match value.bytes().fold(true, |is_valid, byte| is_valid & (b' '..=b'~').contains(&byte)) {
        true => Ok(()),
        false => HeaderValue::from_str(value).map(drop).map_err(HttpProblem::internal),
    }
}

/// Returns the current date as in a header. It is formatted once per second and thread.
fn current_date() -> [u8; DATE_LENGTH] {
    thread_local! {
        static FORMATTED: Cell<(u64, [u8; DATE_LENGTH])> = const { Cell::new((0, [0; DATE_LENGTH])) };
    }
    let now = Duration::from_micros(WallClock.now().as_micros());
    let second = now.as_secs();
    FORMATTED.with(|formatted| {
        let (formatted_second, mut date) = formatted.get();
        if formatted_second != second || second == 0 {
            date.copy_from_slice(httpdate::fmt_http_date(UNIX_EPOCH + now).as_bytes());
            formatted.set((second, date));
        }
        date
    })
}

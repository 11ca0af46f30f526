//! The fast path: responds to simple requests without hyper.
//!
//! hyper takes longer for a request than a decision in memory takes, for example because it passes the body through a
//! channel. The fast path reads from a connection before hyper does. It responds to requests that arrive complete, have
//! a head whose meaning is certain, and can be decided immediately. The first other request, and all later bytes of the
//! connection, go to hyper, so there is no doubt where a request ends.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use httparse::{EMPTY_HEADER, Header, Status};
use tokio::io::AsyncWrite;

use super::HttpHandler;
use crate::connections::{ClientIo, ConnectionDeadlines};

/// Maximum number of headers of a request on the fast path.
const MAX_FAST_PATH_HEADERS: usize = 32;

/// Size in bytes of unsent responses above which the next requests wait until the responses have been sent. Clients that
/// do not read their responses can therefore take only little memory.
const MAX_UNSENT_BYTES: usize = 16 * 1024;

/// A POST request that has arrived complete.
pub struct CompleteRequest<'b> {
    pub path: &'b str,
    pub body: &'b [u8],
    /// Number of bytes of the request.
    length: usize,
}

/// The responses to simple requests of one connection.
pub struct FastPath<H> {
    handler: Arc<H>,
    deadlines: ConnectionDeadlines,
    client_timeout: Duration,
    /// Responses that have not been sent completely.
    unsent: Vec<u8>,
    /// Number of bytes of `unsent` that have been sent.
    sent: usize,
}

impl<'b> CompleteRequest<'b> {
    /// Parses the request with which `bytes` begin. Returns `None` if it is incomplete, has another method than POST, or
    /// has a header that affects the framing of messages in another way than `Content-Length`.
    fn parse(bytes: &'b [u8]) -> Option<Self> {
        let mut headers = [EMPTY_HEADER; MAX_FAST_PATH_HEADERS];
        let mut head = httparse::Request::new(&mut headers);
        let Ok(Status::Complete(head_length)) = head.parse(bytes) else { return None };
        if (head.method, head.version) != (Some("POST"), Some(1)) {
            return None;
        }
        let body_length = read_content_length(head.headers)?;
        let length = head_length.checked_add(body_length)?;
        Some(Self { path: head.path?, body: bytes.get(head_length..length)?, length })
    }
}

/// Returns the value of the header `Content-Length`. Returns `None` if it is missing or occurs twice, or if another header
/// affects the framing of the request or its response.
fn read_content_length(headers: &[Header<'_>]) -> Option<usize> {
    let mut content_length = None;
    for header in headers {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        if is("content-length") {
            let is_number = header.value.iter().all(u8::is_ascii_digit);
            let length = str::from_utf8(header.value).ok().filter(|_| is_number)?.parse().ok()?;
            if content_length.replace(length).is_some() {
                return None;
            }
        } else if is("connection") {
            header.value.eq_ignore_ascii_case(b"keep-alive").then_some(())?;
        } else if is("transfer-encoding") || is("expect") || is("upgrade") {
            return None;
        }
    }
    content_length
}

impl<H: HttpHandler> FastPath<H> {
    /// Creates the fast path of a connection, which may be idle for `client_timeout`.
    pub fn new(handler: Arc<H>, deadlines: ConnectionDeadlines, client_timeout: Duration) -> Self {
        Self { handler, deadlines, client_timeout, unsent: Vec::new(), sent: 0 }
    }

    /// Responds to the simple requests with which `received` begins, until the responses are large. Returns the number of
    /// bytes of these requests.
    pub fn respond(&mut self, received: &[u8]) -> usize {
        let mut handled = 0;
        while self.unsent.len() <= MAX_UNSENT_BYTES
            && let Some(request) = CompleteRequest::parse(&received[handled..])
            && self.handler.try_respond(&request, &mut self.unsent)
        {
            handled += request.length;
        }
        if handled > 0 {
            // hyper waits for its first request, and would close the connection although the client is active.
            self.deadlines.postpone(self.client_timeout);
        }
        handled
    }

    /// Sends all responses.
    pub fn poll_send(&mut self, cx: &mut Context<'_>, io: &mut ClientIo) -> Poll<io::Result<()>> {
        if self.unsent.is_empty() {
            return Poll::Ready(Ok(()));
        }
        while self.sent < self.unsent.len() {
            match ready!(io.as_mut().poll_write(cx, &self.unsent[self.sent..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.sent += written,
            }
        }
        // A TLS stream may still have encrypted bytes.
        ready!(io.as_mut().poll_flush(cx))?;
        // An idle connection has no buffer.
        self.unsent = Vec::new();
        self.sent = 0;
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use axum::extract::Request;
    use axum::response::Response;
    use hyper::body::Incoming;

    use super::*;
    use crate::http::HttpClient;

    /// A handler that responds to every request on the fast path with this number of bytes.
    struct LargeResponses(usize);

    impl HttpHandler for LargeResponses {
        async fn respond(&self, _: Request<Incoming>, _: &HttpClient) -> Response {
            Response::default()
        }

        fn try_respond(&self, _: &CompleteRequest<'_>, message: &mut Vec<u8>) -> bool {
            message.resize(message.len() + self.0, b' ');
            true
        }
    }

    #[test]
    fn requests_wait_while_many_responses_are_unsent() {
        let request = format!("{HEAD}\r\n{{}}");
        let respond_to_five = |response_bytes| {
            let (handler, timeout) = (Arc::new(LargeResponses(response_bytes)), Duration::ZERO);
            let mut fast_path = FastPath::new(handler, ConnectionDeadlines::default(), timeout);
            fast_path.respond(request.repeat(5).as_bytes()) / request.len()
        };
        assert_eq!(respond_to_five(1_000), 5);
        assert_eq!(respond_to_five(MAX_UNSENT_BYTES / 2 + 1), 2);
    }

    const HEAD: &str = "POST /v1/check HTTP/1.1\r\nhost: x\r\nContent-Length: 2\r\n";

    /// Returns the path, the body and the length of the request with which the text begins.
    fn parse(text: &str) -> Option<(&str, &[u8], usize)> {
        CompleteRequest::parse(text.as_bytes())
            .map(|request| (request.path, request.body, request.length))
    }

    #[test]
    fn complete_request_is_parsed() {
        let request = format!("{HEAD}connection: Keep-Alive\r\n\r\n{{}}");
        let next = format!("{request}POST");
        let expected = Some(("/v1/check", &b"{}"[..], request.len()));
        assert_eq!(parse(&request), expected);
        assert_eq!(parse(&next), expected);
    }

    #[test]
    fn incomplete_request_is_not_parsed() {
        let request = format!("{HEAD}\r\n{{}}");
        for length in 0..request.len() {
            assert_eq!(parse(&request[..length]), None, "{length}");
        }
    }

    #[test]
    fn other_requests_are_not_parsed() {
        for header in [
            "content-length: 2",
            "transfer-encoding: chunked",
            "connection: close",
            "connection: keep-alive, close",
            "expect: 100-continue",
            "upgrade: h2c",
            "no colon",
        ] {
            assert_eq!(parse(&format!("{HEAD}{header}\r\n\r\n{{}}")), None, "{header}");
        }
        for (from, to) in [
            ("POST", "PUT"),
            ("HTTP/1.1", "HTTP/1.0"),
            ("Content-Length: 2", "name: value"),
            ("Content-Length: 2", "content-length: +2"),
            ("Content-Length: 2", "content-length: 99999999999999999999"),
            ("Content-Length: 2", "content-length: "),
        ] {
            let request = format!("{HEAD}\r\n{{}}").replace(from, to);
            assert_eq!(parse(&request), None, "{request}");
        }
    }
}

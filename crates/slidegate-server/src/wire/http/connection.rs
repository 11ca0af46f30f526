//! Serves HTTP/1.1 connections: reads the body of each request, bounded in size and time, before a handler runs.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Request, header};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::bounds::{ClientBounds, MAX_BODY_BYTES, MAX_HEAD_BYTES, MAX_HEADERS};
use crate::connections::bodies::{
    BodyBudget, BodyError, BufferedBody, ConnectionBodyBudget, no_length_prefix,
};
use crate::connections::{ClientStream, ConnectionError, Protocol};
use crate::render::problem::HttpProblem;

/// Maximum size in bytes of the read buffer of a connection. The buffer is larger than the largest request head.
const MAX_READ_BUFFER_BYTES: usize = 2 * MAX_HEAD_BYTES;

/// A handler of HTTP requests.
pub trait HttpHandler: Send + Sync + 'static {
    /// Responds to a request of the client at this address. `body` is the body of the request, or the reason why it
    /// cannot be read. The future is dropped if the client disconnects.
    fn respond(
        &self,
        head: Parts,
        body: Result<BufferedBody, HttpProblem>,
        peer: SocketAddr,
    ) -> impl Future<Output = Response> + Send;
}

impl HttpHandler for Router {
    async fn respond(
        &self,
        head: Parts,
        body: Result<BufferedBody, HttpProblem>,
        _: SocketAddr,
    ) -> Response {
        let body = match body {
            Ok(body) => body,
            Err(problem) => return problem.into_response(),
        };
        // The bytes are cloned, so that `body` occupies its space until the response is complete.
        let request = Request::from_parts(head, Body::from(body.bytes.clone()));
        match self.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

/// The HTTP/1.1 protocol, with the handler of its requests.
pub struct HttpProtocol<H> {
    http: http1::Builder,
    handler: Arc<H>,
    bounds: ClientBounds,
    bodies: BodyBudget,
}

impl<H> Clone for HttpProtocol<H> {
    fn clone(&self) -> Self {
        let Self { http, handler, bounds, bodies } = self;
        Self {
            http: http.clone(),
            handler: handler.clone(),
            bounds: *bounds,
            bodies: bodies.clone(),
        }
    }
}

impl<H> HttpProtocol<H> {
    /// Creates the protocol. The bodies of requests occupy the budget `bodies`.
    pub fn new(handler: H, bounds: ClientBounds, bodies: BodyBudget) -> Self {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            // This timeout starts when the connection waits for a request head, so it bounds idle connections too.
            .header_read_timeout(bounds.client_timeout)
            .max_header_size(MAX_HEAD_BYTES)
            .max_headers(MAX_HEADERS)
            .max_buf_size(MAX_READ_BUFFER_BYTES)
            // Responses are small, so a body is copied behind its head: one part to write instead of two.
            .writev(false)
            // A client that closes its connection, or only its sending side, leaves the queue in which its call waits.
            .half_close(false);
        Self { http, handler: Arc::new(handler), bounds, bodies }
    }

    /// Closes each connection after its first response.
    pub fn without_keep_alive(mut self) -> Self {
        self.http.keep_alive(false);
        self
    }
}

/// A connection and the handler of its requests.
struct HttpConnection<H> {
    handler: Arc<H>,
    peer: SocketAddr,
    bodies: ConnectionBodyBudget,
    client_timeout: Duration,
    /// The time from which the connection closes after its next response.
    closes_at: Instant,
}

impl<H: HttpHandler> HttpConnection<H> {
    async fn respond(&self, request: Request<Incoming>) -> Response {
        let (head, body) = request.into_parts();
        let body = read_body(&head.headers, body, &self.bodies, self.client_timeout).await;
        let mut response = self.handler.respond(head, body, self.peer).await;
        if Instant::now() >= self.closes_at {
            add_connection_close_header(&mut response);
        }
        response
    }
}

impl<H: HttpHandler> Protocol for HttpProtocol<H> {
    fn serve_stream(
        &self,
        io: ClientStream,
        peer: SocketAddr,
        draining: CancellationToken,
    ) -> impl Future<Output = Result<(), ConnectionError>> + Send + 'static {
        let client = Arc::new(HttpConnection {
            handler: self.handler.clone(),
            peer,
            bodies: self.bodies.for_connection(),
            client_timeout: self.bounds.client_timeout,
            closes_at: Instant::now() + self.bounds.draw_max_age(),
        });
        let service = service_fn(move |request| {
            let client = client.clone();
            // Boxed, because hyper moves the future several times.
            Box::pin(async move { Ok::<_, Infallible>(client.respond(request).await) })
        });
        let connection = self.http.serve_connection(TokioIo::new(io), service);
        async move {
            let mut connection = pin!(connection);
            tokio::select! {
                biased;
                ended = connection.as_mut() => return Ok(ended?),
                () = draining.cancelled() => connection.as_mut().graceful_shutdown(),
            }
            Ok(connection.await?)
        }
    }
}

/// Reads the whole body of a request with these headers. Fails if the body is larger than [`MAX_BODY_BYTES`], or does
/// not arrive within `client_timeout`.
async fn read_body(
    headers: &HeaderMap,
    body: Incoming,
    bodies: &ConnectionBodyBudget,
    client_timeout: Duration,
) -> Result<BufferedBody, HttpProblem> {
    // A client that sends `Expect: 100-continue` learns that the body is too large before it sends the body.
    if expects_100_continue(headers) && body.size_hint().lower() > MAX_BODY_BYTES as u64 {
        return Err(BodyError::TooLarge { is_read: false }.into());
    }
    let body = timeout(client_timeout, bodies.read(body, no_length_prefix)).await;
    body.unwrap_or(Err(BodyError::Slow { max_wait: client_timeout })).map_err(HttpProblem::from)
}

fn expects_100_continue(headers: &HeaderMap) -> bool {
    headers
        .get(header::EXPECT)
        .is_some_and(|expected| expected.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

/// Adds the header `Connection: close`, so that the client opens another connection for its next request. If the
/// connection closed without this header, the client could not know whether its last request was processed.
pub fn add_connection_close_header(response: &mut Response) {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
}

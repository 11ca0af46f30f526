//! Serves HTTP/1.1 connections.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::bounds::{MAX_HEAD_BYTES, MAX_HEADERS};
use crate::connections::{ClientIo, ConnectionError, Protocol};

/// Maximum size in bytes of the read buffer of a connection. The buffer is larger than the largest request head.
const MAX_READ_BUFFER_BYTES: usize = 2 * MAX_HEAD_BYTES;

/// A handler of HTTP requests.
pub trait HttpHandler: Send + Sync + 'static {
    /// Responds to a request of the client at this address. The future is dropped if the client disconnects.
    fn respond(
        &self,
        request: Request<Incoming>,
        peer: SocketAddr,
    ) -> impl Future<Output = Response> + Send;
}

impl HttpHandler for Router {
    async fn respond(&self, request: Request<Incoming>, _: SocketAddr) -> Response {
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
}

impl<H> Clone for HttpProtocol<H> {
    fn clone(&self) -> Self {
        Self { http: self.http.clone(), handler: self.handler.clone() }
    }
}

impl<H> HttpProtocol<H> {
    /// Creates the protocol. `client_timeout` is the maximum time to read a request head, and the maximum time that a
    /// connection may be idle.
    pub fn new(handler: H, client_timeout: Duration) -> Self {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            // Starts when the connection waits for a head, so it bounds idle connections too.
            .header_read_timeout(client_timeout)
            .max_header_size(MAX_HEAD_BYTES)
            .max_headers(MAX_HEADERS)
            .max_buf_size(MAX_READ_BUFFER_BYTES)
            // Responses are small, so a body is copied behind its head: one part to write instead of two.
            .writev(false)
            // A client that closes its connection, or only its sending side, leaves the queue in which its call waits.
            .half_close(false);
        Self { http, handler: Arc::new(handler) }
    }

    /// Closes each connection after its first response.
    pub fn without_keep_alive(mut self) -> Self {
        self.http.keep_alive(false);
        self
    }
}

impl<H: HttpHandler> Protocol for HttpProtocol<H> {
    fn serve_stream(
        &self,
        io: ClientIo,
        peer: SocketAddr,
        draining: CancellationToken,
    ) -> impl Future<Output = Result<(), ConnectionError>> + Send + 'static {
        let handler = self.handler.clone();
        let service = service_fn(move |request| {
            let handler = handler.clone();
            // Boxed, because hyper moves the future several times.
            Box::pin(async move { Ok::<_, Infallible>(handler.respond(request, peer).await) })
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

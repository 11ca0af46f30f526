//! Serves HTTP/1.1 connections.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::Watcher;
use tower::ServiceExt;

use super::fast_path::{CompleteRequest, FastPath};
use super::stream::{ClientDisconnect, ClientStream};
use crate::bounds::{MAX_HEAD_BYTES, MAX_HEADERS};
use crate::connections::{ClientIo, ConnectionDeadlines, Protocol};

/// Maximum size in bytes of the read buffer of a connection. The buffer is larger than the largest request head.
const MAX_READ_BUFFER_BYTES: usize = 2 * MAX_HEAD_BYTES;

/// The connection on which a request arrived.
pub struct HttpClient {
    /// The address from which the connection was opened.
    pub peer: SocketAddr,
    /// The deadlines of the connection.
    pub deadlines: ConnectionDeadlines,
    /// The end of the connection.
    pub disconnect: ClientDisconnect,
}

/// A handler of HTTP requests.
pub trait HttpHandler: Send + Sync + 'static {
    /// Responds to a request of this client.
    fn respond(
        &self,
        request: Request<Incoming>,
        client: &HttpClient,
    ) -> impl Future<Output = Response> + Send;

    /// Responds to a request without a future. Appends the response to `message`, in the form of HTTP/1.1. Returns
    /// `false`, and appends nothing, if the request needs [`respond`](Self::respond).
    fn try_respond(&self, _request: &CompleteRequest<'_>, _message: &mut Vec<u8>) -> bool {
        false
    }
}

impl HttpHandler for Router {
    async fn respond(&self, request: Request<Incoming>, _: &HttpClient) -> Response {
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
    client_timeout: Duration,
}

impl<H> Clone for HttpProtocol<H> {
    fn clone(&self) -> Self {
        Self {
            http: self.http.clone(),
            handler: self.handler.clone(),
            client_timeout: self.client_timeout,
        }
    }
}

impl<H> HttpProtocol<H> {
    /// Creates the protocol. `client_timeout` is the maximum time to read a request head, and the maximum time that a
    /// connection may be idle.
    pub fn new(handler: H, client_timeout: Duration) -> Self {
        let mut http = http1::Builder::new();
        // Starts when the connection waits for a head, so it bounds idle connections too.
        http.header_read_timeout(client_timeout)
            .max_header_size(MAX_HEAD_BYTES)
            .max_headers(MAX_HEADERS)
            .max_buf_size(MAX_READ_BUFFER_BYTES)
            // A client may close its sending side after its last request, and then read the responses.
            .half_close(true);
        Self { http, handler: Arc::new(handler), client_timeout }
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
        draining: Watcher,
    ) -> impl Future<Output = hyper::Result<()>> + Send + 'static {
        let deadlines = ConnectionDeadlines::default();
        let mut http = self.http.clone();
        http.timer(deadlines.clone());
        let fast_path = FastPath::new(self.handler.clone(), deadlines.clone(), self.client_timeout);
        let stream = ClientStream::new(io, fast_path);
        let client = HttpClient { peer, deadlines, disconnect: stream.disconnect() };
        let connection = Arc::new((self.handler.clone(), client));
        let service = service_fn(move |request| {
            let connection = connection.clone();
            // Boxed, because hyper moves the future several times.
            Box::pin(async move {
                let (handler, client) = &*connection;
                Ok::<_, Infallible>(handler.respond(request, client).await)
            })
        });
        draining.watch(http.serve_connection(TokioIo::new(stream), service))
    }
}

//! HTTP/1.1 on a connection.

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
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use tower::ServiceExt;

use super::stream::ClientStream;
use super::{MAX_HEAD, MAX_HEADERS};
use crate::connections::{ClientIo, Protocol};

/// Bytes of a connection that are read ahead, at most: more than a head.
const READ_BUFFER: usize = 2 * MAX_HEAD;

/// What answers requests.
pub trait Answering: Send + Sync + 'static {
    /// The answer to a request that this peer has sent.
    fn answer(
        &self,
        request: Request<Incoming>,
        peer: SocketAddr,
    ) -> impl Future<Output = Response> + Send;
}

impl Answering for Router {
    async fn answer(&self, request: Request<Incoming>, _: SocketAddr) -> Response {
        match self.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

/// HTTP/1.1, and what answers.
pub struct Http<A> {
    http: http1::Builder,
    answering: Arc<A>,
}

impl<A> Clone for Http<A> {
    fn clone(&self) -> Self {
        Self { http: self.http.clone(), answering: self.answering.clone() }
    }
}

impl<A> Http<A> {
    /// `patience` is how long a head may take, and how long a connection may be idle.
    pub fn new(answering: A, patience: Duration) -> Self {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            // From when a head can be read until it has been: it bounds idle connections too.
            .header_read_timeout(patience)
            .max_header_size(MAX_HEAD)
            .max_headers(MAX_HEADERS)
            .max_buf_size(READ_BUFFER)
            // A client may send its last request, say that it is the last, and then read its answers.
            .half_close(true);
        Self { http, answering: Arc::new(answering) }
    }
}

impl<A: Answering> Protocol for Http<A> {
    fn connection(
        &self,
        io: ClientIo,
        peer: SocketAddr,
    ) -> impl GracefulConnection<Error = hyper::Error> + Send + 'static {
        let answering = self.answering.clone();
        let answer = service_fn(move |request| {
            let answering = answering.clone();
            // In a box, since hyper moves it several times.
            Box::pin(async move { Ok::<_, Infallible>(answering.answer(request, peer).await) })
        });
        self.http.serve_connection(TokioIo::new(ClientStream::new(io)), answer)
    }
}

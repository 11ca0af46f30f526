//! HTTP/2 on a connection, and gRPC on that.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;

use super::Services;
use super::greeting::Greeting;
use crate::connections::{ClientIo, Protocol};

/// Calls that a connection may have at once: Envoy opens another when it needs more.
const MAX_CALLS: u32 = 128;

/// Longest head of a call, in bytes. Callers choose it, not their clients.
const MAX_HEAD: u32 = 16 * 1024;

/// Bytes of a call that are under way at once; longer messages take several rounds.
const WINDOW: u32 = 64 * 1024;

/// HTTP/2, and what answers.
#[derive(Clone)]
pub struct Grpc {
    http: http2::Builder<TokioExecutor>,
    services: Arc<Services>,
    patience: Duration,
}

impl Grpc {
    /// `patience` is how long a client may be silent that is asked whether it is there.
    pub fn new(services: Services, patience: Duration) -> Self {
        let mut http = http2::Builder::new(TokioExecutor::new());
        http.timer(TokioTimer::new())
            .max_concurrent_streams(MAX_CALLS)
            .max_header_list_size(MAX_HEAD)
            .initial_stream_window_size(WINDOW)
            .max_send_buf_size(WINDOW as usize)
            // A client that is idle may stay, as long as it is there.
            .keep_alive_interval(patience / 2)
            .keep_alive_timeout(patience / 2)
            // Nobody looks at it.
            .auto_date_header(false);
        Self { http, services: Arc::new(services), patience }
    }
}

impl Protocol for Grpc {
    fn connection(
        &self,
        io: ClientIo,
        _: SocketAddr,
    ) -> impl GracefulConnection<Error = hyper::Error> + Send + 'static {
        let services = self.services.clone();
        let answer = service_fn(move |call| {
            let services = services.clone();
            // In a box, since hyper moves it several times.
            Box::pin(async move { Ok::<_, Infallible>(services.answer(call).await) })
        });
        self.http.serve_connection(TokioIo::new(Greeting::new(io, self.patience)), answer)
    }
}

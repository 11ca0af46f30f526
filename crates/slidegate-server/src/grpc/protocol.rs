//! HTTP/2 on a connection, and gRPC on that.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;

use super::GrpcServices;
use super::preface_timeout::PrefaceTimeout;
use crate::connections::{ClientIo, Protocol};

/// Calls that a connection may have at once: Envoy opens another when it needs more.
const MAX_CONCURRENT_CALLS: u32 = 128;

/// Longest head of a call, in bytes. Callers choose it, not their clients.
const MAX_HEADER_BYTES: u32 = 16 * 1024;

/// Bytes of a call that are under way at once; longer messages take several rounds.
const FLOW_CONTROL_WINDOW_BYTES: u32 = 64 * 1024;

/// HTTP/2, and what answers.
#[derive(Clone)]
pub struct GrpcProtocol {
    http: http2::Builder<TokioExecutor>,
    services: Arc<GrpcServices>,
    client_timeout: Duration,
}

impl GrpcProtocol {
    /// `client_timeout` is how long a client may be silent that is asked whether it is there.
    pub fn new(services: GrpcServices, client_timeout: Duration) -> Self {
        let mut http = http2::Builder::new(TokioExecutor::new());
        http.timer(TokioTimer::new())
            .max_concurrent_streams(MAX_CONCURRENT_CALLS)
            .max_header_list_size(MAX_HEADER_BYTES)
            .initial_stream_window_size(FLOW_CONTROL_WINDOW_BYTES)
            .max_send_buf_size(FLOW_CONTROL_WINDOW_BYTES as usize)
            // A client that is idle may stay, as long as it is there.
            .keep_alive_interval(client_timeout / 2)
            .keep_alive_timeout(client_timeout / 2)
            // Nobody looks at it.
            .auto_date_header(false);
        Self { http, services: Arc::new(services), client_timeout }
    }
}

impl Protocol for GrpcProtocol {
    fn connection(
        &self,
        io: ClientIo,
        _: SocketAddr,
    ) -> impl GracefulConnection<Error = hyper::Error> + Send + 'static {
        let services = self.services.clone();
        let service = service_fn(move |call| {
            let services = services.clone();
            // In a box, since hyper moves it several times.
            Box::pin(async move { Ok::<_, Infallible>(services.handle(call).await) })
        });
        self.http
            .serve_connection(TokioIo::new(PrefaceTimeout::new(io, self.client_timeout)), service)
    }
}

//! Serves HTTP/2 connections that carry gRPC calls.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::Watcher;

use super::GrpcServices;
use super::call_queue::CallQueue;
use super::preface_timeout::PrefaceTimeout;
use crate::connections::{ClientIo, Protocol};

/// Maximum number of concurrent calls on a connection. Envoy opens another connection when it needs more.
const MAX_CONCURRENT_CALLS: u32 = 128;

/// Maximum size of the headers of a call in bytes. The caller, such as Envoy, chooses these headers; its end clients
/// cannot make them larger.
const MAX_HEADER_BYTES: u32 = 16 * 1024;

/// Flow control window of a call in bytes. Larger messages need several round trips.
const FLOW_CONTROL_WINDOW_BYTES: u32 = 64 * 1024;

/// The gRPC protocol: HTTP/2 connections with all gRPC services.
#[derive(Clone)]
pub struct GrpcProtocol {
    services: Arc<GrpcServices>,
    client_timeout: Duration,
}

impl GrpcProtocol {
    /// Creates the protocol. Connections end if the client does not respond to keep-alive pings within
    /// `client_timeout`.
    pub fn new(services: GrpcServices, client_timeout: Duration) -> Self {
        Self { services: Arc::new(services), client_timeout }
    }

    /// Returns the settings of a connection whose calls hyper adds to `calls`.
    fn connection_builder(&self, calls: CallQueue) -> http2::Builder<CallQueue> {
        let mut http = http2::Builder::new(calls);
        http.timer(TokioTimer::new())
            .max_concurrent_streams(MAX_CONCURRENT_CALLS)
            .max_header_list_size(MAX_HEADER_BYTES)
            .initial_stream_window_size(FLOW_CONTROL_WINDOW_BYTES)
            .max_send_buf_size(FLOW_CONTROL_WINDOW_BYTES as usize)
            // Idle connections may stay open as long as the client responds to pings.
            .keep_alive_interval(self.client_timeout / 2)
            .keep_alive_timeout(self.client_timeout / 2)
            // gRPC clients ignore the date.
            .auto_date_header(false);
        http
    }
}

impl Protocol for GrpcProtocol {
    fn serve_stream(
        &self,
        io: ClientIo,
        _: SocketAddr,
        draining: Watcher,
    ) -> impl Future<Output = hyper::Result<()>> + Send + 'static {
        let services = self.services.clone();
        let service = service_fn(move |call| {
            let services = services.clone();
            // Boxed, because hyper moves the future several times.
            Box::pin(
                async move { Ok::<_, Infallible>(services.dispatch_call_to_service(call).await) },
            )
        });
        let calls = CallQueue::default();
        let io = TokioIo::new(PrefaceTimeout::new(io, self.client_timeout));
        let connection = self.connection_builder(calls.clone()).serve_connection(io, service);
        calls.serve(draining.watch(connection))
    }
}

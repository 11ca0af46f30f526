//! Serves HTTP/2 connections that carry gRPC calls.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::Watcher;
use tokio::sync::Semaphore;

use super::GrpcServices;
use super::call_queue::CallQueue;
use super::preface_timeout::PrefaceTimeout;
use crate::connections::{ClientIo, Protocol};

/// Maximum number of open calls on a connection. A call above it is refused, which Envoy treats as a failure that lets
/// the request pass. Envoy opens calls before it has received this number: up to 1,024 on a connection since version
/// 1.36, and any number before.
const MAX_OPEN_CALLS: u32 = 4096;

/// Maximum number of calls of a connection that are handled at the same time. The other open calls wait, and their
/// messages are not read, so that open calls use little memory.
const MAX_HANDLED_CALLS: usize = 512;

/// Maximum size of the headers of a call in bytes. The caller, such as Envoy, chooses these headers; its end clients
/// cannot make them larger.
const MAX_HEADER_BYTES: u32 = 16 * 1024;

/// Flow control window of a call in bytes. Larger messages need several round trips.
const FLOW_CONTROL_WINDOW_BYTES: u32 = 64 * 1024;

/// Flow control window of a connection in bytes. It has space for the unread bytes of all calls: otherwise calls that
/// wait could fill the window, and the calls that are handled would never receive the rest of their messages.
const CONNECTION_WINDOW_BYTES: u32 = MAX_OPEN_CALLS * FLOW_CONTROL_WINDOW_BYTES;

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
            .max_concurrent_streams(MAX_OPEN_CALLS)
            // Envoy resets the calls that time out. If a busy server reads many calls together with their resets, the
            // default of 20 would close the connection, and with it all other calls.
            .max_pending_accept_reset_streams(MAX_OPEN_CALLS as usize)
            // A refused call counts as an error, and its message as another. The default of 1,024 would close the
            // connection.
            .max_local_error_reset_streams(MAX_OPEN_CALLS as usize)
            .max_header_list_size(MAX_HEADER_BYTES)
            .initial_stream_window_size(FLOW_CONTROL_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
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
        let connection = Arc::new((self.services.clone(), Semaphore::new(MAX_HANDLED_CALLS)));
        let service = service_fn(move |call| {
            let connection = connection.clone();
            // Boxed, because hyper moves the future several times.
            Box::pin(async move {
                let (services, handled) = &*connection;
                // The semaphore is never closed. If it were, the number of handled calls would be unbounded.
                let _permit = handled.acquire().await.ok();
                Ok::<_, Infallible>(services.dispatch_call_to_service(call).await)
            })
        });
        let calls = CallQueue::default();
        let io = TokioIo::new(PrefaceTimeout::new(io, self.client_timeout));
        let connection = self.connection_builder(calls.clone()).serve_connection(io, service);
        calls.serve(draining.watch(connection))
    }
}

//! Serves HTTP/2 connections that carry gRPC calls.

use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::stream::{self, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::Server;
use tonic::transport::server::Connected;

use super::open_calls::OpenCalls;
use super::{ConnectionServices, GrpcServices};
use crate::bounds::ClientBounds;
use crate::connections::bodies::BodyBudget;
use crate::connections::{ClientStream, ConnectionError, Protocol};

/// Maximum number of open calls on a connection. A call above it is refused, which Envoy treats as a failure that lets
/// the request pass. Envoy opens calls before it has received this number: up to 1,024 on a connection since version
/// 1.36, and any number before.
const MAX_OPEN_CALLS: u32 = 4096;

/// Maximum size of the headers of a call in bytes. Envoy's clients must not be able to exceed it, because Envoy lets a
/// request pass if its call fails. With tracing, Envoy copies `tracestate` from the request, which has up to 60 KiB of
/// headers by default.
const MAX_HEADER_BYTES: u32 = 128 * 1024;

/// Flow control window of a call in bytes. Larger messages need several round trips.
const FLOW_CONTROL_WINDOW_BYTES: u32 = 16 * 1024;

/// Flow control window of a connection in bytes. The messages of 256 calls that wait for space fill the window. Further
/// calls of the connection then wait until a message that has space, and does not arrive in time, fails.
const CONNECTION_WINDOW_BYTES: u32 = 256 * FLOW_CONTROL_WINDOW_BYTES;

/// The gRPC protocol: HTTP/2 connections with all gRPC services.
#[derive(Clone)]
pub struct GrpcProtocol {
    server: Server,
    services: Arc<GrpcServices>,
    bounds: ClientBounds,
    bodies: BodyBudget,
}

impl GrpcProtocol {
    /// Creates the protocol. A call ends if its message does not arrive within the client timeout, or after the time in
    /// its header `grpc-timeout`. A connection ends if the client sends nothing within the client timeout, neither calls
    /// nor responses to keep-alive pings. The messages of calls occupy the budget `bodies`.
    pub fn new(services: GrpcServices, bounds: ClientBounds, bodies: BodyBudget) -> Self {
        let client_timeout = bounds.client_timeout;
        let server = Server::builder()
            .timeout(client_timeout)
            .max_concurrent_streams(MAX_OPEN_CALLS)
            // Envoy resets the calls that time out. If a busy server reads many calls together with their resets, the
            // default of 20 would close the connection, and with it all other calls.
            .http2_max_pending_accept_reset_streams(Some(MAX_OPEN_CALLS as usize))
            // A refused call counts as an error, and its message as another error. By default, the connection would
            // close after 1,024 errors.
            .http2_max_local_error_reset_streams(Some(MAX_OPEN_CALLS as usize))
            .http2_max_header_list_size(MAX_HEADER_BYTES)
            .initial_stream_window_size(FLOW_CONTROL_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .http2_keepalive_interval(Some(client_timeout / 2))
            .http2_keepalive_timeout(Some(client_timeout / 2))
            // Without this grace period, streams of the health service would keep an old connection open, because they
            // do not end by themselves.
            .max_connection_age_grace(client_timeout);
        Self { server, services: Arc::new(services), bounds, bodies }
    }
}

impl Protocol for GrpcProtocol {
    fn serve_stream(
        &self,
        mut io: ClientStream,
        _: SocketAddr,
        draining: CancellationToken,
    ) -> impl Future<Output = Result<(), ConnectionError>> + Send + 'static {
        io.as_mut().set_read_timeout_pinned(Some(self.bounds.client_timeout));
        // The server runs until it receives the signal to stop, so the end of the connection must send this signal too.
        let connection = GrpcConnection { io, _end: draining.clone().drop_guard() };
        let incoming = stream::iter([Ok::<_, io::Error>(connection)]).chain(stream::pending());
        let server = self.server.clone().max_connection_age(self.bounds.draw_max_age());
        let max_idle = self.bounds.max_connection_idle;
        let calls = OpenCalls::default();
        let services = ConnectionServices::new(
            self.services.clone(),
            self.bodies.for_connection(),
            calls.clone(),
        );
        async move {
            let drained = draining.cancelled();
            let mut served = pin!(server.serve_with_incoming_shutdown(services, incoming, drained));
            tokio::select! {
                ended = served.as_mut() => return Ok(ended?),
                () = calls.wait_until_idle(max_idle) => draining.cancel(),
            }
            Ok(served.await?)
        }
    }
}

/// The byte stream of a connection. Sends the signal that the connection has ended when it is dropped.
struct GrpcConnection {
    io: ClientStream,
    _end: DropGuard,
}

impl Connected for GrpcConnection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for GrpcConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.io.as_mut().poll_read(cx, buffer)
    }
}

impl AsyncWrite for GrpcConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.io.as_mut().poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.io.as_mut().poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.as_mut().poll_shutdown(cx)
    }
}

//! Takes connections and serves them, within bounds: how many at once, and how slow.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::connect_info::ConnectInfo;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tower_layer::Layer;
use tracing::{debug, warn};

use super::stream::ClientStream;
use super::{MAX_BODY, MAX_HEAD};
use crate::settings::ClientBounds;

/// How long to leave new connections waiting after one could not be taken, most often because too
/// many files are open. Asking again at once would fail again, and use a whole core for it.
const BREATHER: Duration = Duration::from_secs(1);

/// Files that are open beside connections: the listener, standard streams, the runtime's own.
const OTHER_FILES: u64 = 64;

/// All connections of a server.
pub struct Connections {
    http: http1::Builder,
    router: Router,
    room: Arc<Semaphore>,
    bounds: ClientBounds,
    draining: GracefulShutdown,
}

impl Connections {
    /// None yet.
    pub fn new(router: Router, bounds: ClientBounds) -> Self {
        let connections = places(bounds);
        allow_open_files(connections as u64);
        Self {
            http: protocol(bounds.patience),
            router,
            room: Arc::new(Semaphore::new(connections)),
            bounds,
            draining: GracefulShutdown::new(),
        }
    }

    /// Takes connections, for ever. Beyond the bound they wait in the listener's queue: a client
    /// that is served a little later is better off than one that is turned away.
    pub async fn take(&self, listener: &TcpListener) -> Infallible {
        loop {
            // The semaphore is never closed; were it, there would be no bound.
            let room = Arc::clone(&self.room).acquire_owned().await.ok();
            match listener.accept().await {
                Ok((stream, peer)) => self.serve(stream, peer, room),
                Err(error) if concerns_one_client(&error) => debug!("a client was gone: {error}"),
                Err(error) => {
                    warn!("cannot take a connection: {error}");
                    sleep(BREATHER).await;
                }
            }
        }
    }

    fn serve(&self, stream: TcpStream, peer: SocketAddr, room: Option<OwnedSemaphorePermit>) {
        // Answers are small: waiting to fill a packet would only delay them.
        if let Err(error) = stream.set_nodelay(true) {
            debug!("cannot send without delay: {error}");
        }
        let io = TokioIo::new(ClientStream::new(stream, self.bounds.patience));
        let service = Extension(ConnectInfo(peer)).layer(self.router.clone());
        let service = TowerToHyperService::new(service);
        let connection = self.draining.watch(self.http.serve_connection(io, service));
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                debug!("a connection ended: {error}");
            }
            drop(room);
        });
    }

    /// Waits until every connection has ended by itself, or for so long.
    pub async fn last_questions(&self, within: Duration) {
        let all = u32::try_from(places(self.bounds)).unwrap_or(u32::MAX);
        // It is never closed; either way it is time to go on.
        let _ = timeout(within, self.room.acquire_many(all)).await;
    }

    /// Ends idle connections at once, and busy ones after the request that they are at.
    pub async fn drain(self) {
        self.draining.shutdown().await;
    }
}

/// Connections that there may be at once.
fn places(bounds: ClientBounds) -> usize {
    bounds.connections.get().min(Semaphore::MAX_PERMITS)
}

fn protocol(patience: Duration) -> http1::Builder {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        // From when a head can be read until it has been: it bounds idle connections too.
        .header_read_timeout(patience)
        .max_header_size(MAX_HEAD)
        .max_buf_size(MAX_BODY)
        // A client may send its last request, say that it is the last, and then read its answers.
        .half_close(true);
    http
}

/// Whether the next connection may well be taken.
fn concerns_one_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};

    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

fn allow_open_files(connections: u64) {
    let wanted = connections.saturating_add(OTHER_FILES);
    match rlimit::increase_nofile_limit(wanted) {
        Ok(allowed) if allowed < wanted => {
            warn!("the system allows {allowed} open files: too few for {connections} connections");
        }
        Ok(_) => {}
        Err(error) => warn!("cannot ask for {wanted} open files: {error}"),
    }
}

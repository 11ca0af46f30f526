//! Takes connections and serves them, within bounds: how many at once, and how slow. What is spoken on them
//! is for a [`Protocol`] to say.

mod eviction;
mod open_files;
mod stream;
mod threads;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::server::graceful::{GracefulConnection, GracefulShutdown, Watcher};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

pub use self::open_files::Listeners;
pub use self::stream::ClientIo;
pub use self::threads::ConnectionThreads;

use self::eviction::{EvictionSignal, OpenConnections};
use crate::settings::ClientBounds;
use crate::tls::ListenerTls;

/// How long to leave new connections waiting after one could not be taken, most often because too
/// many files are open. Asking again at once would fail again, and use a whole core for it.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_secs(1);

/// What is spoken on a connection.
pub trait Protocol: Clone + Send + Sync + 'static {
    /// The connection of this client: done when it ends.
    fn connection(
        &self,
        io: ClientIo,
        peer: SocketAddr,
    ) -> impl GracefulConnection<Error = hyper::Error> + Send + 'static;
}

/// All connections of a face.
pub struct Connections<P> {
    protocol: P,
    threads: ConnectionThreads,
    tls: Option<ListenerTls>,
    slots: Arc<Semaphore>,
    evicts_oldest: bool,
    bounds: ClientBounds,
    draining: GracefulShutdown,
}

impl<P: Protocol> Connections<P> {
    /// None yet. By TLS, if there is any.
    pub fn new(
        protocol: P,
        threads: ConnectionThreads,
        tls: Option<ListenerTls>,
        bounds: ClientBounds,
    ) -> Self {
        Self {
            protocol,
            threads,
            tls,
            slots: Arc::new(Semaphore::new(max_connections(bounds))),
            evicts_oldest: false,
            bounds,
            draining: GracefulShutdown::new(),
        }
    }

    /// Evicts the oldest connection when the bound is reached, so that idle connections do not delay a new one. For
    /// protocols whose connections are short.
    pub fn evicting_oldest(self) -> Self {
        Self { evicts_oldest: true, ..self }
    }

    /// Takes connections, for ever. Beyond the bound they wait in the listener's queue: a client
    /// that is served a little later is better off than one that is turned away.
    pub async fn accept_all(&self, listener: &TcpListener) -> Infallible {
        let mut open = self.evicts_oldest.then(OpenConnections::default);
        loop {
            if let Some(open) = open.as_mut().filter(|_| self.slots.available_permits() == 0) {
                open.evict_oldest();
            }
            // The semaphore is never closed; were it, there would be no bound.
            let permit = Arc::clone(&self.slots).acquire_owned().await.ok();
            match listener.accept().await {
                Ok((stream, peer)) => {
                    self.serve(stream, peer, permit, open.as_mut().map(OpenConnections::add));
                }
                Err(error) if is_client_error(&error) => debug!("a client was gone: {error}"),
                Err(error) => {
                    warn!("cannot take a connection: {error}");
                    sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
        }
    }

    fn serve(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        permit: Option<OwnedSemaphorePermit>,
        evicted: Option<EvictionSignal>,
    ) {
        // Answers are small: waiting to fill a packet would only delay them.
        if let Err(error) = stream.set_nodelay(true) {
            debug!("cannot send without delay: {error}");
        }
        let client = ClientConnection {
            protocol: self.protocol.clone(),
            tls: self.tls.clone(),
            peer,
            client_timeout: self.bounds.client_timeout,
            draining: self.draining.watcher(),
        };
        self.threads.serve(stream, async move |stream| {
            match evicted {
                Some(evicted) => client.serve_until(stream, evicted).await,
                None => client.serve(stream).await,
            }
            drop(permit);
        });
    }

    /// Waits until every connection has ended by itself, or for so long.
    pub async fn wait_until_closed(&self, within: Duration) {
        let all = u32::try_from(max_connections(self.bounds)).unwrap_or(u32::MAX);
        // It is never closed; either way it is time to go on.
        let _ = timeout(within, self.slots.acquire_many(all)).await;
    }

    /// Ends idle connections at once, and busy ones after the requests that they are at.
    pub async fn drain(self) {
        self.draining.shutdown().await;
    }
}

/// A client that has come.
struct ClientConnection<P> {
    protocol: P,
    tls: Option<ListenerTls>,
    peer: SocketAddr,
    client_timeout: Duration,
    draining: Watcher,
}

impl<P: Protocol> ClientConnection<P> {
    /// Serves the connection until it ends or is evicted.
    async fn serve_until(self, stream: TcpStream, evicted: EvictionSignal) {
        let peer = self.peer;
        tokio::select! {
            () = self.serve(stream) => {}
            _ = evicted => debug!("{peer}: evicted for a newer connection"),
        }
    }

    /// Until it goes.
    async fn serve(self, stream: TcpStream) {
        let io = match stream::open(stream, self.tls.as_ref(), self.client_timeout).await {
            Ok(io) => io,
            Err(error) => return debug!("{}: no TLS: {error}", self.peer),
        };
        let connection = self.protocol.connection(io, self.peer);
        if let Err(error) = self.draining.watch(connection).await {
            debug!("a connection ended: {error}");
        }
    }
}

/// Connections that there may be at once.
fn max_connections(bounds: ClientBounds) -> usize {
    bounds.connections.get().min(Semaphore::MAX_PERMITS)
}

/// Whether the next connection may well be taken.
fn is_client_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};

    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

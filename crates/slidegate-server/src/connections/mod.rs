//! Takes connections and serves them, within bounds: how many at once, and how slow. What is spoken on them
//! is for a [`Protocol`] to say.

mod oldest;
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
pub use self::threads::Threads;

use self::oldest::{Evicted, OldestFirst};
use crate::settings::ClientBounds;
use crate::tls::FaceTls;

/// How long to leave new connections waiting after one could not be taken, most often because too
/// many files are open. Asking again at once would fail again, and use a whole core for it.
const BREATHER: Duration = Duration::from_secs(1);

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
    threads: Threads,
    tls: Option<FaceTls>,
    room: Arc<Semaphore>,
    evicts_oldest: bool,
    bounds: ClientBounds,
    draining: GracefulShutdown,
}

impl<P: Protocol> Connections<P> {
    /// None yet. By TLS, if there is any.
    pub fn new(protocol: P, threads: Threads, tls: Option<FaceTls>, bounds: ClientBounds) -> Self {
        Self {
            protocol,
            threads,
            tls,
            room: Arc::new(Semaphore::new(places(bounds))),
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
    pub async fn take(&self, listener: &TcpListener) -> Infallible {
        let mut open = self.evicts_oldest.then(OldestFirst::default);
        loop {
            if let Some(open) = open.as_mut().filter(|_| self.room.available_permits() == 0) {
                open.evict_oldest();
            }
            // The semaphore is never closed; were it, there would be no bound.
            let room = Arc::clone(&self.room).acquire_owned().await.ok();
            match listener.accept().await {
                Ok((stream, peer)) => {
                    self.serve(stream, peer, room, open.as_mut().map(OldestFirst::add));
                }
                Err(error) if concerns_one_client(&error) => debug!("a client was gone: {error}"),
                Err(error) => {
                    warn!("cannot take a connection: {error}");
                    sleep(BREATHER).await;
                }
            }
        }
    }

    fn serve(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        room: Option<OwnedSemaphorePermit>,
        evicted: Option<Evicted>,
    ) {
        // Answers are small: waiting to fill a packet would only delay them.
        if let Err(error) = stream.set_nodelay(true) {
            debug!("cannot send without delay: {error}");
        }
        let client = Client {
            protocol: self.protocol.clone(),
            tls: self.tls.clone(),
            peer,
            patience: self.bounds.patience,
            draining: self.draining.watcher(),
        };
        self.threads.serve(stream, async move |stream| {
            match evicted {
                Some(evicted) => client.serve_until(stream, evicted).await,
                None => client.serve(stream).await,
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

    /// Ends idle connections at once, and busy ones after the requests that they are at.
    pub async fn drain(self) {
        self.draining.shutdown().await;
    }
}

/// A client that has come.
struct Client<P> {
    protocol: P,
    tls: Option<FaceTls>,
    peer: SocketAddr,
    patience: Duration,
    draining: Watcher,
}

impl<P: Protocol> Client<P> {
    /// Serves the connection until it ends or is evicted.
    async fn serve_until(self, stream: TcpStream, evicted: Evicted) {
        let peer = self.peer;
        tokio::select! {
            () = self.serve(stream) => {}
            _ = evicted => debug!("{peer}: evicted for a newer connection"),
        }
    }

    /// Until it goes.
    async fn serve(self, stream: TcpStream) {
        let io = match stream::open(stream, self.tls.as_ref(), self.patience).await {
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
fn places(bounds: ClientBounds) -> usize {
    bounds.connections.get().min(Semaphore::MAX_PERMITS)
}

/// Whether the next connection may well be taken.
fn concerns_one_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};

    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

//! Accepts and serves client connections. Bounds the number of connections, and the time that a client may take.
//!
//! Connections are accepted here, because `axum::serve` and tonic's server do not bound their number. A [`Protocol`]
//! serves each connection with HTTP/1.1, or with gRPC over HTTP/2.

pub mod bodies;
mod eviction;
mod large;
mod open_files;
mod per_address;
mod socket;
mod stream;

use std::convert::Infallible;
use std::error::Error;
use std::future::pending;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use slidegate::clock::{Clock, WallClock};
use tokio::runtime::{self, Handle};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

pub use self::large::{LargeCallPanic, LargeCallThread};
pub use self::open_files::OpenFileDemand;
pub use self::socket::{ClientSocket, ListenSocket};
pub use self::stream::ClientStream;

use self::eviction::{EvictionSignal, OpenConnections};
use self::per_address::{AddressSlot, ConnectionsPerAddress};
use crate::background::BackgroundTasks;
use crate::bounds::ClientBounds;
use crate::telemetry::LogThrottle;
use crate::tls::ListenerTls;

/// Pause after a connection could not be accepted, most often because the process has too many open files. An immediate
/// retry would fail again, and many retries would occupy a core.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_secs(1);

/// The reason why a connection ended early.
pub type ConnectionError = Box<dyn Error + Send + Sync>;

/// A protocol that serves the connections of a listener: HTTP/1.1, or gRPC over HTTP/2.
pub trait Protocol: Clone + Send + Sync + 'static {
    /// Returns a future that serves the client connection `io` until it ends, or until it has completed its last
    /// request after `draining` is cancelled, because the server stops. `peer` is the address of the client.
    fn serve_stream(
        &self,
        io: ClientStream,
        peer: SocketAddr,
        draining: CancellationToken,
    ) -> impl Future<Output = Result<(), ConnectionError>> + Send + 'static;
}

/// The connections of one listener, with the settings to serve them.
pub struct Connections<P> {
    protocol: P,
    threads: ConnectionThreads,
    tls: Option<ListenerTls>,
    slots: Arc<Semaphore>,
    /// The connections of each address; `None` if the listener evicts its oldest connection instead.
    per_address: Option<ConnectionsPerAddress>,
    share_log: LogThrottle,
    bounds: ClientBounds,
    draining: CancellationToken,
}

/// The slots that a connection occupies until it ends: one of its address, and one of the listener. The slot of the
/// address is freed first, because the next connection, which waits for a slot of the listener, may have the same
/// address.
struct ConnectionSlot {
    _address: Option<AddressSlot>,
    _listener: Option<OwnedSemaphorePermit>,
}

impl<P: Protocol> Connections<P> {
    /// Creates an empty set of connections. If `tls` is set, the connections use TLS.
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
            per_address: Some(ConnectionsPerAddress::new(bounds.max_connections_per_address())),
            share_log: LogThrottle::new(1, Duration::from_secs(60)),
            bounds,
            draining: CancellationToken::new(),
        }
    }

    /// Makes the listener evict its oldest connection if the maximum number of connections is open, so that idle
    /// connections do not delay a new one. Suits listeners whose connections are short.
    pub fn with_eviction(self) -> Self {
        Self { per_address: None, ..self }
    }

    /// Accepts connections until the process ends. Connections above the maximum number wait in the operating system's
    /// queue of the listener: a delay is better for a client than a rejection.
    pub async fn accept_connections(&self, listener: &ListenSocket) -> Infallible {
        let mut open = self.per_address.is_none().then(OpenConnections::default);
        let per_address = self.per_address.as_ref().filter(|_| listener.has_client_addresses());
        loop {
            if let Some(open) = open.as_mut().filter(|_| self.slots.available_permits() == 0) {
                open.evict_oldest();
            }
            // The semaphore is never closed. If it were, connections would be unbounded.
            let listener_slot = Arc::clone(&self.slots).acquire_owned().await.ok();
            match listener.accept().await {
                Ok((stream, peer)) => {
                    let Ok(address_slot) = self.occupy_address_slot(per_address, peer.ip()) else {
                        continue;
                    };
                    let slot = ConnectionSlot { _address: address_slot, _listener: listener_slot };
                    let evicted = open.as_mut().map(OpenConnections::add);
                    self.serve_connection(stream, peer, slot, evicted);
                }
                Err(error) if is_client_disconnect(&error) => {
                    debug!("client disconnected before it was accepted: {error}")
                }
                Err(error) => {
                    warn!("cannot accept a connection: {error}");
                    sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
        }
    }

    /// Counts a connection of an address. Fails if the address has its maximum number of connections, and logs it at
    /// most once a minute.
    fn occupy_address_slot(
        &self,
        per_address: Option<&ConnectionsPerAddress>,
        address: IpAddr,
    ) -> Result<Option<AddressSlot>, AddressLimitError> {
        let Some(per_address) = per_address else { return Ok(None) };
        if let Some(slot) = per_address.try_occupy(address) {
            return Ok(Some(slot));
        }
        if let Some(unlogged) = self.share_log.try_acquire(WallClock.now()) {
            let max = self.bounds.max_connections_per_address();
            warn!(
                %address,
                max,
                unlogged,
                "closed a new connection of an address that has its maximum of open connections; raise \
                 --max-connections-per-address if it is your proxy"
            );
        }
        Err(AddressLimitError)
    }

    fn serve_connection(
        &self,
        stream: ClientSocket,
        peer: SocketAddr,
        slot: ConnectionSlot,
        evicted: Option<EvictionSignal>,
    ) {
        // Responses are small, so waiting to fill a packet would only delay them.
        if let Either::Left(stream) = &stream
            && let Err(error) = stream.set_nodelay(true)
        {
            debug!("cannot set TCP_NODELAY: {error}");
        }
        let client = AcceptedConnection {
            protocol: self.protocol.clone(),
            tls: self.tls.clone(),
            peer,
            client_timeout: self.bounds.client_timeout,
            // Each connection has its own child token, so that connections on different threads do not share a lock.
            draining: self.draining.child_token(),
        };
        self.threads.serve(stream, async move |stream| {
            match evicted {
                Some(evicted) => client.serve_until_evicted(stream, evicted).await,
                None => client.serve_until_closed(stream).await,
            }
            drop(slot);
        });
    }

    /// Closes idle connections after `delay`, and busy connections after their current requests. Returns when all
    /// connections have closed.
    pub async fn drain(self, delay: Duration) {
        if timeout(delay, self.wait_until_closed()).await.is_err() {
            self.draining.cancel();
            self.wait_until_closed().await;
        }
    }

    async fn wait_until_closed(&self) {
        let all = u32::try_from(max_connections(self.bounds)).unwrap_or(u32::MAX);
        // Acquiring cannot fail, because the semaphore is never closed.
        let _ = self.slots.acquire_many(all).await;
    }
}

/// The error for a connection whose address already has its maximum number of open connections.
struct AddressLimitError;

/// An accepted client connection without its byte stream: the address of the client, and the settings to serve it.
struct AcceptedConnection<P> {
    protocol: P,
    tls: Option<ListenerTls>,
    peer: SocketAddr,
    client_timeout: Duration,
    draining: CancellationToken,
}

impl<P: Protocol> AcceptedConnection<P> {
    /// Serves the connection until it ends or is evicted.
    async fn serve_until_evicted(self, stream: ClientSocket, evicted: EvictionSignal) {
        let peer = self.peer;
        tokio::select! {
            () = self.serve_until_closed(stream) => {}
            _ = evicted => debug!("{peer}: evicted for a newer connection"),
        }
    }

    /// Serves the connection until it ends.
    async fn serve_until_closed(self, stream: ClientSocket) {
        let io = match stream::open_client_stream(stream, self.tls.as_ref(), self.client_timeout)
            .await
        {
            Ok(io) => io,
            Err(error) => return debug!("{}: TLS handshake failed: {error}", self.peer),
        };
        let connection = self.protocol.serve_stream(io, self.peer, self.draining);
        if let Err(error) = connection.await {
            debug!("connection ended with an error: {error}");
        }
    }
}

/// The threads that serve connections.
pub enum ConnectionThreads {
    /// The threads of the Tokio runtime that accepts the connections.
    Shared,
    /// Dedicated threads. Each connection stays on one thread, so that no other thread has to be woken to serve it.
    Dedicated(Box<[RuntimeThread]>),
}

/// A thread with its own Tokio runtime.
pub struct RuntimeThread {
    runtime: Handle,
    /// Counts the open connections on this thread: each of them holds a clone of this `Arc`.
    connections: Arc<()>,
}

impl ConnectionThreads {
    /// Starts `count` dedicated threads, at least one. The threads run until the process ends.
    pub fn start(name: &'static str, count: usize, tasks: &BackgroundTasks) -> io::Result<Self> {
        (0..count.max(1))
            .map(|_| RuntimeThread::start_thread(name, tasks))
            .collect::<io::Result<_>>()
            .map(Self::Dedicated)
    }

    /// Serves a connection on one of these threads. With dedicated threads, selects the thread with the fewest
    /// connections: Envoy opens few connections and keeps them busy, so they must be distributed evenly.
    pub fn serve<F>(
        &self,
        stream: ClientSocket,
        client: impl FnOnce(ClientSocket) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        match self {
            Self::Shared => drop(tokio::spawn(client(stream))),
            Self::Dedicated(threads) => {
                let least_busy =
                    threads.iter().min_by_key(|thread| Arc::strong_count(&thread.connections));
                let Some(thread) = least_busy else { return };
                let guard = thread.connections.clone();
                // The socket moves to the runtime of the thread, because a socket wakes the runtime in which it was
                // created.
                let stream = socket::detach_from_runtime(stream);
                thread.runtime.spawn(async move {
                    match stream.and_then(socket::attach_to_runtime) {
                        Ok(stream) => client(stream).await,
                        Err(error) => debug!("cannot move a connection to its thread: {error}"),
                    }
                    drop(guard);
                });
            }
        }
    }
}

impl RuntimeThread {
    /// Starts the thread, which runs until the process ends.
    pub fn start_thread(name: &'static str, tasks: &BackgroundTasks) -> io::Result<Self> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let run = move || runtime.block_on(pending::<()>());
        tasks.start_thread(name, run)?;
        Ok(Self { runtime: handle, connections: Arc::new(()) })
    }

    /// Runs a task on this thread.
    pub fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.runtime.spawn(task)
    }
}

/// Returns the maximum number of connections that may be open at the same time.
fn max_connections(bounds: ClientBounds) -> usize {
    bounds.max_connections.get().min(Semaphore::MAX_PERMITS)
}

/// Returns `true` if accepting a connection failed only because of this client, for example because the client
/// disconnected. The next accept may then succeed.
fn is_client_disconnect(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};

    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

//! On which threads connections are served.

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::thread;

use tokio::net::TcpStream;
use tokio::runtime::{self, Handle};
use tracing::debug;

/// On which threads connections are served.
pub enum ConnectionThreads {
    /// On those of the runtime that takes them, whichever has time.
    Shared,
    /// Each on one of these from its beginning to its end. Nobody else looks into what a thread has to do, so
    /// nobody has to be woken for it.
    Dedicated(Box<[RuntimeThread]>),
}

/// A thread with a runtime of its own.
pub struct RuntimeThread {
    runtime: Handle,
    /// As many clones as there are connections, and this one.
    connections: Arc<()>,
}

impl ConnectionThreads {
    /// So many, which go when the process does.
    pub fn start(name: &str, count: usize) -> io::Result<Self> {
        (0..count.max(1))
            .map(|_| RuntimeThread::start(name))
            .collect::<io::Result<_>>()
            .map(Self::Dedicated)
    }

    /// Serves a connection on the thread that has the fewest: Envoy opens few, and keeps them busy.
    pub fn serve<F>(&self, stream: TcpStream, client: impl FnOnce(TcpStream) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        match self {
            Self::Shared => drop(tokio::spawn(client(stream))),
            Self::Dedicated(threads) => {
                let least_busy =
                    threads.iter().min_by_key(|thread| Arc::strong_count(&thread.connections));
                if let Some(thread) = least_busy {
                    thread.serve(stream, client);
                }
            }
        }
    }
}

impl RuntimeThread {
    fn start(name: &str) -> io::Result<Self> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let run = move || runtime.block_on(pending::<()>());
        thread::Builder::new().name(name.into()).spawn(run)?;
        Ok(Self { runtime: handle, connections: Arc::new(()) })
    }

    fn serve<F>(&self, stream: TcpStream, client: impl FnOnce(TcpStream) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let guard = self.connections.clone();
        // A socket wakes the runtime that it was made in.
        let stream = stream.into_std();
        self.runtime.spawn(async move {
            match stream.and_then(TcpStream::from_std) {
                Ok(stream) => client(stream).await,
                Err(error) => debug!("a client was lost on its way to a thread: {error}"),
            }
            drop(guard);
        });
    }
}

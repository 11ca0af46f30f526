//! On which threads connections are served.

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::thread;

use tokio::net::TcpStream;
use tokio::runtime::{self, Handle};
use tracing::debug;

/// On which threads connections are served.
pub enum Threads {
    /// On those of the runtime that takes them, whichever has time.
    Shared,
    /// Each on one of these from its beginning to its end. Nobody else looks into what a thread has to do, so
    /// nobody has to be woken for it.
    Own(Box<[Thread]>),
}

/// A thread with a runtime of its own.
pub struct Thread {
    runtime: Handle,
    /// As many clones as there are connections, and this one.
    connections: Arc<()>,
}

impl Threads {
    /// So many, which go when the process does.
    pub fn start(name: &str, number: usize) -> io::Result<Self> {
        (0..number.max(1)).map(|_| Thread::start(name)).collect::<io::Result<_>>().map(Self::Own)
    }

    /// Serves a connection on the thread that has the fewest: Envoy opens few, and keeps them busy.
    pub fn serve<F>(&self, stream: TcpStream, client: impl FnOnce(TcpStream) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        match self {
            Self::Shared => drop(tokio::spawn(client(stream))),
            Self::Own(threads) => {
                let idle =
                    threads.iter().min_by_key(|thread| Arc::strong_count(&thread.connections));
                if let Some(thread) = idle {
                    thread.serve(stream, client);
                }
            }
        }
    }
}

impl Thread {
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
        let place = self.connections.clone();
        // A socket wakes the runtime that it was made in.
        let stream = stream.into_std();
        self.runtime.spawn(async move {
            match stream.and_then(TcpStream::from_std) {
                Ok(stream) => client(stream).await,
                Err(error) => debug!("a client was lost on its way to a thread: {error}"),
            }
            drop(place);
        });
    }
}

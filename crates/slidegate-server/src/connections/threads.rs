//! Threads that serve connections.

use std::future::pending;
use std::io;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::runtime::{self, Handle};
use tokio::task::JoinHandle;
use tracing::debug;

use crate::background::BackgroundTasks;

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
                    thread.serve_connection(stream, client);
                }
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

    fn serve_connection<F>(
        &self,
        stream: TcpStream,
        client: impl FnOnce(TcpStream) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let guard = self.connections.clone();
        // Converted to a standard stream and back, because a socket wakes the runtime in which it was created.
        let stream = stream.into_std();
        self.runtime.spawn(async move {
            match stream.and_then(TcpStream::from_std) {
                Ok(stream) => client(stream).await,
                Err(error) => debug!("cannot move a connection to its thread: {error}"),
            }
            drop(guard);
        });
    }
}

//! A proxy between a store and Redis that injects network faults into replies.

#![allow(dead_code, reason = "not every test uses all of it")]

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The fault that is injected into replies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ReplyFault {
    Pass,
    /// Each reply is delayed by this time.
    Delay(Duration),
    /// Replies are lost.
    Drop,
    /// The connection is closed within a reply.
    Cut,
    /// One bit of some replies is flipped.
    Flip,
    /// These bytes are inserted before one in four replies on average.
    Insert(&'static [u8]),
    /// Some replies are truncated.
    Shorten,
}

pub struct Proxy {
    port: u16,
    fault: Arc<Mutex<ReplyFault>>,
    /// Number of chunks of data that were changed, delayed or dropped.
    corrupted: Arc<AtomicU64>,
    /// Number of accepted connections.
    accepted: Arc<AtomicU64>,
    /// The numbers of connections, from 1, up to which all are closed or forgotten.
    ended: watch::Sender<Ended>,
    server: JoinHandle<()>,
}

/// Numbers of connections, from 1, up to which all have ended.
#[derive(Clone, Copy, Debug, Default)]
struct Ended {
    /// These connections are closed.
    closed: u64,
    /// The data of these connections is discarded, and they stay open.
    forgotten: u64,
}

impl Proxy {
    pub async fn start(to: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let fault = Arc::new(Mutex::new(ReplyFault::Pass));
        let (corrupted, accepted) = (Arc::default(), Arc::default());
        let ended = watch::Sender::default();
        let server = tokio::spawn(accept_connections(
            listener,
            to,
            Arc::clone(&fault),
            Arc::clone(&corrupted),
            Arc::clone(&accepted),
            ended.clone(),
        ));
        Self { port, fault, corrupted, accepted, ended, server }
    }

    pub fn address(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub fn set_fault(&self, fault: ReplyFault) {
        *self.fault.lock().unwrap() = fault;
    }

    /// Closes all connections.
    pub fn close_connections(&self) {
        let accepted = self.accepted();
        self.ended.send_modify(|ended| ended.closed = accepted);
    }

    /// Forgets all connections, as a network address translation does: their data is discarded without a word. New
    /// connections work.
    pub fn forget_connections(&self) {
        let accepted = self.accepted();
        self.ended.send_modify(|ended| ended.forgotten = accepted);
    }

    /// Returns the number of connections that were accepted.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::SeqCst)
    }

    pub fn corrupted(&self) -> u64 {
        self.corrupted.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn accept_connections(
    listener: TcpListener,
    to: u16,
    fault: Arc<Mutex<ReplyFault>>,
    corrupted: Arc<AtomicU64>,
    accepted: Arc<AtomicU64>,
    ended: watch::Sender<Ended>,
) {
    loop {
        let (client, _) = listener.accept().await.unwrap();
        let number = accepted.fetch_add(1, Ordering::SeqCst) + 1;
        let Ok(server) = TcpStream::connect(("127.0.0.1", to)).await else { continue };
        let (mut from_client, to_client) = client.into_split();
        let (from_server, mut to_server) = server.into_split();
        let mut until_ended = ended.subscribe();
        let (fault, corrupted, has_ended) = (fault.clone(), corrupted.clone(), ended.subscribe());
        tokio::spawn(async move {
            let copy = tokio::io::copy(&mut from_client, &mut to_server);
            let replies = forward_replies(from_server, to_client, fault, corrupted);
            // Both directions end together, as they do when a socket is closed.
            let mut forward = pin!(async {
                tokio::select! { _ = copy => {}, () = replies => {} }
            });
            tokio::select! {
                () = &mut forward => {}
                _ = until_ended.wait_for(|ended| number <= ended.closed.max(ended.forgotten)) => {}
            }
            // The sockets of a forgotten connection stay open, and nothing is read.
            if number > has_ended.borrow().closed && number <= has_ended.borrow().forgotten {
                std::future::pending::<()>().await;
            }
        });
    }
}

async fn forward_replies(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    fault: Arc<Mutex<ReplyFault>>,
    corrupted: Arc<AtomicU64>,
) {
    let mut buffer = vec![0; 16_384];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let fault = *fault.lock().unwrap();
        let mut bytes = buffer[..read].to_vec();
        let is_selected = fastrand::u8(..4) == 0;
        match fault {
            ReplyFault::Pass => {}
            ReplyFault::Delay(span) => tokio::time::sleep(span).await,
            ReplyFault::Drop => bytes.clear(),
            ReplyFault::Cut => {
                bytes.truncate(fastrand::usize(..bytes.len()));
            }
            ReplyFault::Flip if is_selected => {
                let at = fastrand::usize(..bytes.len());
                bytes[at] ^= 1 << fastrand::u8(..8);
            }
            ReplyFault::Insert(bytes_before) if is_selected => {
                drop(bytes.splice(..0, bytes_before.iter().copied()))
            }
            ReplyFault::Shorten if is_selected => {
                bytes.truncate(bytes.len() - fastrand::usize(1..=bytes.len().min(3)))
            }
            ReplyFault::Flip | ReplyFault::Insert(_) | ReplyFault::Shorten => {}
        }
        if bytes != buffer[..read] || matches!(fault, ReplyFault::Delay(_)) {
            corrupted.fetch_add(1, Ordering::Relaxed);
        }
        if to.write_all(&bytes).await.is_err() || fault == ReplyFault::Cut {
            return;
        }
    }
}

//! The stream to one peer: dialled, and dialled again.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout};
use tracing::debug;

use super::pipe::{self, Broken, Frames};
use super::queue::{self, Outgoing};
use super::{News, Peer, Shared};
use crate::seal::{FrameSealer, Refusal, Session};
use crate::transport::counters::Counters;

/// Frames are written together until they are so many bytes.
const WRITE: usize = 64 * 1024;

/// Keeps a stream to one peer.
pub(super) struct Dialler {
    pub(super) shared: Arc<Shared>,
    pub(super) peer: Peer,
    pub(super) link: u64,
    pub(super) counters: Arc<Counters>,
    pub(super) tell: mpsc::Sender<News>,
}

impl Dialler {
    /// Until it is aborted.
    pub(super) async fn run(self) {
        let mut wait = self.shared.timing.first_wait;
        loop {
            let up = self.keep_up().await;
            wait = if up { self.shared.timing.first_wait } else { wait };
            // A part at random, so that nodes that lost each other at once do not all dial at once.
            sleep(wait.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            wait = (wait * 2).min(self.shared.timing.longest_wait);
        }
    }

    /// Dials once, and carries frames for as long as the link is up. Says whether it was.
    async fn keep_up(&self) -> bool {
        let (stream, session) = match self.dial().await {
            Ok(dialled) => dialled,
            Err(broken) => {
                self.note(&broken);
                return false;
            }
        };
        let (queue, queued) = queue::queue();
        let (to, link) = (self.peer.incarnation, self.link);
        // It can only fail if the transport is gone, and this task with it.
        let _ = self.tell.send(News::Up { to, link, queue }).await;
        if let Err(broken) = self.carry(stream, session, queued).await {
            self.note(&broken);
        }
        let _ = self.tell.send(News::Down { to, link }).await;
        true
    }

    async fn dial(&self) -> Result<(TcpStream, Session), Broken> {
        let connected = timeout(self.shared.timing.connect, self.connect()).await;
        let mut stream = connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        stream.set_nodelay(true)?;
        let session = pipe::dial(&mut stream, &self.shared).await?;
        if session.peer.incarnation != self.peer.incarnation {
            return Err(Refusal::WrongNode.into());
        }
        Ok((stream, session))
    }

    async fn connect(&self) -> io::Result<TcpStream> {
        let address = self.peer.address;
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        if let Some(ip) = self.shared.dial_from.filter(|ip| ip.is_ipv4() == address.is_ipv4()) {
            socket.bind((ip, 0).into())?;
        }
        socket.connect(address).await
    }

    /// Writes what is queued, and a sign of life every now and then; hears those of the other side.
    async fn carry(
        &self,
        stream: TcpStream,
        session: Session,
        mut queued: Outgoing,
    ) -> Result<(), Broken> {
        let (read, mut write) = stream.into_split();
        let Session { mut sealer, opener, .. } = session;
        let mut signs = Frames::new(read, opener);
        let timing = self.shared.timing;
        let mut alive = interval(timing.alive);
        alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut heard = Instant::now();
        let mut sealed = Vec::new();
        loop {
            sealed.clear();
            tokio::select! {
                // What has been heard comes before the silence: a write may have taken long.
                biased;
                waited = signs.wait(&self.counters) => {
                    waited?;
                    heard = Instant::now();
                    // Whoever answers has nothing else to say.
                    if signs.arrived(&self.counters)?.is_some() {
                        return Err(Refusal::Malformed.into());
                    }
                    continue;
                }
                () = sleep_until(heard + timing.silence) => return Err(Broken::Silent),
                Some(frame) = queued.next() => self.seal(&mut sealer, frame, &mut queued, &mut sealed)?,
                _ = alive.tick() => sealer.seal(&[], &mut sealed)?,
            }
            pipe::write(&mut write, &sealed, &self.shared, &self.counters).await?;
        }
    }

    /// Seals a frame, and those that wait behind it, up to what is written at once.
    fn seal(
        &self,
        sealer: &mut FrameSealer,
        first: Bytes,
        queued: &mut Outgoing,
        sealed: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        let mut next = Some(first);
        while let Some(frame) = next {
            sealer.seal(&frame, sealed)?;
            self.counters.sent_frames.add(1);
            next = if sealed.len() < WRITE { queued.next_now() } else { None };
        }
        Ok(())
    }

    fn note(&self, broken: &Broken) {
        if let Broken::Refused(refusal) = broken {
            self.shared.refusals.count(*refusal);
        }
        debug!(peer = self.peer.incarnation.0, address = %self.peer.address, %broken, "no link to a node");
    }
}

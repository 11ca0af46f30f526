//! Streams from peers, and strangers who are none.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};
use tracing::{debug, warn};

use super::pipe::{self, Broken, Frames};
use super::{MAX_STRANGERS, MAX_STREAMS, News, Shared};
use crate::counts::Incarnation;
use crate::seal::{Refusal, Session};

/// After an error of the listener (most often too many open files), so long nothing is accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections until it is aborted, and all of them with it.
pub(super) async fn accept(listener: TcpListener, shared: Arc<Shared>, tell: mpsc::Sender<News>) {
    let mut door = Door {
        shared,
        tell,
        strangers: JoinSet::new(),
        waiting: VecDeque::new(),
        streams: Streams::default(),
    };
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => door.meet(stream),
                Err(error) => {
                    warn!(%error, "connections of other nodes cannot be accepted");
                    sleep(PAUSE).await;
                }
            },
            Some(met) = door.strangers.join_next() => {
                if let Ok(Some((stream, session))) = met {
                    door.let_in(stream, session);
                }
            },
            Some(ended) = door.streams.tasks.join_next_with_id() => door.streams.forget(&ended),
        }
    }
}

struct Door {
    shared: Arc<Shared>,
    tell: mpsc::Sender<News>,
    strangers: JoinSet<Option<(TcpStream, Session)>>,
    /// Who came first is first.
    waiting: VecDeque<AbortHandle>,
    streams: Streams,
}

impl Door {
    /// Somebody new. If too many are, the one who has been for the longest goes: nodes are quick.
    fn meet(&mut self, mut stream: TcpStream) {
        self.waiting.retain(|stranger| !stranger.is_finished());
        if self.waiting.len() >= MAX_STRANGERS
            && let Some(oldest) = self.waiting.pop_front()
        {
            oldest.abort();
            self.shared.refusals.count(Refusal::Crowded);
        }
        let shared = Arc::clone(&self.shared);
        let stranger = self.strangers.spawn(async move {
            let shaken = pipe::answer(&mut stream, &shared).await;
            shaken.inspect_err(|broken| note(&shared, broken)).ok().map(|session| (stream, session))
        });
        self.waiting.push_back(stranger);
    }

    /// A stranger has become a peer. An older stream of the same incarnation is one that it has given up.
    fn let_in(&mut self, stream: TcpStream, session: Session) {
        let peer = session.peer.incarnation;
        self.streams.close(peer);
        if self.streams.of.len() >= MAX_STREAMS {
            return self.shared.refusals.count(Refusal::Crowded);
        }
        debug!(peer = peer.0, name = session.peer.name, "a node has dialled");
        let (shared, tell) = (Arc::clone(&self.shared), self.tell.clone());
        let hearing = async move {
            if let Err(broken) = hear(stream, session, &shared, &tell).await {
                note(&shared, &broken);
            }
        };
        let task = self.streams.tasks.spawn(hearing);
        self.streams.of.insert(peer, task);
    }
}

/// The streams that peers have dialled.
#[derive(Default)]
struct Streams {
    tasks: JoinSet<()>,
    of: HashMap<Incarnation, AbortHandle>,
}

impl Streams {
    fn close(&mut self, peer: Incarnation) {
        if let Some(task) = self.of.remove(&peer) {
            task.abort();
        }
    }

    fn forget(&mut self, ended: &Result<(Id, ()), JoinError>) {
        let id = match ended {
            Ok((id, ())) => *id,
            Err(error) => error.id(),
        };
        self.of.retain(|_, task| task.id() != id);
    }
}

/// Takes in the frames of a peer, and gives signs of life.
async fn hear(
    stream: TcpStream,
    session: Session,
    shared: &Shared,
    tell: &mpsc::Sender<News>,
) -> Result<(), Broken> {
    stream.set_nodelay(true)?;
    let (read, mut write) = stream.into_split();
    let Session { peer, mut sealer, opener } = session;
    let from = peer.incarnation;
    let counters = shared.counters.of(from);
    let mut frames = Frames::new(read, opener);
    let mut alive = interval(shared.timing.alive);
    alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut heard = Instant::now();
    loop {
        while let Some(frame) = frames.arrived(&counters)? {
            // It can only fail if the transport is gone, and this task with it.
            let _ = tell.send(News::Frame { from, frame }).await;
            heard = Instant::now();
        }
        tokio::select! {
            biased;
            _ = alive.tick() => {
                let mut sign = Vec::new();
                sealer.seal(&[], &mut sign)?;
                pipe::write(&mut write, &sign, shared, &counters).await?;
            }
            waited = frames.wait(&counters) => {
                waited?;
                heard = Instant::now();
            }
            () = sleep_until(heard + shared.timing.silence) => return Err(Broken::Silent),
        }
    }
}

fn note(shared: &Shared, broken: &Broken) {
    if let Broken::Refused(refusal) = broken {
        shared.refusals.count(*refusal);
    }
    debug!(%broken, "a connection has ended");
}

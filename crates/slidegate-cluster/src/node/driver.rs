//! What runs a node: hands the engine what comes in, and sends what it says.

use std::sync::Arc;
use std::time::Duration;

use slidegate::{Clock, DriftCorrectedClock, Timestamp};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tracing::{info, warn};

use super::status::{Latest, Sources};
use crate::counters::Counters;
use crate::membership::{Membership, Roll};
use crate::progress::Progress;
use crate::seal::Refusals;
use crate::store::Sync;
use crate::sync::{Addressed, Engine, Node};
use crate::transport::{Event, Peer, Transport};

/// Between two flushes at once: what others want meanwhile goes along with the next.
const BETWEEN_FLUSHES: Duration = Duration::from_millis(1);

/// How often the status is made anew, and rates with it.
const BETWEEN_STATUSES: Duration = Duration::from_millis(500);

/// Who wants the node to leave is told when it has.
pub(super) type Leave = oneshot::Sender<()>;

/// Runs a node until it leaves.
pub(super) struct Driver<T> {
    pub(super) engine: Engine,
    pub(super) counters: Arc<Counters>,
    pub(super) clock: Arc<DriftCorrectedClock>,
    pub(super) transport: T,
    pub(super) membership: Membership,
    pub(super) sync: Sync,
    pub(super) interval: Duration,
    pub(super) refusals: Arc<Refusals>,
    pub(super) status: Arc<Latest>,
}

impl<T: Transport> Driver<T> {
    pub(super) async fn run(mut self, mut leaves: mpsc::Receiver<Leave>) {
        let mut roll = self.membership.roll();
        let mut ticks = every(self.interval);
        let mut statuses = every(BETWEEN_STATUSES);
        let mut flush_at = None;
        let mut flushed_at = Instant::now();
        let mut progress = self.counters.progress().load_full();
        self.members(&roll.borrow_and_update().clone());
        loop {
            let frames = tokio::select! {
                _ = ticks.tick() => self.tick(),
                () = self.sync.wanted(), if flush_at.is_none() => {
                    flush_at = Some((flushed_at + BETWEEN_FLUSHES).max(Instant::now()));
                    Vec::new()
                }
                () = until(flush_at), if flush_at.is_some() => {
                    (flush_at, flushed_at) = (None, Instant::now());
                    self.engine.flush(&*self.counters, self.clock.now())
                }
                event = self.transport.next() => self.hear(event),
                true = has_changed(&mut roll) => self.members(&roll.borrow_and_update().clone()),
                _ = statuses.tick() => {
                    self.tell_status();
                    Vec::new()
                }
                leave = leaves.recv() => return self.leave(leave).await,
            };
            self.send(frames);
            self.note_progress(&mut progress);
        }
    }

    fn tick(&mut self) -> Vec<Addressed> {
        self.clock.sync_with_wall_clock();
        let now = self.clock.now();
        self.counters.forget(now);
        self.engine.tick(&*self.counters, now)
    }

    fn hear(&mut self, event: Event) -> Vec<Addressed> {
        let now = self.clock.now();
        match event {
            Event::Frame { from, frame } => self.engine.heard(&*self.counters, from, &frame, now),
            Event::Up(peer) => self.engine.link_up(&*self.counters, peer, now),
            // What gets lost is told again once a link is up.
            Event::Down(_) => Vec::new(),
        }
    }

    fn members(&mut self, roll: &Roll) -> Vec<Addressed> {
        let peer = |member: &crate::membership::Member| Peer {
            incarnation: member.incarnation,
            address: member.address,
        };
        let node = |member: &crate::membership::Member| Node {
            incarnation: member.incarnation,
            name: member.name.clone(),
            address: Some(member.address),
        };
        self.transport.set_peers(&roll.live.iter().map(peer).collect::<Vec<_>>());
        let alive: Vec<Node> = roll.live.iter().map(node).collect();
        let left: Vec<_> = roll.left.iter().map(|member| member.incarnation).collect();
        let names: Vec<&str> = alive.iter().map(|node| &*node.name).collect();
        info!(others = ?names, "the cluster has changed");
        self.engine.members(&*self.counters, &alive, &left, self.clock.now())
    }

    fn send(&mut self, frames: Vec<Addressed>) {
        for (to, frame) in frames {
            self.transport.send(to, frame.into());
        }
    }

    /// Lets requests try again that wait for others.
    fn note_progress(&self, before: &mut Arc<Progress>) {
        let progress = self.counters.progress().load_full();
        if !Arc::ptr_eq(before, &progress) {
            if progress.has_silent() && !before.has_silent() {
                warn!(
                    "a node of the cluster is silent: what may be charged without its word is bounded"
                );
            }
            *before = progress;
            self.sync.progressed();
        }
    }

    pub(super) fn tell_status(&mut self) {
        let now: Timestamp = self.clock.now();
        self.status.make(&Sources {
            engine: &self.engine.status(now),
            links: self.transport.traffic(),
            gossip: self.membership.traffic(),
            refusals: &self.refusals,
            now,
        });
    }

    async fn leave(mut self, done: Option<Leave>) {
        let frames = self.engine.leave(&*self.counters, self.clock.now());
        self.send(frames);
        // Its streams are open for as long as that takes.
        self.membership.leave().await;
        if let Some(done) = done {
            // Who asked may not wait any more.
            let _ = done.send(());
        }
    }
}

fn every(span: Duration) -> tokio::time::Interval {
    let mut ticks = interval(span);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

async fn until(moment: Option<Instant>) {
    if let Some(moment) = moment {
        sleep_until(moment).await;
    }
}

/// Whether there is another roll; false if there will be none.
async fn has_changed(roll: &mut watch::Receiver<Roll>) -> bool {
    roll.changed().await.is_ok()
}

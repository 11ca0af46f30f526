//! Event loop of a node: passes events to the replication engine, and sends the frames that the engine returns.

use std::sync::Arc;
use std::time::Duration;

use slidegate::{Clock, DriftCorrectedClock, Timestamp};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tracing::{info, warn};

use super::status::{ClusterStatusInputs, LatestClusterStatus};
use crate::counters::Counters;
use crate::membership::{Membership, MembershipView};
use crate::progress::Progress;
use crate::replication::{NodeInfo, OutboundFrame, ReplicationEngine};
use crate::seal::RejectCounters;
use crate::store::ReplicationHandle;
use crate::transport::{PeerAddress, Transport, TransportEvent};

/// Minimum interval between two immediate flushes. All flush requests that arrive during the interval are combined into
/// the next flush.
const MIN_IMMEDIATE_FLUSH_INTERVAL: Duration = Duration::from_millis(1);

/// Minimum interval between an early flush and the flush before it.
const MIN_EARLY_FLUSH_INTERVAL: Duration = Duration::from_millis(10);

/// Interval at which the status and its rates are updated.
const STATUS_UPDATE_INTERVAL: Duration = Duration::from_millis(500);

/// A request that this node leaves the cluster. The driver sends a notification on this channel after the node has
/// left.
pub(super) type LeaveRequest = oneshot::Sender<()>;

/// The event loop of a node, and the parts that it drives.
pub(super) struct NodeDriver<T> {
    pub(super) engine: ReplicationEngine,
    pub(super) counters: Arc<Counters>,
    pub(super) clock: Arc<DriftCorrectedClock>,
    pub(super) transport: T,
    pub(super) membership: Membership,
    pub(super) replication: ReplicationHandle,
    pub(super) interval: Duration,
    pub(super) reject_counters: Arc<RejectCounters>,
    pub(super) status: Arc<LatestClusterStatus>,
}

impl<T: Transport> NodeDriver<T> {
    pub(super) async fn run_event_loop(mut self, mut leave_requests: mpsc::Receiver<LeaveRequest>) {
        let mut view = self.membership.view();
        let mut ticks = new_interval_timer(self.interval);
        let mut statuses = new_interval_timer(STATUS_UPDATE_INTERVAL);
        let mut flush_at: Option<Instant> = None;
        let mut flushed_at = Instant::now();
        let mut progress = self.counters.progress().load_full();
        self.on_membership_changed(&view.borrow_and_update().clone());
        loop {
            let frames = tokio::select! {
                _ = ticks.tick() => self.prune_counters_and_tick_engine(),
                () = self.replication.wait_for_flush_request(),
                    if flush_at.is_none_or(|at| at > flushed_at + MIN_IMMEDIATE_FLUSH_INTERVAL) =>
                {
                    flush_at = Some(flushed_at + MIN_IMMEDIATE_FLUSH_INTERVAL);
                    Vec::new()
                }
                () = self.replication.wait_for_early_flush_request(), if flush_at.is_none() => {
                    flush_at = Some(flushed_at + MIN_EARLY_FLUSH_INTERVAL);
                    Vec::new()
                }
                () = sleep_until_deadline(flush_at), if flush_at.is_some() => {
                    (flush_at, flushed_at) = (None, Instant::now());
                    self.engine.flush(&*self.counters, self.clock.now())
                }
                event = self.transport.next() => self.on_transport_event(event),
                true = wait_for_view_change(&mut view) => self.on_membership_changed(&view.borrow_and_update().clone()),
                _ = statuses.tick() => {
                    self.update_status();
                    Vec::new()
                }
                leave = leave_requests.recv() => return self.leave(leave).await,
            };
            self.send_frames(frames);
            self.notify_requests_of_progress(&mut progress);
        }
    }

    fn prune_counters_and_tick_engine(&mut self) -> Vec<OutboundFrame> {
        self.clock.sync_with_wall_clock();
        let now = self.clock.now();
        self.counters.prune(now);
        self.engine.tick(&*self.counters, now)
    }

    fn on_transport_event(&mut self, event: TransportEvent) -> Vec<OutboundFrame> {
        let now = self.clock.now();
        match event {
            TransportEvent::Frame { from, frame } => {
                self.engine.on_frame_received(&*self.counters, from, &frame, now)
            }
            TransportEvent::LinkUp(peer) => self.engine.on_link_up(&*self.counters, peer, now),
            // Lost frames are repeated once the link is up again.
            TransportEvent::LinkDown(_) => Vec::new(),
        }
    }

    fn on_membership_changed(&mut self, view: &MembershipView) -> Vec<OutboundFrame> {
        let peer = |member: &crate::membership::Member| PeerAddress {
            incarnation: member.incarnation,
            address: member.address,
        };
        let node = |member: &crate::membership::Member| NodeInfo {
            incarnation: member.incarnation,
            name: member.name.clone(),
            address: Some(member.address),
        };
        self.transport.set_peers(&view.live.iter().map(peer).collect::<Vec<_>>());
        let alive: Vec<NodeInfo> = view.live.iter().map(node).collect();
        let left: Vec<_> = view.left.iter().map(|member| member.incarnation).collect();
        let names: Vec<&str> = alive.iter().map(|node| &*node.name).collect();
        info!(others = ?names, "cluster membership changed");
        self.engine.on_membership_changed(&*self.counters, &alive, &left, self.clock.now())
    }

    fn send_frames(&mut self, frames: Vec<OutboundFrame>) {
        for (to, frame) in frames {
            self.transport.send(to, frame.into());
        }
    }

    /// Notifies requests that wait for acknowledgements, if the replication progress has changed since the previous
    /// call. Logs a warning when a member becomes silent.
    fn notify_requests_of_progress(&self, previous: &mut Arc<Progress>) {
        let progress = self.counters.progress().load_full();
        if !Arc::ptr_eq(previous, &progress) {
            if progress.has_silent() && !previous.has_silent() {
                warn!(
                    "a cluster node does not respond; rules with on_partition: bounded may deny more requests until it returns"
                );
            }
            *previous = progress;
            self.replication.notify_progress();
        }
    }

    pub(super) fn update_status(&mut self) {
        let now: Timestamp = self.clock.now();
        self.status.update(&ClusterStatusInputs {
            engine: &self.engine.status(now),
            links: self.transport.traffic(),
            gossip: self.membership.traffic(),
            reject_counters: &self.reject_counters,
            now,
        });
    }

    async fn leave(mut self, done: Option<LeaveRequest>) {
        let frames = self.engine.leave(&*self.counters, self.clock.now());
        self.send_frames(frames);
        // The TCP streams remain open during this wait.
        self.membership.leave().await;
        if let Some(done) = done {
            // The caller may have stopped waiting.
            let _ = done.send(());
        }
    }
}

fn new_interval_timer(span: Duration) -> tokio::time::Interval {
    let mut ticks = interval(span);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

async fn sleep_until_deadline(deadline: Option<Instant>) {
    if let Some(deadline) = deadline {
        sleep_until(deadline).await;
    }
}

/// Waits for the next membership view. Returns `false` if the view no longer changes because the gossip task has ended.
async fn wait_for_view_change(view: &mut watch::Receiver<MembershipView>) -> bool {
    view.changed().await.is_ok()
}

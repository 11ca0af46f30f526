//! Event loop of a node: passes events to the replication engine, and sends the frames that the engine returns.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use slidegate::Timestamp;
use slidegate::clock::{Clock, DriftCorrectedClock};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};
use tracing::{info, warn};

use super::status::{ClusterStatusInputs, LatestClusterStatus};
use crate::counters::Counters;
use crate::membership::{HEARTBEAT_INTERVAL, Membership, MembershipView, SeedAddresses};
use crate::message::{self, MemberEntry, Message, members_frame};
use crate::pn_counter::Incarnation;
use crate::progress::Progress;
use crate::replication::{OutboundFrame, ReplicationEngine};
use crate::store::ReplicationHandle;
use crate::transport::{RejectCounters, Transport, TransportEvent};

/// Minimum interval between two immediate flushes. All flush requests that arrive during the interval are combined into
/// the next flush.
const MIN_IMMEDIATE_FLUSH_INTERVAL: Duration = Duration::from_millis(1);

/// Minimum interval between an early flush and the flush before it. An early flush sends charges of a nearly used limit
/// before the end of the replication interval.
const MIN_EARLY_FLUSH_INTERVAL: Duration = Duration::from_millis(10);

/// Interval at which the status and its rates are updated.
const STATUS_UPDATE_INTERVAL: Duration = Duration::from_millis(500);

/// Time for which the connections of a leaving node stay open, so that its last frames are sent.
const TIME_TO_SEND_LAST_FRAMES: Duration = Duration::from_millis(500);

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
    /// The last view of the members that was passed to the engine.
    pub(super) view: MembershipView,
    pub(super) own_address: SocketAddr,
    pub(super) seeds: SeedAddresses,
    pub(super) replication: ReplicationHandle,
    pub(super) interval: Duration,
    pub(super) reject_counters: Arc<RejectCounters>,
    pub(super) status: Arc<LatestClusterStatus>,
}

impl<T: Transport> NodeDriver<T> {
    pub(super) async fn run_event_loop(mut self, mut leave_requests: mpsc::Receiver<LeaveRequest>) {
        let mut ticks = new_interval_timer(self.interval);
        let mut heartbeats = new_interval_timer(HEARTBEAT_INTERVAL);
        let mut statuses = new_interval_timer(STATUS_UPDATE_INTERVAL);
        let mut flush_at: Option<Instant> = None;
        let mut flushed_at = Instant::now();
        let mut progress = self.counters.progress().load_full();
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
                _ = heartbeats.tick() => {
                    let list = self.membership.next_member_list(Instant::now());
                    self.send_member_list_to_all(&list);
                    self.update_view()
                }
                addresses = self.seeds.next() => {
                    self.introduce_at_unknown_addresses(&addresses);
                    Vec::new()
                }
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
        match event {
            TransportEvent::Frame { from, frame } => self.on_frame(from, frame),
            TransportEvent::LinkUp(peer) => {
                let list = self.membership.list(Instant::now());
                self.transport.send(peer, members_frame(&list, self.clock.now()));
                self.engine.on_link_up(&*self.counters, peer, self.clock.now())
            }
            // Lost frames are repeated once the link is up again.
            TransportEvent::LinkDown(_) => Vec::new(),
            TransportEvent::NodeIntroduced(node) => {
                self.membership.on_node_introduced(node, Instant::now());
                self.update_view()
            }
        }
    }

    fn on_frame(&mut self, from: Incarnation, frame: Bytes) -> Vec<OutboundFrame> {
        let (bytes, now) = (frame.len(), self.clock.now());
        let Ok(received) = message::decode(frame) else {
            self.engine.on_invalid_frame(from);
            return Vec::new();
        };
        if let Some(Message::Members(entries)) = &received.message {
            self.membership.on_member_list(from, entries, received.sent_at, now, Instant::now());
            return self.update_view();
        }
        self.engine.on_message(&*self.counters, from, received, bytes, now)
    }

    /// Sends the list of members to all nodes that are connected.
    fn send_member_list_to_all(&mut self, list: &[MemberEntry]) {
        let frame = members_frame(list, self.clock.now());
        for peer in self.membership.peers() {
            self.transport.send(peer.incarnation, frame.clone());
        }
    }

    /// Passes changes of the membership to the transport and the engine.
    fn update_view(&mut self) -> Vec<OutboundFrame> {
        self.transport.set_peers(&self.membership.peers());
        let view = self.membership.view(Instant::now());
        if view == self.view {
            return Vec::new();
        }
        let names =
            |view: &MembershipView| view.live.iter().map(|node| node.name.clone()).collect();
        let (names, previous): (Vec<_>, Vec<_>) = (names(&view), names(&self.view));
        if names != previous {
            info!(others = ?names, "cluster membership changed");
        }
        self.seeds.set_has_no_peers(view.live.is_empty());
        self.view = view;
        self.engine.on_membership_changed(&*self.counters, &self.view, self.clock.now())
    }

    /// Introduces this node at addresses at which no live node is known.
    fn introduce_at_unknown_addresses(&mut self, addresses: &[SocketAddr]) {
        for address in addresses {
            let is_known = self.view.live.iter().any(|node| node.address == Some(*address));
            if !is_known && *address != self.own_address {
                self.transport.introduce_local_node(*address);
            }
        }
    }

    fn send_frames(&mut self, frames: Vec<OutboundFrame>) {
        for (to, frame) in frames {
            self.transport.send(to, frame);
        }
    }

    /// Notifies requests that wait for acknowledgements, if the replication progress has changed since the previous
    /// call. Logs a warning when a member becomes silent, and when this node has found no cluster to join.
    fn notify_requests_of_progress(&self, previous: &mut Arc<Progress>) {
        let progress = self.counters.progress().load_full();
        if !Arc::ptr_eq(previous, &progress) {
            if progress.has_silent_member() && !previous.has_silent_member() {
                warn!(
                    "a cluster node does not respond; rules with on_partition: bounded may deny more requests until it returns"
                );
            }
            if previous.is_joining && progress.has_no_peers() {
                warn!(
                    "no other cluster node has responded; this node counts alone until it finds one; check --cluster-seeds, and that the port is open between the nodes"
                );
            }
            *previous = progress;
            self.replication.notify_flush_acknowledged();
        }
    }

    pub(super) fn update_status(&mut self) {
        let now: Timestamp = self.clock.now();
        self.status.update(&ClusterStatusInputs {
            engine: &self.engine.status(now),
            links: self.transport.traffic(),
            membership: &self.membership,
            skewed: &self.view.skewed,
            reject_counters: &self.reject_counters,
            now,
            instant: Instant::now(),
        });
    }

    async fn leave(mut self, done: Option<LeaveRequest>) {
        let frames = self.engine.flush(&*self.counters, self.clock.now());
        self.send_frames(frames);
        self.membership.leave();
        let list = self.membership.next_member_list(Instant::now());
        self.send_member_list_to_all(&list);
        sleep(TIME_TO_SEND_LAST_FRAMES).await;
        if let Some(done) = done {
            // Sending fails if the caller has stopped waiting, which is no error.
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

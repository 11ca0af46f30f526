//! Events of a simulation, ordered by time.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use bytes::Bytes;
use slidegate::store::Receipt;
use slidegate_cluster::pn_counter::Incarnation;

/// An event of a simulation. Hosts and keys are indices. An event for an incarnation that is no longer running has no
/// effect.
pub enum Event {
    /// A replication frame arrives.
    Frame { from: Incarnation, to: Incarnation, frame: Bytes },
    /// The replication interval of a node has passed.
    Tick(usize, Incarnation),
    /// The heartbeat interval of a node has passed.
    Heartbeat(usize, Incarnation),
    /// A host receives a request with a random key and cost.
    Request(usize),
    /// A request that has waited for acknowledgements is decided finally.
    Retry { host: usize, incarnation: Incarnation, key: usize, cost: u64 },
    /// An allowed charge is reverted: the charge with index `nth` among the charges of the key.
    Revert { host: usize, incarnation: Incarnation, key: usize, nth: usize, receipt: Receipt },
    /// A random key is reset or refunded on several nodes.
    RemoveUnits,
    /// A random clock is set.
    SetClock,
    /// The network conditions change.
    ChangeNetwork,
    /// A random node stops.
    StopNode,
    /// A node starts on a host.
    StartNode(usize),
}

/// An event in the queue, ordered by time. Events with the same time keep the order in which they were added.
struct ScheduledEvent {
    scheduled_us: u64,
    sequence: u64,
    event: Event,
}

impl ScheduledEvent {
    /// Returns the sort key, which is unique.
    fn sort_key(&self) -> (u64, u64) {
        (self.scheduled_us, self.sequence)
    }
}

impl PartialEq for ScheduledEvent {
    fn eq(&self, other: &Self) -> bool {
        self.sort_key() == other.sort_key()
    }
}

impl Eq for ScheduledEvent {}

impl PartialOrd for ScheduledEvent {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ScheduledEvent {
    fn cmp(&self, other: &Self) -> Ordering {
        self.sort_key().cmp(&other.sort_key())
    }
}

/// The events that have not happened yet.
#[derive(Default)]
pub struct EventQueue {
    heap: BinaryHeap<Reverse<ScheduledEvent>>,
    last_sequence: u64,
}

impl EventQueue {
    /// Adds an event.
    pub fn add(&mut self, scheduled_us: u64, event: Event) {
        self.last_sequence += 1;
        let sequence = self.last_sequence;
        self.heap.push(Reverse(ScheduledEvent { scheduled_us, sequence, event }));
    }

    /// Removes the next event and returns it with its time. Returns `None` if no event is scheduled up to `until_us`.
    pub fn next(&mut self, until_us: u64) -> Option<(u64, Event)> {
        if self.heap.peek()?.0.scheduled_us > until_us {
            return None;
        }
        self.heap.pop().map(|Reverse(next)| (next.scheduled_us, next.event))
    }
}

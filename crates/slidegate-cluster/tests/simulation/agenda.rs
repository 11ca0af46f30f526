//! What happens when.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use slidegate::Receipt;
use slidegate_cluster::pn_counter::Incarnation;

use crate::detector::Rumours;

/// Something that happens.
pub enum Event {
    Frame { from: Incarnation, to: Incarnation, frame: Vec<u8> },
    Gossip { to: usize, rumours: Rumours },
    Tick(usize, Incarnation),
    Beat(usize, Incarnation),
    Ask(usize),
    AskAgain { site: usize, life: Incarnation, key: usize, cost: u64 },
    Revert { site: usize, life: Incarnation, key: usize, nth: usize, receipt: Receipt },
    TakeOff,
    Weather,
    Death,
    Birth(usize),
}

/// An event in its place: by time, and of one time by the order in which they came to be.
struct Due(u64, u64, Event);

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

/// What is still to happen.
#[derive(Default)]
pub struct Agenda {
    due: BinaryHeap<Reverse<Due>>,
    order: u64,
}

impl Agenda {
    pub fn add(&mut self, at_us: u64, event: Event) {
        self.order += 1;
        self.due.push(Reverse(Due(at_us, self.order, event)));
    }

    /// The next event, and when it happens, if that is not after `until_us`.
    pub fn next(&mut self, until_us: u64) -> Option<(u64, Event)> {
        if self.due.peek()?.0.0 > until_us {
            return None;
        }
        self.due.pop().map(|Reverse(Due(at_us, _, event))| (at_us, event))
    }
}

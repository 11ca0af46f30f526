//! The queues of waiting calls, one for each counter for which calls wait.
//!
//! Each waiting call has a ticket, and calls with smaller tickets come first. A call is in the queues of the counters
//! that denied it, and of the counters for which an earlier call waits; each queue is sorted by ticket. The call with
//! the smallest ticket is the first in all of its queues, so calls never wait for each other in a circle. A call that
//! becomes the first of a queue is woken.
//!
//! A queue is identified by the identifier that the store uses for the counter in receipts. So if charges of a receipt
//! are reverted, the first call of each queue concerned is woken. If it is admitted, it leaves its queues, which wakes
//! the next.
//!
//! Queues exist only while calls wait in them. The number of waiting calls and their bytes are bounded, and a call has
//! at most one place for each of its limits.

use std::borrow::Borrow;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use foldhash::quality::RandomState;

use super::counters::WaitCounters;
use super::options::{WaitOptions, WaitStats};
use crate::hit::Hit;
use crate::store::{Charge, CounterId, Store};
use crate::sync::{AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering};

/// The bytes that a waiting call takes in the table of waiting calls, with its share of free slots: the table is at
/// least 7/16 full after it has grown.
const BYTES_PER_WAITER: usize = 256;

/// The bytes that a place in a queue takes, with its share of the table of queues and its free slots: the table is at
/// least 7/16 full after it has grown.
const BYTES_PER_QUEUE_PLACE: usize = 160;

/// The reason for which a call stopped waiting, for statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitEndReason {
    Admitted,
    TimedOut,
    Cancelled,
    /// The call was denied before it paused, so it is not counted as a wait.
    NeverWaited,
}

/// The error of a call that cannot wait because too many calls are waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueFull;

/// Whether a call may be decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueTurn {
    /// No earlier call waits for a counter of the call.
    Now,
    /// An earlier call waits for a counter of the call. Contains the latest time at which the first call of one of
    /// these queues wakes, if it is known.
    Later(Option<Instant>),
}

/// The queues of one gate or limiter.
pub(crate) struct WaitQueues {
    options: WaitOptions,
    /// The secret with which counters are hashed, so that clients cannot choose keys that share a queue.
    secret: RandomState,
    /// Number of waiting calls. While it is 0, a call is decided without a lock on the queues.
    waiting: AtomicUsize,
    /// Number of calls that wait, or that are being decided and may wait afterwards. While it is 0, free units wake no
    /// call.
    callers: AtomicUsize,
    /// Number of times that units became free while there were callers. A call compares it before it first sleeps, so
    /// that it does not miss units that became free while it was decided.
    free_events: AtomicU64,
    queues: Mutex<Queues>,
    admitted: AtomicU64,
    timed_out: AtomicU64,
    cancelled: AtomicU64,
    queue_full: AtomicU64,
}

type Ticket = u64;

#[derive(Default)]
struct Queues {
    next_ticket: Ticket,
    waiters: HashMap<Ticket, Waiter>,
    /// The tickets of the calls that wait for a counter, in ascending order. Empty queues are removed.
    by_counter: HashMap<u64, VecDeque<Ticket>>,
    /// The bytes that the waiting calls take. A call can wait only if they stay within
    /// [`WaitOptions::max_waiting_bytes`].
    bytes: usize,
}

/// A waiting call.
#[derive(Default)]
struct Waiter {
    /// The counters in whose queues the call waits.
    counters: WaitCounters,
    waker: Option<Waker>,
    /// Whether the call was woken and has not noticed it yet.
    is_woken: bool,
    /// The time at which the call fits as far as is known; `None` while it decides, waits for an earlier call, or waits
    /// for the end of another request.
    wakes_at: Option<Instant>,
}

/// The place of a call in the queues. The call leaves the queues when this value is dropped.
pub(crate) struct QueuePlace<'q> {
    queues: &'q WaitQueues,
    ticket: Option<Ticket>,
    /// The bytes of the request, which the call keeps while it waits.
    request_bytes: usize,
    /// The value of [`WaitQueues::free_events`] before the call was first decided. If it has changed, the call is
    /// decided again.
    free_events_before: u64,
}

impl WaitQueues {
    pub(crate) fn new(options: WaitOptions) -> Self {
        Self {
            options,
            secret: RandomState::default(),
            waiting: AtomicUsize::new(0),
            callers: AtomicUsize::new(0),
            free_events: AtomicU64::new(0),
            queues: Mutex::new(Queues::default()),
            admitted: AtomicU64::new(0),
            timed_out: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
            queue_full: AtomicU64::new(0),
        }
    }

    pub(crate) fn options(&self) -> WaitOptions {
        self.options
    }

    /// Returns the identifier of the counter of a hit, under which calls wait for the counter.
    pub(super) fn queue_id_for_hit(&self, store: &impl Store, hit: &Hit<'_>) -> u64 {
        match store.counter_id(hit) {
            Some(id) => self.queue_id_for_counter_id(&id),
            None => hit.key.fingerprint(&self.secret, hit.limit.shape()),
        }
    }

    pub(crate) fn queue_id_for_counter_id(&self, id: &CounterId) -> u64 {
        match id {
            CounterId::Fingerprint(fingerprint) => *fingerprint,
            CounterId::Text(text) => self.secret.hash_one(text),
        }
    }

    pub(crate) fn stats(&self) -> WaitStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        WaitStats {
            waiting: self.waiting.load(Ordering::Relaxed),
            waiting_bytes: self.queues.lock().bytes,
            admitted: load(&self.admitted),
            timed_out: load(&self.timed_out),
            cancelled: load(&self.cancelled),
            queue_full: load(&self.queue_full),
        }
    }

    /// Wakes the first call of the queue of each hit's counter, because units of the counter have become free.
    pub(crate) fn wake_for_hits<'h>(
        &self,
        store: &impl Store,
        hits: impl IntoIterator<Item = Hit<'h>>,
    ) {
        self.wake_first(hits.into_iter().map(|hit| self.queue_id_for_hit(store, &hit)));
    }

    /// Wakes the first call of the queue of each charge's counter, because these charges have been reverted.
    pub(crate) fn wake_for_charges(&self, charges: impl IntoIterator<Item: Borrow<Charge>>) {
        let counter = |charge: &Charge| self.queue_id_for_counter_id(&charge.counter);
        self.wake_first(charges.into_iter().map(|charge| counter(charge.borrow())));
    }

    /// Wakes the first call of the queue of each counter.
    pub(crate) fn wake_first(&self, counters: impl IntoIterator<Item = u64>) {
        if !self.has_waiting_or_undecided_calls() {
            return;
        }
        let counters: WaitCounters = counters.into_iter().collect();
        if counters.is_empty() {
            return;
        }
        self.free_events.fetch_add(1, Ordering::Release);
        let mut queues = self.queues.lock();
        counters.into_iter().for_each(|counter| queues.wake_first(counter));
    }

    /// Wakes the first call of each queue, because the limits have changed.
    #[cfg(feature = "policy")]
    pub(crate) fn wake_first_in_every_queue(&self) {
        if !self.has_waiting_or_undecided_calls() {
            return;
        }
        self.free_events.fetch_add(1, Ordering::Release);
        let mut queues = self.queues.lock();
        let counters: Vec<u64> = queues.by_counter.keys().copied().collect();
        counters.into_iter().for_each(|counter| queues.wake_first(counter));
    }

    fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::Acquire) == 0
    }

    /// Returns whether there are calls that wait, or that may wait after their decision. A call is counted before it is
    /// decided, so a thread that has made units free for a denied call sees the call here.
    fn has_waiting_or_undecided_calls(&self) -> bool {
        self.callers.load(Ordering::SeqCst) > 0
    }

    fn count_end(&self, end: WaitEndReason) {
        let counter = match end {
            WaitEndReason::Admitted => &self.admitted,
            WaitEndReason::TimedOut => &self.timed_out,
            WaitEndReason::Cancelled => &self.cancelled,
            WaitEndReason::NeverWaited => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds a call to the queues of these counters with a new ticket, unless too many calls are waiting.
    fn add(
        &self,
        mut queues: MutexGuard<'_, Queues>,
        request_bytes: usize,
        counters: &[u64],
    ) -> Result<Ticket, QueueFull> {
        let bytes = request_bytes + BYTES_PER_WAITER;
        let is_full = queues.waiters.len() >= self.options.max_waiting
            || queues.bytes + bytes + counters.len() * BYTES_PER_QUEUE_PLACE
                > self.options.max_waiting_bytes
            || counters
                .iter()
                .any(|&counter| queues.waiting_calls(counter) >= self.options.max_waiting_per_key);
        if is_full {
            self.queue_full.fetch_add(1, Ordering::Relaxed);
            return Err(QueueFull);
        }
        let ticket = queues.next_ticket;
        queues.next_ticket += 1;
        queues.waiters.insert(ticket, Waiter::default());
        queues.bytes += bytes;
        counters.iter().for_each(|&counter| queues.join_queue(ticket, counter));
        self.waiting.fetch_add(1, Ordering::AcqRel);
        Ok(ticket)
    }
}

impl std::fmt::Debug for WaitQueues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WaitQueues")
            .field("options", &self.options)
            .field("stats", &self.stats())
            .field("queues", &self.queues.lock().by_counter.len())
            .finish_non_exhaustive()
    }
}

impl<'q> QueuePlace<'q> {
    /// Creates the place of a call that does not wait yet. While it waits, it keeps its request of `request_bytes`
    /// bytes.
    pub(super) fn new(queues: &'q WaitQueues, request_bytes: usize) -> Self {
        queues.callers.fetch_add(1, Ordering::SeqCst);
        let free_events_before = queues.free_events.load(Ordering::Acquire);
        Self { queues, ticket: None, request_bytes, free_events_before }
    }

    /// Returns whether the call may be decided now. If an earlier call waits for one of its counters, the call joins
    /// the queues of these counters.
    ///
    /// # Errors
    /// If the call has no place yet, and too many calls are waiting.
    pub(super) fn check_turn(
        &mut self,
        counters: impl FnOnce() -> WaitCounters,
    ) -> Result<QueueTurn, QueueFull> {
        if self.ticket.is_none() && self.queues.is_empty() {
            return Ok(QueueTurn::Now);
        }
        let counters = counters();
        let mut queues = self.queues.queues.lock();
        let before = self.ticket.unwrap_or(queues.next_ticket);
        let (mut blocking, mut wakes_at) = (WaitCounters::new(), None);
        for counter in counters {
            let Some(first) = queues.first_ticket(counter).filter(|first| *first < before) else {
                continue;
            };
            blocking.push(counter);
            wakes_at = wakes_at.max(queues.waiters.get(&first).and_then(|first| first.wakes_at));
        }
        if blocking.is_empty() {
            return Ok(QueueTurn::Now);
        }
        match self.ticket {
            Some(ticket) => {
                queues.set_wake_time(ticket, None);
                blocking.into_iter().for_each(|counter| queues.join_queue(ticket, counter));
            }
            None => {
                self.ticket = Some(self.queues.add(queues, self.request_bytes, &blocking)?);
            }
        }
        Ok(QueueTurn::Later(wakes_at))
    }

    /// Moves the call into exactly the queues of `counters`, which have denied it. The call fits at `fits_at`, if that
    /// is known. Returns whether the call may sleep: `false` if units became free before it was in a queue, so that it
    /// must be decided again.
    ///
    /// # Errors
    /// If the call has no place yet, and too many calls are waiting.
    pub(super) fn prepare_sleep(
        &mut self,
        fits_at: Option<Instant>,
        counters: &[u64],
    ) -> Result<bool, QueueFull> {
        let mut may_sleep = true;
        let ticket = match self.ticket {
            Some(ticket) => ticket,
            None => {
                let queues = self.queues.queues.lock();
                let ticket = self.queues.add(queues, self.request_bytes, counters)?;
                may_sleep =
                    self.queues.free_events.load(Ordering::Acquire) == self.free_events_before;
                *self.ticket.insert(ticket)
            }
        };
        let mut queues = self.queues.queues.lock();
        queues.leave_all_except(ticket, counters);
        counters.iter().for_each(|&counter| queues.join_queue(ticket, counter));
        queues.set_wake_time(ticket, fits_at);
        Ok(may_sleep)
    }

    /// Completes when the call is woken.
    pub(super) fn poll_woken(&self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(ticket) = self.ticket else { return Poll::Pending };
        let mut queues = self.queues.queues.lock();
        let Some(waiter) = queues.waiters.get_mut(&ticket) else { return Poll::Pending };
        if std::mem::take(&mut waiter.is_woken) {
            return Poll::Ready(());
        }
        match &mut waiter.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Leaves the queues, and counts the end of the wait.
    pub(super) fn leave_queues(&mut self, end: WaitEndReason) {
        let Some(ticket) = self.ticket.take() else { return };
        let mut queues = self.queues.queues.lock();
        queues.leave_all_except(ticket, &[]);
        queues.waiters.remove(&ticket);
        queues.bytes -= self.request_bytes + BYTES_PER_WAITER;
        drop(queues);
        self.queues.waiting.fetch_sub(1, Ordering::AcqRel);
        self.queues.count_end(end);
    }
}

impl Drop for QueuePlace<'_> {
    fn drop(&mut self) {
        self.leave_queues(WaitEndReason::Cancelled);
        self.queues.callers.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Queues {
    fn waiting_calls(&self, counter: u64) -> usize {
        self.by_counter.get(&counter).map_or(0, VecDeque::len)
    }

    fn first_ticket(&self, counter: u64) -> Option<Ticket> {
        self.by_counter.get(&counter)?.front().copied()
    }

    fn set_wake_time(&mut self, ticket: Ticket, wakes_at: Option<Instant>) {
        if let Some(waiter) = self.waiters.get_mut(&ticket) {
            waiter.wakes_at = wakes_at;
        }
    }

    /// Adds a call to the queue of a counter, behind all earlier calls. Does nothing if the call is in the queue
    /// already.
    fn join_queue(&mut self, ticket: Ticket, counter: u64) {
        let Some(waiter) = self.waiters.get_mut(&ticket) else { return };
        if waiter.counters.contains(&counter) {
            return;
        }
        waiter.counters.push(counter);
        self.bytes += BYTES_PER_QUEUE_PLACE;
        let queue = self.by_counter.entry(counter).or_default();
        let index = queue.partition_point(|other| *other < ticket);
        queue.insert(index, ticket);
    }

    /// Removes a call from all queues except the queues of `counters`.
    fn leave_all_except(&mut self, ticket: Ticket, counters: &[u64]) {
        let Some(waiter) = self.waiters.get_mut(&ticket) else { return };
        let (kept, left): (WaitCounters, WaitCounters) =
            waiter.counters.iter().copied().partition(|counter| counters.contains(counter));
        waiter.counters = kept;
        self.bytes -= left.len() * BYTES_PER_QUEUE_PLACE;
        for counter in left {
            self.remove_from_queue(ticket, counter);
        }
    }

    /// Removes a call from the queue of a counter, and wakes the next call if it was the first.
    fn remove_from_queue(&mut self, ticket: Ticket, counter: u64) {
        let Some(queue) = self.by_counter.get_mut(&counter) else { return };
        let Ok(index) = queue.binary_search(&ticket) else { return };
        queue.remove(index);
        if queue.is_empty() {
            self.by_counter.remove(&counter);
        } else if index == 0 {
            self.wake_first(counter);
        }
    }

    fn wake_first(&mut self, counter: u64) {
        let first = self.first_ticket(counter);
        let Some(waiter) = first.and_then(|first| self.waiters.get_mut(&first)) else { return };
        waiter.is_woken = true;
        if let Some(waker) = waiter.waker.take() {
            waker.wake();
        }
    }
}

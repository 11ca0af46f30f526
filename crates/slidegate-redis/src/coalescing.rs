//! Coalesces requests: jobs that arrive while a script call is in flight wait and share the next call.
//!
//! Jobs are grouped by key, and each key has at most one call in flight. A job whose key has no call in flight is sent
//! immediately, alone. Later jobs wait in arrival order and share the next call, at most [`MAX_BATCH`] per call. This
//! module makes no calls: its caller makes them.
//!
//! Only the holder of a key's [`LeaderGuard`] makes calls for the key. If the guard is dropped while jobs wait, the
//! [`LeaderReceiver`] gets a new guard of the key and makes the next call. The receiver exists from the beginning, so
//! the hand-over starts no task, even if the caller of the previous leader has gone.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

/// Maximum number of jobs per call.
pub const MAX_BATCH: usize = 128;

/// Maximum number of waiting jobs in a [`Coalescer`], for all keys together.
pub const MAX_WAITERS: usize = 16_384;

/// The waiting jobs of all keys. A key without a call in flight has no entry.
#[derive(Debug)]
pub struct Coalescer<K: CoalesceKey, J, R> {
    state: Mutex<CoalescerState<K, J, R>>,
    /// Sends the keys whose guard was dropped while jobs waited to the [`LeaderReceiver`].
    next_leaders: mpsc::UnboundedSender<K>,
}

#[derive(Debug)]
struct CoalescerState<K, J, R> {
    /// The waiting jobs of each key that has a call in flight, in arrival order.
    waiters_by_key: HashMap<K, VecDeque<WaitingJob<J, R>>>,
    waiter_count: usize,
    next_id: u64,
}

/// A waiting job, and the channel for its result.
#[derive(Debug)]
pub struct WaitingJob<J, R> {
    id: u64,
    pub job: J,
    pub reply: oneshot::Sender<R>,
    claim: Arc<JobClaim>,
}

/// The right to decide whether a waiting job is sent. Either its batch or its caller claims it, whichever is first. So
/// a caller that stops waiting always knows whether its job was sent, also when its batch is being prepared.
#[derive(Debug, Default)]
struct JobClaim(AtomicBool);

impl JobClaim {
    /// Takes the right to decide. Returns `true` for the first caller, and `false` for later ones.
    fn take(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}

impl<J, R> WaitingJob<J, R> {
    /// Returns whether to send the job. If its caller has canceled it, it must not be sent.
    pub fn claim(&self) -> bool {
        self.claim.take()
    }
}

/// The result of adding a job to a [`Coalescer`].
#[derive(Debug)]
pub enum EnqueueResult<K: CoalesceKey, J, R> {
    /// The key has no call in flight. The caller must make the call for this job, and then drop the guard.
    Leader(J, LeaderGuard<K, J, R>),
    /// The job waits for the next call of its key.
    Follower(WaitingJobHandle<K, J, R>),
    /// The job was rejected, because [`MAX_WAITERS`] jobs are waiting already.
    Full,
}

/// A key by which jobs are grouped: only jobs with the same key share a call.
pub trait CoalesceKey: Copy + Eq + std::hash::Hash {}
impl<K: Copy + Eq + std::hash::Hash> CoalesceKey for K {}

/// A handle of a waiting job. Dropping the handle cancels the job. A job that is canceled before its batch claims it
/// has no effect.
#[derive(Debug)]
pub struct WaitingJobHandle<K: CoalesceKey, J, R> {
    coalescer: Arc<Coalescer<K, J, R>>,
    key: K,
    id: u64,
    reply: oneshot::Receiver<R>,
    claim: Arc<JobClaim>,
}

/// A guard of a key that has a call in flight. Dropping the guard ends the call. If jobs wait for the key then, the
/// [`LeaderReceiver`] gets the next guard of the key.
#[derive(Debug)]
pub struct LeaderGuard<K: CoalesceKey, J, R> {
    coalescer: Arc<Coalescer<K, J, R>>,
    key: K,
}

/// A receiver of the guards of keys that have waiting jobs and no call in flight. If the receiver is dropped, waiting
/// jobs are dropped without a result when the call before them ends.
#[derive(Debug)]
pub struct LeaderReceiver<K: CoalesceKey, J, R> {
    keys: mpsc::UnboundedReceiver<K>,
    coalescer: Weak<Coalescer<K, J, R>>,
}

impl<K: CoalesceKey, J, R> Coalescer<K, J, R> {
    /// Creates a coalescer without jobs, and the receiver that makes the calls for waiting jobs.
    pub fn new() -> (Arc<Self>, LeaderReceiver<K, J, R>) {
        let state = CoalescerState { waiters_by_key: HashMap::new(), waiter_count: 0, next_id: 0 };
        let (next_leaders, keys) = mpsc::unbounded_channel();
        let coalescer = Arc::new(Self { state: Mutex::new(state), next_leaders });
        let receiver = LeaderReceiver { keys, coalescer: Arc::downgrade(&coalescer) };
        (coalescer, receiver)
    }

    /// Adds a job with a key. If the key has no call in flight, the job does not wait: it is returned as
    /// [`EnqueueResult::Leader`], and the caller makes the call.
    pub fn enqueue(self: &Arc<Self>, key: K, job: J) -> EnqueueResult<K, J, R> {
        let mut state = self.state.lock();
        let CoalescerState { waiters_by_key, waiter_count, next_id } = &mut *state;
        let Some(waiters) = waiters_by_key.get_mut(&key) else {
            waiters_by_key.insert(key, VecDeque::new());
            return EnqueueResult::Leader(job, LeaderGuard { coalescer: self.clone(), key });
        };
        if *waiter_count >= MAX_WAITERS {
            return EnqueueResult::Full;
        }
        let (sender, receiver) = oneshot::channel();
        let (id, claim) = (*next_id, Arc::new(JobClaim::default()));
        waiters.push_back(WaitingJob { id, job, reply: sender, claim: claim.clone() });
        (*waiter_count, *next_id) = (*waiter_count + 1, id + 1);
        EnqueueResult::Follower(WaitingJobHandle {
            coalescer: self.clone(),
            key,
            id,
            reply: receiver,
            claim,
        })
    }

    /// Marks a key as having a call in flight. Returns `None` if it already has one.
    pub fn try_pause_queue(self: &Arc<Self>, key: K) -> Option<LeaderGuard<K, J, R>> {
        let waiters_by_key = &mut self.state.lock().waiters_by_key;
        let is_free = !waiters_by_key.contains_key(&key);
        if is_free {
            waiters_by_key.insert(key, VecDeque::new());
        }
        is_free.then(|| LeaderGuard { coalescer: self.clone(), key })
    }

    /// Ends the call of a key. If jobs wait for the key, hands it over to the [`LeaderReceiver`]; otherwise the key no
    /// longer has a call in flight.
    fn end_call(&self, key: K) {
        let mut state = self.state.lock();
        let CoalescerState { waiters_by_key, waiter_count, .. } = &mut *state;
        let has_waiters = waiters_by_key.get(&key).is_some_and(|waiters| !waiters.is_empty());
        if has_waiters && self.next_leaders.send(key).is_ok() {
            return;
        }
        let abandoned = waiters_by_key.remove(&key).unwrap_or_default();
        *waiter_count -= abandoned.len();
        // Dropping the jobs wakes their callers, which must not happen under the lock.
        drop(state);
        drop(abandoned);
    }
}

impl<K: CoalesceKey, J, R> LeaderGuard<K, J, R> {
    /// Returns the key.
    pub fn key(&self) -> K {
        self.key
    }

    /// Takes the waiting jobs for the next call of the key. These are the first waiting job and the jobs behind it
    /// while `fits` returns `true` for them, at most [`MAX_BATCH`]. Returns an empty list if no job is waiting. The
    /// caller sends only the jobs that it can [claim](WaitingJob::claim).
    pub fn next_batch(&self, mut fits: impl FnMut(&J) -> bool) -> Vec<WaitingJob<J, R>> {
        let mut state = self.coalescer.state.lock();
        let CoalescerState { waiters_by_key, waiter_count, .. } = &mut *state;
        let Some(waiters) = waiters_by_key.get_mut(&self.key) else { return Vec::new() };
        let mut batch = Vec::with_capacity(waiters.len().min(MAX_BATCH));
        while let Some(first) = waiters.front()
            && batch.len() < MAX_BATCH
            && (fits(&first.job) || batch.is_empty())
        {
            batch.extend(waiters.pop_front());
        }
        *waiter_count -= batch.len();
        batch
    }
}

impl<K: CoalesceKey, J, R> Drop for LeaderGuard<K, J, R> {
    fn drop(&mut self) {
        self.coalescer.end_call(self.key);
    }
}

impl<K: CoalesceKey, J, R> LeaderReceiver<K, J, R> {
    /// Waits for a key that has waiting jobs and no call in flight, and returns its guard. Returns `None` if the
    /// coalescer has been dropped.
    pub async fn next_leader(&mut self) -> Option<LeaderGuard<K, J, R>> {
        let key = self.keys.recv().await?;
        Some(LeaderGuard { coalescer: self.coalescer.upgrade()?, key })
    }
}

impl<K: CoalesceKey, J, R> WaitingJobHandle<K, J, R> {
    /// Waits for the result of the job. Returns `None` if the job was dropped without a result.
    pub async fn reply(&mut self) -> Option<R> {
        (&mut self.reply).await.ok()
    }

    /// Cancels the job. Returns `true` if its batch has not claimed it, so that it will never be sent.
    pub fn cancel(&self) -> bool {
        let is_first = self.claim.take();
        if is_first {
            self.leave_queue();
        }
        is_first
    }

    /// Removes the job from the waiting jobs, unless it has been taken for a batch.
    fn leave_queue(&self) {
        let mut state = self.coalescer.state.lock();
        let CoalescerState { waiters_by_key, waiter_count, .. } = &mut *state;
        let Some(waiters) = waiters_by_key.get_mut(&self.key) else { return };
        // Ids ascend from the front to the back of the queue, so a binary search finds the job.
        let found = waiters.binary_search_by_key(&self.id, |other| other.id);
        let removed = found.ok().and_then(|index| waiters.remove(index));
        *waiter_count -= usize::from(removed.is_some());
    }
}

impl<K: CoalesceKey, J, R> Drop for WaitingJobHandle<K, J, R> {
    fn drop(&mut self) {
        self.cancel();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    type TestCoalescer = Coalescer<u16, u32, u32>;

    fn expect_leader_guard(enqueued: EnqueueResult<u16, u32, u32>) -> LeaderGuard<u16, u32, u32> {
        match enqueued {
            EnqueueResult::Leader(_, guard) => guard,
            other => panic!("{other:?}"),
        }
    }

    fn expect_follower_handle(
        enqueued: EnqueueResult<u16, u32, u32>,
    ) -> WaitingJobHandle<u16, u32, u32> {
        match enqueued {
            EnqueueResult::Follower(handle) => handle,
            other => panic!("{other:?}"),
        }
    }

    fn jobs_of_batch(batch: &[WaitingJob<u32, u32>]) -> Vec<u32> {
        batch.iter().map(|waiter| waiter.job).collect()
    }

    fn next_leader(
        receiver: &mut LeaderReceiver<u16, u32, u32>,
    ) -> Option<LeaderGuard<u16, u32, u32>> {
        receiver.next_leader().now_or_never().flatten()
    }

    #[test]
    fn first_job_of_key_becomes_leader() {
        let (coalescer, mut receiver) = TestCoalescer::new();
        let _first = expect_leader_guard(coalescer.enqueue(1, 10));
        let second = expect_leader_guard(coalescer.enqueue(2, 20));
        let _handle = expect_follower_handle(coalescer.enqueue(1, 11));
        assert!(second.next_batch(|_| true).is_empty());
        drop(second);
        assert!(next_leader(&mut receiver).is_none(), "no job is waiting");
        let _third = expect_leader_guard(coalescer.enqueue(2, 21));
    }

    #[test]
    fn follower_jobs_share_next_batch_in_order() {
        let (coalescer, _receiver) = TestCoalescer::new();
        let leader = coalescer.try_pause_queue(1).unwrap();
        assert!(coalescer.try_pause_queue(1).is_none());
        let count = MAX_BATCH as u32 + 3;
        let _handles: Vec<_> =
            (0..count).map(|job| expect_follower_handle(coalescer.enqueue(1, job))).collect();
        assert_eq!(
            jobs_of_batch(&leader.next_batch(|_| true)),
            (0..MAX_BATCH as u32).collect::<Vec<_>>()
        );
        let _late = expect_follower_handle(coalescer.enqueue(1, count));
        let batch = leader.next_batch(|job| *job < count - 1);
        assert_eq!(jobs_of_batch(&batch), [count - 3, count - 2], "as long as each job fits");
        assert_eq!(
            jobs_of_batch(&leader.next_batch(|_| false)),
            [count - 1],
            "the first is always sent"
        );
        assert_eq!(jobs_of_batch(&leader.next_batch(|_| false)), [count]);
        assert!(leader.next_batch(|_| true).is_empty());
        drop(leader);
        assert!(coalescer.state.lock().waiters_by_key.is_empty());
    }

    #[test]
    fn dropped_guard_with_waiters_is_handed_over() {
        let (coalescer, mut receiver) = TestCoalescer::new();
        let leader = expect_leader_guard(coalescer.enqueue(1, 10));
        let handles: Vec<_> =
            (11..13).map(|job| expect_follower_handle(coalescer.enqueue(1, job))).collect();
        assert!(next_leader(&mut receiver).is_none(), "a call is in flight");
        drop(leader);
        let _late = expect_follower_handle(coalescer.enqueue(1, 13));
        let leader = next_leader(&mut receiver).unwrap();
        assert!(next_leader(&mut receiver).is_none(), "handed over once");
        assert_eq!(
            (leader.key(), jobs_of_batch(&leader.next_batch(|_| true))),
            (1, vec![11, 12, 13])
        );
        drop((leader, handles));
        let _first = expect_leader_guard(coalescer.enqueue(1, 14));
    }

    #[test]
    fn dropped_receiver_drops_waiting_jobs() {
        let (coalescer, receiver) = TestCoalescer::new();
        let leader = coalescer.try_pause_queue(1).unwrap();
        let mut handle = expect_follower_handle(coalescer.enqueue(1, 10));
        drop((receiver, leader));
        assert_eq!(handle.reply().now_or_never(), Some(None));
        assert_eq!(coalescer.state.lock().waiter_count, 0);
        let _first = expect_leader_guard(coalescer.enqueue(1, 11));
    }

    #[test]
    fn canceled_job_is_not_in_next_batch() {
        let (coalescer, _receiver) = TestCoalescer::new();
        let leader = coalescer.try_pause_queue(1).unwrap();
        let handles: Vec<_> =
            (0..3).map(|job| expect_follower_handle(coalescer.enqueue(1, job))).collect();
        assert!(handles[1].cancel() && !handles[1].cancel());
        let batch = leader.next_batch(|_| true);
        assert_eq!(jobs_of_batch(&batch), [0, 2]);
        assert!(batch[0].claim());
        assert!(!handles[0].cancel(), "the job is in flight");
        assert!(handles[2].cancel(), "the job was taken, but is not sent yet");
        assert!(!batch[1].claim(), "the job must not be sent any more");
        drop(handles);
        assert_eq!(coalescer.state.lock().waiter_count, 0);
    }

    #[test]
    fn dropped_wait_handle_frees_waiter_capacity() {
        let (coalescer, _receiver) = TestCoalescer::new();
        let _leaders =
            [coalescer.try_pause_queue(1).unwrap(), coalescer.try_pause_queue(2).unwrap()];
        let mut handles: Vec<_> = (0..MAX_WAITERS)
            .map(|job| expect_follower_handle(coalescer.enqueue(1, job as u32)))
            .collect();
        assert!(
            matches!(coalescer.enqueue(2, 0), EnqueueResult::Full),
            "the maximum is for all keys"
        );
        handles.pop();
        drop(expect_follower_handle(coalescer.enqueue(2, 0)));
        drop(handles);
        assert_eq!(coalescer.state.lock().waiter_count, 0);
    }
}

//! Coalesces requests: jobs that arrive while a script call is in flight wait and share the next call.
//!
//! Jobs are grouped by key, and each key has at most one call in flight. A job whose key has no call in flight is sent
//! immediately, alone. Later jobs wait in arrival order and share the next call, at most [`MAX_BATCH`] per call. This
//! module makes no calls: its caller makes them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Maximum number of jobs per call.
pub const MAX_BATCH: usize = 128;

/// Maximum number of waiting jobs in a [`Coalescer`], for all keys together.
pub const MAX_WAITERS: usize = 16_384;

/// The waiting jobs of all keys. A key without a call in flight has no entry.
#[derive(Debug)]
pub struct Coalescer<K, J, R> {
    state: Mutex<CoalescerState<K, J, R>>,
}

#[derive(Debug)]
struct CoalescerState<K, J, R> {
    /// The waiting jobs of each key that has a call in flight, in arrival order.
    waiters_by_key: HashMap<K, VecDeque<Waiter<J, R>>>,
    waiter_count: usize,
    next_id: u64,
}

/// A waiting job, and the channel for its result.
#[derive(Debug)]
pub struct Waiter<J, R> {
    id: u64,
    pub job: J,
    pub reply: oneshot::Sender<R>,
}

/// The result of adding a job to a [`Coalescer`].
#[derive(Debug)]
pub enum Enqueued<K: CoalesceKey, J, R> {
    /// The key has no call in flight. The caller must make the call for this job, and then call
    /// [`Coalescer::next_batch`].
    Leader(J),
    /// The job waits for the next call of its key.
    Follower(WaitHandle<K, J, R>),
    /// The job was rejected, because [`MAX_WAITERS`] jobs are waiting already.
    Full,
}

/// A key by which jobs are grouped: only jobs with the same key share a call.
pub trait CoalesceKey: Copy + Eq + std::hash::Hash {}
impl<K: Copy + Eq + std::hash::Hash> CoalesceKey for K {}

/// A handle of a waiting job. Dropping the handle cancels the job. A job that is canceled before its batch is sent has
/// no effect.
#[derive(Debug)]
pub struct WaitHandle<K: CoalesceKey, J, R> {
    coalescer: Arc<Coalescer<K, J, R>>,
    key: K,
    id: u64,
    reply: oneshot::Receiver<R>,
}

impl<K: CoalesceKey, J, R> Coalescer<K, J, R> {
    pub fn new() -> Self {
        let state = CoalescerState { waiters_by_key: HashMap::new(), waiter_count: 0, next_id: 0 };
        Self { state: Mutex::new(state) }
    }

    /// Adds a job with a key. If the key has no call in flight, the job does not wait: it is returned as
    /// [`Enqueued::Leader`], and the caller makes the call.
    pub fn enqueue(self: &Arc<Self>, key: K, job: J) -> Enqueued<K, J, R> {
        let mut state = self.state.lock();
        let CoalescerState { waiters_by_key, waiter_count, next_id } = &mut *state;
        let Some(waiters) = waiters_by_key.get_mut(&key) else {
            waiters_by_key.insert(key, VecDeque::new());
            return Enqueued::Leader(job);
        };
        if *waiter_count >= MAX_WAITERS {
            return Enqueued::Full;
        }
        let (sender, receiver) = oneshot::channel();
        let id = *next_id;
        waiters.push_back(Waiter { id, job, reply: sender });
        (*waiter_count, *next_id) = (*waiter_count + 1, id + 1);
        Enqueued::Follower(WaitHandle { coalescer: self.clone(), key, id, reply: receiver })
    }

    /// Marks a key as having a call in flight. Returns `false` if it already has one.
    pub fn try_hold(&self, key: K) -> bool {
        let waiters_by_key = &mut self.state.lock().waiters_by_key;
        let is_free = !waiters_by_key.contains_key(&key);
        if is_free {
            waiters_by_key.insert(key, VecDeque::new());
        }
        is_free
    }

    /// Ends the call of a key, and returns the waiting jobs for its next call. These are the first waiting job and the
    /// jobs behind it while `fits` returns `true` for them, at most [`MAX_BATCH`]. If no job is waiting, returns an
    /// empty list, and the key no longer has a call in flight.
    pub fn next_batch(&self, key: K, mut fits: impl FnMut(&J) -> bool) -> Vec<Waiter<J, R>> {
        let mut state = self.state.lock();
        let CoalescerState { waiters_by_key, waiter_count, .. } = &mut *state;
        let Some(waiters) = waiters_by_key.get_mut(&key) else { return Vec::new() };
        let mut batch = Vec::with_capacity(waiters.len().min(MAX_BATCH));
        while let Some(first) = waiters.front()
            && batch.len() < MAX_BATCH
            && (fits(&first.job) || batch.is_empty())
        {
            batch.extend(waiters.pop_front());
        }
        *waiter_count -= batch.len();
        if batch.is_empty() {
            waiters_by_key.remove(&key);
        }
        batch
    }
}

impl<K: CoalesceKey, J, R> WaitHandle<K, J, R> {
    /// Waits for the result of the job. Returns `None` if the job was dropped without a result.
    pub async fn reply(&mut self) -> Option<R> {
        (&mut self.reply).await.ok()
    }

    /// Cancels the job. Returns `true` if the job was still waiting, so that it will never be sent.
    pub fn cancel(&self) -> bool {
        let mut state = self.coalescer.state.lock();
        let CoalescerState { waiters_by_key, waiter_count, .. } = &mut *state;
        let Some(waiters) = waiters_by_key.get_mut(&self.key) else { return false };
        // Ids ascend from the front to the back.
        let found = waiters.binary_search_by_key(&self.id, |other| other.id);
        let removed = found.ok().and_then(|index| waiters.remove(index));
        *waiter_count -= usize::from(removed.is_some());
        removed.is_some()
    }
}

impl<K: CoalesceKey, J, R> Drop for WaitHandle<K, J, R> {
    fn drop(&mut self) {
        self.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type TestCoalescer = Coalescer<u16, u32, u32>;

    fn expect_follower_handle(enqueued: Enqueued<u16, u32, u32>) -> WaitHandle<u16, u32, u32> {
        match enqueued {
            Enqueued::Follower(handle) => handle,
            other => panic!("{other:?}"),
        }
    }

    fn jobs_of_batch(batch: &[Waiter<u32, u32>]) -> Vec<u32> {
        batch.iter().map(|waiter| waiter.job).collect()
    }

    #[test]
    fn first_job_of_key_becomes_leader() {
        let coalescer = Arc::new(TestCoalescer::new());
        assert!(matches!(coalescer.enqueue(1, 10), Enqueued::Leader(10)));
        assert!(matches!(coalescer.enqueue(2, 20), Enqueued::Leader(20)), "another key");
        let _handle = expect_follower_handle(coalescer.enqueue(1, 11));
        assert!(coalescer.next_batch(2, |_| true).is_empty());
        assert!(matches!(coalescer.enqueue(2, 21), Enqueued::Leader(21)), "the key is free again");
    }

    #[test]
    fn follower_jobs_share_next_batch_in_order() {
        let coalescer = Arc::new(TestCoalescer::new());
        assert!(coalescer.try_hold(1) && !coalescer.try_hold(1));
        let count = MAX_BATCH as u32 + 3;
        let _handles: Vec<_> =
            (0..count).map(|job| expect_follower_handle(coalescer.enqueue(1, job))).collect();
        assert_eq!(
            jobs_of_batch(&coalescer.next_batch(1, |_| true)),
            (0..MAX_BATCH as u32).collect::<Vec<_>>()
        );
        let _late = expect_follower_handle(coalescer.enqueue(1, count));
        let batch = coalescer.next_batch(1, |job| *job < count - 1);
        assert_eq!(jobs_of_batch(&batch), [count - 3, count - 2], "as long as each job fits");
        assert_eq!(
            jobs_of_batch(&coalescer.next_batch(1, |_| false)),
            [count - 1],
            "the first is always sent"
        );
        assert_eq!(jobs_of_batch(&coalescer.next_batch(1, |_| false)), [count]);
        assert!(coalescer.next_batch(1, |_| true).is_empty());
        assert!(coalescer.state.lock().waiters_by_key.is_empty());
    }

    #[test]
    fn canceled_job_is_not_in_next_batch() {
        let coalescer = Arc::new(TestCoalescer::new());
        assert!(coalescer.try_hold(1));
        let handles: Vec<_> =
            (0..3).map(|job| expect_follower_handle(coalescer.enqueue(1, job))).collect();
        assert!(handles[1].cancel() && !handles[1].cancel());
        let batch = coalescer.next_batch(1, |_| true);
        assert_eq!(jobs_of_batch(&batch), [0, 2]);
        assert!(!handles[0].cancel(), "the job is in flight");
        drop(handles);
        assert_eq!(coalescer.state.lock().waiter_count, 0);
    }

    #[test]
    fn dropped_wait_handle_frees_waiter_capacity() {
        let coalescer = Arc::new(TestCoalescer::new());
        assert!(coalescer.try_hold(1) && coalescer.try_hold(2));
        let mut handles: Vec<_> = (0..MAX_WAITERS)
            .map(|job| expect_follower_handle(coalescer.enqueue(1, job as u32)))
            .collect();
        assert!(matches!(coalescer.enqueue(2, 0), Enqueued::Full), "the maximum is for all keys");
        handles.pop();
        drop(expect_follower_handle(coalescer.enqueue(2, 0)));
        drop(handles);
        assert_eq!(coalescer.state.lock().waiter_count, 0);
    }
}

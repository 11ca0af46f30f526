//! Handles large calls on a thread of their own, so that they delay no other calls.

use std::io;
use std::sync::Arc;

use thiserror::Error;
use tokio_util::task::AbortOnDropHandle;

use super::RuntimeThread;
use crate::background::BackgroundTasks;

/// The thread that handles large calls. Clones share it.
///
/// The number of calls is not bounded here, because a call may wait for capacity, and another one may settle the
/// reservation for which it waits. The memory of their bodies is bounded.
#[derive(Clone)]
pub struct LargeCallThread(Arc<RuntimeThread>);

/// The error for a large call that panicked.
#[derive(Clone, Copy, Debug, Error)]
#[error("the call failed; the log of the server has the reason")]
pub struct LargeCallPanic;

impl LargeCallThread {
    /// Starts the thread, which runs until the process ends.
    pub fn start(tasks: &BackgroundTasks) -> io::Result<Self> {
        Ok(Self(Arc::new(RuntimeThread::start_thread("large calls", tasks)?)))
    }

    /// Handles a call, and returns its result. If the returned future is dropped, because the client has disconnected,
    /// the call ends.
    pub async fn handle<F>(&self, call: F) -> Result<F::Output, LargeCallPanic>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        AbortOnDropHandle::new(self.0.spawn(call)).await.map_err(|_| LargeCallPanic)
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Barrier;

    use futures_util::future::{Either, join, select};
    use tokio::sync::oneshot;

    use super::*;

    fn large_calls() -> LargeCallThread {
        LargeCallThread::start(&BackgroundTasks::default()).unwrap()
    }

    #[tokio::test]
    async fn large_call_does_not_block_thread_of_its_connection() {
        let calls = large_calls();
        let both = Arc::new(Barrier::new(2));
        let large = both.clone();
        let large = calls.handle(async move { large.wait().is_leader() });
        // Would never end on one thread.
        let (large, other) = join(large, async { both.wait().is_leader() }).await;
        assert_ne!(large.unwrap(), other);
    }

    #[tokio::test]
    async fn call_ends_with_its_client() {
        let calls = large_calls();
        let (in_call, ended) = oneshot::channel::<()>();
        let call = Box::pin(calls.handle(async move {
            let _in_call = in_call;
            pending::<()>().await
        }));
        let Either::Right(((), call)) = select(call, Box::pin(tokio::task::yield_now())).await
        else {
            panic!("the call never ends by itself")
        };
        drop(call);
        assert!(ended.await.is_err());
    }

    #[tokio::test]
    async fn panic_of_a_call_is_an_error() {
        let calls = large_calls();
        let panicked = calls.handle(async { panic!("for the test") }).await;
        assert_eq!(
            panicked.unwrap_err().to_string(),
            "the call failed; the log of the server has the reason"
        );
        assert_eq!(calls.handle(async { 7 }).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn waiting_calls_delay_no_other_call() {
        let calls = large_calls();
        let mut waiting: Vec<_> =
            (0..100).map(|_| Box::pin(calls.handle(pending::<()>()))).collect();
        for call in &mut waiting {
            let _ = select(call, Box::pin(tokio::task::yield_now())).await;
        }
        assert_eq!(calls.handle(async { 7 }).await.unwrap(), 7);
    }
}

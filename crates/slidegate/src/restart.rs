//! Background tasks that run again after a panic.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::sleep;

/// Pause before a background task that has panicked runs again, so that repeated panics do not occupy a core.
pub const TASK_RESTART_DELAY: Duration = Duration::from_secs(1);

/// Runs a background task until it ends. After a panic, calls `on_panic`, and runs the task again after
/// [`TASK_RESTART_DELAY`]. The state that `run` borrows must stay usable if a call panics at any point.
pub async fn restart_on_panic(mut run: impl AsyncFnMut(), on_panic: impl Fn()) {
    while !is_ended_without_panic(run()).await {
        on_panic();
        sleep(TASK_RESTART_DELAY).await;
    }
}

/// Runs a task until it ends or panics. Returns `false` if it has panicked.
async fn is_ended_without_panic(task: impl Future<Output = ()>) -> bool {
    let mut task = pin!(task);
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(cx))) {
        Ok(poll) => poll.map(|()| true),
        Err(_) => Poll::Ready(false),
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::task::yield_now;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn panicking_task_runs_again_with_its_state() {
        let (mut runs, panics) = (0, AtomicU32::new(0));
        let run = async || {
            runs += 1;
            yield_now().await;
            assert!(runs >= 3, "panics in the first two runs");
        };
        restart_on_panic(run, || _ = panics.fetch_add(1, Ordering::Relaxed)).await;
        assert_eq!((runs, panics.into_inner()), (3, 2));
    }
}

//! Supervision of the background tasks, which run until the process ends.
//!
//! A task that panics runs again. A task that returns is recorded, and the server is then not ready.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{io, thread};

use parking_lot::Mutex;
use slidegate::store::{TASK_RESTART_DELAY, restart_on_panic};
use tracing::error;

/// The supervised background tasks of the server. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct BackgroundTasks {
    /// The names of the tasks that have returned. If there is any, the server is not ready.
    ended_tasks: Arc<Mutex<Vec<&'static str>>>,
    /// Whether the server stops, so that the end of a task is no failure.
    is_stopping: Arc<AtomicBool>,
}

impl BackgroundTasks {
    /// Starts a thread with this name, on which `run` runs until the process ends. The state that `run` borrows must
    /// stay usable if a call panics at any point.
    pub fn start_thread(
        &self,
        name: &'static str,
        mut run: impl FnMut() + Send + 'static,
    ) -> io::Result<()> {
        let tasks = self.clone();
        let run_until_end = move || {
            while catch_unwind(AssertUnwindSafe(&mut run)).is_err() {
                log_panicked_task(name);
                thread::sleep(TASK_RESTART_DELAY);
            }
            tasks.record_task_end(name);
        };
        thread::Builder::new().name(name.to_owned()).spawn(run_until_end)?;
        Ok(())
    }

    /// Runs `run` until the process ends, in the Tokio task of the caller, and again if it panics. `name` identifies
    /// the background task in the log and in `/readyz`.
    pub async fn keep_running(self, name: &'static str, run: impl AsyncFnMut()) {
        restart_on_panic(run, || log_panicked_task(name)).await;
        self.record_task_end(name);
    }

    /// Returns the names of the tasks that have ended although the process continues.
    pub fn ended_tasks(&self) -> Vec<&'static str> {
        self.ended_tasks.lock().clone()
    }

    /// States that the server stops. Tasks that end from now on are not recorded.
    pub fn mark_shutting_down(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
    }

    fn record_task_end(&self, name: &'static str) {
        if self.is_stopping.load(Ordering::Relaxed) {
            return;
        }
        error!(
            task = name,
            "a background task ended; the server is not ready until it is restarted"
        );
        self.ended_tasks.lock().push(name);
    }
}

fn log_panicked_task(name: &'static str) {
    error!(task = name, "a background task panicked; it runs again");
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    /// Much longer than any test needs.
    const TIMEOUT: Duration = Duration::from_secs(30);

    #[test]
    fn panicking_thread_runs_again() {
        let (sender, runs) = channel();
        let mut number = 0;
        let run = move || {
            number += 1;
            sender.send(number).unwrap();
            assert!(number > 1, "panics in the first run");
            thread::park();
        };
        let tasks = BackgroundTasks::default();
        tasks.start_thread("test", run).unwrap();
        assert_eq!([(); 2].map(|()| runs.recv_timeout(TIMEOUT).unwrap()), [1, 2]);
        assert!(tasks.ended_tasks().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn returned_tasks_are_recorded_once() {
        let tasks = BackgroundTasks::default();
        let mut has_panicked = false;
        let run = async || {
            assert!(std::mem::replace(&mut has_panicked, true), "panics in the first run");
        };
        tasks.clone().keep_running("accept", run).await;
        assert_eq!(tasks.ended_tasks(), ["accept"]);
        let (sender, ended) = channel::<()>();
        let mut sender = Some(sender);
        tasks.start_thread("reload", move || drop(sender.take())).unwrap();
        // Disconnected once the thread has run.
        assert!(ended.recv_timeout(TIMEOUT).is_err());
        while tasks.ended_tasks().len() < 2 {
            thread::yield_now();
        }
        assert_eq!(tasks.ended_tasks(), ["accept", "reload"]);
        tasks.mark_shutting_down();
        tasks.clone().keep_running("log", async || ()).await;
        assert_eq!(tasks.ended_tasks(), ["accept", "reload"], "the server stops");
    }
}

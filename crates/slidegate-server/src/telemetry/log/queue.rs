//! The queue between the threads that log and the thread that writes to standard error.
//!
//! A write to standard error blocks while the pipe is full, and fails if the disk is full or the pipe is closed.
//! Neither may delay or fail a decision, so a separate thread writes. A line is lost if the queue is full or its write
//! fails. Lost lines are counted, and the log reports them when a write succeeds again.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use slidegate::clock::{Clock, SystemClock};
use tracing_subscriber::fmt::MakeWriter;

use crate::telemetry::LogThrottle;

/// Maximum number of lines that wait to be written. Further lines are lost.
const MAX_QUEUED_LINES: usize = 4_096;

/// Minimum interval between two reports of lost lines.
const LOST_LINES_REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// The numbers of lines that were not written since the start of the process, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LostLines {
    /// Lines that were logged while the queue was full.
    pub queue_full: u64,
    /// Lines whose write failed. A part of such a line may have been written.
    pub write_failed: u64,
}

/// The queue of log lines. Clones share it.
#[derive(Clone, Debug)]
pub struct LogQueue {
    lines: SyncSender<Vec<u8>>,
    counts: Arc<LineCounts>,
}

/// The numbers of lines that entered and left the queue.
#[derive(Debug, Default)]
struct LineCounts {
    submitted: AtomicU64,
    /// The lines that did not fit into the queue.
    queue_full: AtomicU64,
    taken: Mutex<DequeuedLineCounts>,
    taken_changed: Condvar,
}

/// The numbers of lines that the writing thread has taken from the queue.
#[derive(Clone, Copy, Debug, Default)]
struct DequeuedLineCounts {
    written: u64,
    write_failed: u64,
}

impl LostLines {
    const fn total(self) -> u64 {
        self.queue_full + self.write_failed
    }
}

impl LogQueue {
    /// Starts a thread that writes the lines of the queue to `output`. `report` is called on this thread after a
    /// successful write if lines have been lost since the last report, at most once per minute.
    pub fn start(
        output: impl Write + Send + 'static,
        report: impl Fn(LostLines) + Send + 'static,
    ) -> io::Result<Self> {
        let counts = Arc::<LineCounts>::default();
        let mut writer = LineWriter {
            output,
            report,
            counts: counts.clone(),
            has_incomplete_line: false,
            reported_lines: 0,
            report_throttle: LogThrottle::new(1, LOST_LINES_REPORT_INTERVAL),
            clock: SystemClock::new(),
        };
        let (lines, waiting_lines) = sync_channel::<Vec<u8>>(MAX_QUEUED_LINES);
        let write_lines = move || waiting_lines.iter().for_each(|line| writer.write(&line));
        thread::Builder::new().name("log".to_owned()).spawn(write_lines)?;
        Ok(Self { lines, counts })
    }

    /// Adds a line. It is lost if the queue is full.
    pub fn push(&self, line: impl Into<Vec<u8>>) {
        self.counts.submitted.fetch_add(1, Ordering::Release);
        if self.lines.try_send(line.into()).is_err() {
            self.counts.queue_full.fetch_add(1, Ordering::Release);
        }
    }

    /// Waits until the lines that are in the queue now are written or lost, for at most `timeout`.
    pub fn wait_until_written(&self, timeout: Duration) {
        let submitted = self.counts.submitted.load(Ordering::Acquire);
        let is_waiting = |taken: &mut DequeuedLineCounts| {
            let lost = self.counts.lost_lines(*taken);
            taken.written + lost.total() < submitted
        };
        let mut taken = self.counts.taken.lock();
        self.counts.taken_changed.wait_while_for(&mut taken, is_waiting, timeout);
    }

    /// Returns the numbers of lines that were lost since the start.
    pub fn lost_lines(&self) -> LostLines {
        self.counts.lost_lines(*self.counts.taken.lock())
    }
}

/// Adds each line, which must be written with one call.
impl Write for &LogQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogQueue {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> &'a Self {
        self
    }
}

impl LineCounts {
    fn lost_lines(&self, taken: DequeuedLineCounts) -> LostLines {
        let queue_full = self.queue_full.load(Ordering::Acquire);
        LostLines { queue_full, write_failed: taken.write_failed }
    }

    fn count_dequeued_line(&self, is_written: bool) {
        let mut taken = self.taken.lock();
        if is_written {
            taken.written += 1
        } else {
            taken.write_failed += 1
        }
        self.taken_changed.notify_all();
    }
}

/// The writer of the lines, on the writing thread.
struct LineWriter<W, R> {
    output: W,
    report: R,
    counts: Arc<LineCounts>,
    /// Whether the end of the output is a part of a line whose write failed.
    has_incomplete_line: bool,
    /// The number of lost lines at the last report.
    reported_lines: u64,
    report_throttle: LogThrottle,
    clock: SystemClock,
}

impl<W: Write, R: Fn(LostLines)> LineWriter<W, R> {
    /// Writes a line, and reports lost lines if it succeeds.
    fn write(&mut self, line: &[u8]) {
        let is_written = self.write_line(line).is_ok();
        if is_written {
            self.report_lost_lines();
        }
        self.counts.count_dequeued_line(is_written);
    }

    /// Writes a line. If the previous line is incomplete, ends it first.
    fn write_line(&mut self, line: &[u8]) -> io::Result<()> {
        if self.has_incomplete_line {
            self.output.write_all(b"\n")?;
            self.has_incomplete_line = false;
        }
        let mut rest = line;
        while !rest.is_empty() {
            match self.output.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            self.has_incomplete_line = !rest.is_empty();
        }
        Ok(())
    }

    fn report_lost_lines(&mut self) {
        let lost = self.counts.lost_lines(*self.counts.taken.lock());
        if lost.total() > self.reported_lines
            && self.report_throttle.try_acquire(self.clock.now()).is_some()
        {
            self.reported_lines = lost.total();
            (self.report)(lost);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};

    use super::*;

    /// Much longer than any test needs.
    const TIMEOUT: Duration = Duration::from_secs(30);

    /// An output whose writes block until the test returns their results.
    struct ControlledOutput {
        calls: SyncSender<String>,
        results: Receiver<io::Result<usize>>,
    }

    impl Write for ControlledOutput {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.calls.send(String::from_utf8_lossy(bytes).into_owned()).unwrap();
            self.results.recv().unwrap()
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct TestQueue {
        queue: LogQueue,
        calls: Receiver<String>,
        results: SyncSender<io::Result<usize>>,
        reports: Receiver<LostLines>,
    }

    impl TestQueue {
        fn start() -> Self {
            let (call_sender, calls) = sync_channel(0);
            let (results, result_receiver) = sync_channel(0);
            let (report_sender, reports) = channel();
            let output = ControlledOutput { calls: call_sender, results: result_receiver };
            let queue =
                LogQueue::start(output, move |lost| report_sender.send(lost).unwrap()).unwrap();
            Self { queue, calls, results, reports }
        }

        /// Waits for the next write, and makes it return this result. Returns the bytes of the write.
        fn finish_write(&self, result: io::Result<usize>) -> String {
            let written = self.calls.recv_timeout(TIMEOUT).unwrap();
            self.results.send(result).unwrap();
            written
        }

        /// Waits for the next write, and makes it succeed.
        fn accept_write(&self) -> String {
            let written = self.calls.recv_timeout(TIMEOUT).unwrap();
            self.results.send(Ok(written.len())).unwrap();
            written
        }
    }

    fn disk_full() -> io::Result<usize> {
        Err(io::ErrorKind::StorageFull.into())
    }

    #[test]
    fn lines_above_queue_bound_are_counted_once_each() {
        let test = TestQueue::start();
        test.queue.push("first\n");
        assert_eq!(test.calls.recv_timeout(TIMEOUT).unwrap(), "first\n");
        for _ in 0..MAX_QUEUED_LINES + 3 {
            test.queue.push("more\n");
        }
        assert_eq!(test.queue.lost_lines(), LostLines { queue_full: 3, write_failed: 0 });
        test.results.send(Ok("first\n".len())).unwrap();
        assert_eq!(test.accept_write(), "more\n");
        let lost = test.reports.recv_timeout(TIMEOUT).unwrap();
        assert_eq!(lost, LostLines { queue_full: 3, write_failed: 0 });
    }

    #[test]
    fn failed_writes_are_reported_after_next_success() {
        let test = TestQueue::start();
        ["a\n", "b\n", "c\n", "d\n"].iter().for_each(|line| test.queue.push(*line));
        test.finish_write(disk_full());
        test.finish_write(Ok(0));
        assert!(test.reports.try_recv().is_err());
        test.accept_write();
        let lost = test.reports.recv_timeout(TIMEOUT).unwrap();
        assert_eq!(lost, LostLines { queue_full: 0, write_failed: 2 });
        test.accept_write();
        test.queue.wait_until_written(TIMEOUT);
        assert_eq!((test.queue.lost_lines(), test.reports.try_recv().ok()), (lost, None));
    }

    #[test]
    fn incomplete_line_ends_before_next_line() {
        let test = TestQueue::start();
        ["abc\n", "def\n", "ghi\n"].iter().for_each(|line| test.queue.push(*line));
        assert_eq!(test.finish_write(Ok(2)), "abc\n");
        assert_eq!(test.finish_write(Err(io::ErrorKind::Interrupted.into())), "c\n");
        assert_eq!(test.finish_write(disk_full()), "c\n");
        assert_eq!(test.finish_write(disk_full()), "\n");
        assert_eq!([test.accept_write(), test.accept_write()], ["\n", "ghi\n"]);
        test.queue.wait_until_written(TIMEOUT);
        assert_eq!(test.queue.lost_lines().write_failed, 2);
    }

    #[test]
    fn blocked_write_delays_end_only_until_timeout() {
        let test = TestQueue::start();
        test.queue.push("blocked\n");
        // Returns although the write never ends.
        test.queue.wait_until_written(Duration::from_millis(1));
        assert_eq!(test.accept_write(), "blocked\n");
        test.queue.wait_until_written(TIMEOUT);
        assert_eq!(test.queue.lost_lines(), LostLines::default());
    }
}

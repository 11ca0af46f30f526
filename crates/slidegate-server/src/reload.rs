//! Reloads the policy when its file changes, and on SIGHUP.
//!
//! Only a complete and valid policy replaces the current policy. [`watched_paths`] resolves the directories to watch,
//! [`file_watcher`] interprets their events, and [`policy_diff`] describes the changes for the log.

mod file_watcher;
mod watched_paths;

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;
use std::{mem, thread};

use tokio::signal::unix::Signal;
use tracing::{error, info, warn};

use crate::policy_diff;
use crate::policy_file::{ParsedPolicy, PolicyFile, PolicySource, SourceTexts};
use crate::service::Service;
use crate::telemetry::metrics::ReloadResult;

pub use self::file_watcher::FileWatcher;

/// Maximum number of log lines about the changes or errors of one reload.
const MAX_LOG_LINES: usize = 50;

/// Pause between two reads of a file. A result is used once two successive reads are equal.
const STABLE_READ_INTERVAL: Duration = Duration::from_millis(20);

/// Maximum number of reads while the contents keep changing.
const MAX_STABLE_READS: usize = 50;

/// Pause before a failed read is repeated, because the failure may be temporary.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// An event that may trigger a reload.
enum ReloadEvent {
    /// SIGHUP was received.
    Hangup,
    /// A file system event in a watched directory.
    File(notify::Result<notify::Event>),
}

/// The texts of the policy files, or one line for each error.
type ReadResult = Result<SourceTexts, Vec<String>>;

/// Reloads the policy on its own thread, one reload at a time. Events that arrive during a reload are handled by the
/// next one.
struct PolicyReloader {
    service: Arc<Service>,
    events: Receiver<ReloadEvent>,
    watcher: FileWatcher,
    /// The active policy with its texts.
    current: PolicyFile,
    last_read: ReadResult,
    /// Whether SIGHUP was received since the last reload.
    is_reload_requested: bool,
    /// Whether the file may have changed since the last read.
    has_file_changed: bool,
}

/// Starts to reload the policy of a service from the file that it was read from.
pub fn start(file: PolicyFile, service: Arc<Service>, hangup: Signal) -> io::Result<()> {
    let (sender, events) = mpsc::channel();
    let watcher = FileWatcher::new(file.source.path(), {
        let sender = sender.clone();
        // The receiver is dropped only when the process ends.
        move |event| drop(sender.send(ReloadEvent::File(event)))
    })?;
    let reloader = PolicyReloader {
        service,
        events,
        // The file may have changed before it was watched. A source that is not a file, such as a pipe, can be read
        // only once.
        has_file_changed: is_rereadable(&file.source)
            && read(&file.source) != Ok(file.texts.clone()),
        watcher,
        last_read: Ok(file.texts.clone()),
        current: file,
        is_reload_requested: false,
    };
    thread::Builder::new().name("reload".into()).spawn(|| reloader.run())?;
    tokio::spawn(forward_hangups(hangup, sender));
    Ok(())
}

async fn forward_hangups(mut hangup: Signal, events: Sender<ReloadEvent>) {
    while hangup.recv().await.is_some() && events.send(ReloadEvent::Hangup).is_ok() {}
}

/// Returns whether the source can be read repeatedly: a folder or a regular file.
fn is_rereadable(source: &PolicySource) -> bool {
    source.is_folder() || source.path().metadata().is_ok_and(|found| found.is_file())
}

/// Reads the current contents of a source.
fn read(source: &PolicySource) -> ReadResult {
    if source.path().exists() && !is_rereadable(source) {
        let path = source.path().display();
        return Err(vec![format!("{path}: cannot be reloaded: not a regular file")]);
    }
    source.read_texts().map_err(|error| error.lines())
}

impl PolicyReloader {
    fn run(mut self) {
        loop {
            self.handle_pending_events();
            if self.is_reload_requested
                || (self.has_file_changed && !self.watcher.is_being_written())
            {
                self.reload();
                continue;
            }
            match self.next_event() {
                Ok(event) => self.handle_event(event),
                Err(RecvTimeoutError::Timeout) => self.has_file_changed = true,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn next_event(&self) -> Result<ReloadEvent, RecvTimeoutError> {
        match self.last_read {
            Ok(_) => Ok(self.events.recv()?),
            Err(_) => self.events.recv_timeout(RETRY_INTERVAL),
        }
    }

    fn handle_event(&mut self, event: ReloadEvent) {
        match event {
            ReloadEvent::Hangup => self.is_reload_requested = true,
            ReloadEvent::File(event) => self.has_file_changed |= self.watcher.on_event(&event),
        }
    }

    /// Handles the events that have already arrived.
    fn handle_pending_events(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            self.handle_event(event);
        }
    }

    fn reload(&mut self) {
        self.has_file_changed = false;
        let stable_read = self.read_until_stable();
        let is_reload_requested = mem::take(&mut self.is_reload_requested);
        match stable_read {
            Some(read_result) if is_reload_requested || read_result != self.last_read => {
                self.apply_read(read_result)
            }
            // The contents have not changed since the last read.
            Some(_) => {}
            // The file is read once the writer closes it.
            None if !is_reload_requested && self.watcher.is_being_written() => {}
            None => {
                let path = self.current.source.path().display();
                self.apply_read(Err(vec![format!(
                    "{path}: cannot be read: it is still being written"
                )]));
            }
        }
    }

    /// Reads the source until two successive reads are equal and no file is being written. Returns `None` after
    /// [`MAX_STABLE_READS`] reads.
    fn read_until_stable(&mut self) -> Option<ReadResult> {
        let mut previous = read(&self.current.source);
        for _ in 1..MAX_STABLE_READS {
            thread::sleep(STABLE_READ_INTERVAL);
            self.handle_pending_events();
            let now = read(&self.current.source);
            if now == previous && !self.watcher.is_being_written() {
                // This read is newer than all events handled so far.
                self.has_file_changed = false;
                return Some(now);
            }
            previous = now;
        }
        None
    }

    fn apply_read(&mut self, read_result: ReadResult) {
        self.last_read = read_result.clone();
        let texts = match read_result {
            Ok(texts) if texts == self.current.texts => return self.record_unchanged(),
            Ok(texts) => texts,
            Err(errors) => return self.reject(&errors),
        };
        match self.current.source.parse(&texts, self.current.supports) {
            Ok(meaning) => self.apply_policy(texts, meaning),
            Err(error) => self.reject(&error.lines()),
        }
    }

    fn record_unchanged(&self) {
        self.service.record_reload(ReloadResult::Unchanged, None);
        info!("policy unchanged");
    }

    fn apply_policy(&mut self, texts: SourceTexts, meaning: ParsedPolicy) {
        let ParsedPolicy { policy, notes } = meaning;
        let diff = policy_diff::diff(&self.current.policy, &policy);
        // The policy is replaced even if the diff is empty, because the order of rules determines the order of limits
        // in responses.
        self.service.replace_policy(&policy);
        (self.current.texts, self.current.policy) = (texts, policy);
        if diff.is_empty() {
            return self.record_unchanged();
        }
        self.service.record_reload(ReloadResult::Changed, None);
        info!("the policy has changed: {}", diff.summary());
        log_lines(&diff.lines, |line| info!("{line}"));
        log_notes(&notes);
        if self.current.policy.rules().is_empty() {
            warn!("the policy has no rules: everything passes");
        }
    }

    /// Records a failed reload, and keeps the current policy.
    fn reject(&self, errors: &[String]) {
        let problem = match errors {
            [only] => only.clone(),
            [first, more @ ..] => format!("{first} (and {} more)", more.len()),
            [] => String::new(),
        };
        self.service.record_reload(ReloadResult::Failed, Some(problem));
        log_lines(errors, |line| error!("{line}"));
        error!("policy reload failed; keeping the current policy");
    }
}

/// Logs warnings about parts of a policy that have no effect or an unexpected effect.
pub fn log_notes(notes: &[String]) {
    log_lines(notes, |note| warn!("{note}"));
}

/// Logs at most [`MAX_LOG_LINES`] lines, and the number of omitted lines.
fn log_lines(lines: &[String], log: impl Fn(&str)) {
    for line in lines.iter().take(MAX_LOG_LINES) {
        log(line);
    }
    if let Some(more) = lines.len().checked_sub(MAX_LOG_LINES).filter(|more| *more > 0) {
        log(&format!("and {more} more"));
    }
}

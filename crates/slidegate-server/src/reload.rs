//! Reads the policy again when its file changes, and on SIGHUP. Only a policy that is whole and right ever
//! replaces another.

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
use crate::policy_file::{Meaning, PolicyFile, PolicySource, Texts};
use crate::service::Service;
use crate::telemetry::metrics::ReloadResult;

pub use self::file_watcher::FileWatcher;

/// Lines of the log about one reload, of what changed or of what is wrong.
const MAX_LOG_LINES: usize = 50;

/// Between two readings, which have to be equal.
const STABLE_READ_INTERVAL: Duration = Duration::from_millis(20);

/// How often a file is read that is never the same twice.
const MAX_STABLE_READS: usize = 50;

/// Until a file is read again that could not be: it may be that the system was short of something.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// What makes the reader look.
enum ReloadEvent {
    /// Somebody asks.
    Hangup,
    /// Something happened where the file is.
    File(notify::Result<notify::Event>),
}

/// What a reading found: texts, or why there is none, a line for each reason.
type ReadResult = Result<Texts, Vec<String>>;

/// Reads on a thread of its own, one reload at a time: what happens meanwhile is seen by the next reading.
struct PolicyReloader {
    service: Arc<Service>,
    events: Receiver<ReloadEvent>,
    watcher: FileWatcher,
    /// The policy that holds, and its texts.
    current: PolicyFile,
    last_read: ReadResult,
    /// Somebody has asked since the last reload.
    is_reload_requested: bool,
    /// The file may have changed since it was read last.
    has_file_changed: bool,
}

/// From now on the service follows the policy file from which its policy was read.
pub fn start(file: PolicyFile, service: Arc<Service>, hangup: Signal) -> io::Result<()> {
    let (sender, events) = mpsc::channel();
    let watcher = FileWatcher::new(file.source.path(), {
        let sender = sender.clone();
        // Nobody reads any more only when the process ends.
        move |event| drop(sender.send(ReloadEvent::File(event)))
    })?;
    let reloader = PolicyReloader {
        service,
        events,
        // Before it was watched. What is no file, such as a pipe, can be read only once.
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

/// Whether it is of files; or of nothing, which may become one.
fn is_rereadable(source: &PolicySource) -> bool {
    source.is_folder() || source.path().metadata().is_ok_and(|found| found.is_file())
}

/// What a source says now.
fn read(source: &PolicySource) -> ReadResult {
    if source.path().exists() && !is_rereadable(source) {
        let path = source.path().display();
        return Err(vec![format!("{path}: cannot be read again: it is no file")]);
    }
    source.texts().map_err(|error| error.lines())
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

    /// Notes what has happened meanwhile.
    fn handle_pending_events(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            self.handle_event(event);
        }
    }

    fn reload(&mut self) {
        self.has_file_changed = false;
        let read_until_stable = self.read_until_stable();
        let is_reload_requested = mem::take(&mut self.is_reload_requested);
        match read_until_stable {
            Some(read_result) if is_reload_requested || read_result != self.last_read => {
                self.apply_read(read_result)
            }
            // What was read before.
            Some(_) => {}
            // It is read when it is closed.
            None if !is_reload_requested && self.watcher.is_being_written() => {}
            None => {
                let path = self.current.source.path().display();
                self.apply_read(Err(vec![format!(
                    "{path}: cannot be read: it is still being written"
                )]));
            }
        }
    }

    /// What the file says, as soon as it says the same twice and nobody is writing.
    fn read_until_stable(&mut self) -> Option<ReadResult> {
        let mut before = read(&self.current.source);
        for _ in 1..MAX_STABLE_READS {
            thread::sleep(STABLE_READ_INTERVAL);
            self.handle_pending_events();
            let now = read(&self.current.source);
            if now == before && !self.watcher.is_being_written() {
                // It was read after all that is noted.
                self.has_file_changed = false;
                return Some(now);
            }
            before = now;
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
        match self.current.source.meaning(&texts, self.current.supports) {
            Ok(meaning) => self.apply_policy(texts, meaning),
            Err(error) => self.reject(&error.lines()),
        }
    }

    fn record_unchanged(&self) {
        self.service.record_reload(ReloadResult::Unchanged, None);
        info!("the policy is as it was");
    }

    fn apply_policy(&mut self, texts: Texts, meaning: Meaning) {
        let Meaning { policy, notes } = meaning;
        let changes = policy_diff::diff(&self.current.policy, &policy);
        // Also where nothing is told: the order of rules is that of answers.
        self.service.replace_policy(&policy);
        (self.current.texts, self.current.policy) = (texts, policy);
        if changes.is_empty() {
            return self.record_unchanged();
        }
        self.service.record_reload(ReloadResult::Changed, None);
        info!("the policy has changed: {}", changes.summary());
        log_lines(&changes.lines, |line| info!("{line}"));
        log_notes(&notes);
        if self.current.policy.rules().is_empty() {
            warn!("the policy has no rules: everything passes");
        }
    }

    /// Goes on with the policy that holds.
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

/// Tells what a policy's source says that has no effect, or another than one might think.
pub fn log_notes(notes: &[String]) {
    log_lines(notes, |handle_event| warn!("{handle_event}"));
}

/// Some of the lines, and how many are left out.
fn log_lines(lines: &[String], log: impl Fn(&str)) {
    for line in lines.iter().take(MAX_LOG_LINES) {
        log(line);
    }
    if let Some(more) = lines.len().checked_sub(MAX_LOG_LINES).filter(|more| *more > 0) {
        log(&format!("and {more} more"));
    }
}

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
use crate::policy_file::{ParsedPolicy, PolicyFile, PolicySource};
use crate::policy_input::SourceTexts;
use crate::service::Service;
use crate::telemetry::metrics::ReloadResult;

pub use self::file_watcher::FileWatcher;

/// Maximum number of log lines that list the changes or errors of one reload.
const MAX_LOG_LINES_PER_RELOAD: usize = 50;

/// Pause between two reads of the policy file during a reload. The contents are used only if two successive reads are
/// equal, because a process may be writing the file.
const POLICY_FILE_REREAD_INTERVAL: Duration = Duration::from_millis(20);

/// Maximum number of reads of the policy file in one reload, while its contents keep changing.
const MAX_POLICY_FILE_READS_PER_RELOAD: usize = 50;

/// Pause before the policy file is read again after a failed read, because the failure may be temporary.
const FAILED_READ_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// An event that may trigger a reload.
enum ReloadTrigger {
    /// SIGHUP was received.
    Hangup,
    /// A file system event in a watched directory.
    File(notify::Result<notify::Event>),
}

/// The result of reading the policy files: their texts, or a list of error messages, each of one line.
type PolicyReadResult = Result<SourceTexts, Vec<String>>;

/// The state of the thread that reloads the policy when its file changes or SIGHUP is received. Only one reload runs at
/// a time.
struct PolicyReloader {
    service: Arc<Service>,
    events: Receiver<ReloadTrigger>,
    watcher: FileWatcher,
    /// The active policy, and the texts of the files from which it was parsed.
    current: PolicyFile,
    last_read: PolicyReadResult,
    /// Whether SIGHUP has been received since the last reload.
    is_reload_requested: bool,
    /// Whether the policy file may have changed since the last read.
    has_file_changed: bool,
    /// Whether a policy is being applied. If this is `true` when the loop starts, its last reload panicked.
    is_applying: bool,
}

/// Starts a thread that reloads the policy of a service when `file` changes or SIGHUP is received.
pub fn start(file: PolicyFile, service: Arc<Service>, mut hangup: Signal) -> io::Result<()> {
    let tasks = service.health().background_tasks().clone();
    let (sender, events) = mpsc::channel();
    let watcher = FileWatcher::new(file.source.path(), {
        let sender = sender.clone();
        // The receiver is dropped only when the process ends.
        move |event| drop(sender.send(ReloadTrigger::File(event)))
    })?;
    let mut reloader = PolicyReloader {
        service,
        events,
        // The file may have changed before it was watched. A source that is not a file, such as a pipe, can be read
        // only once.
        has_file_changed: is_folder_or_regular_file(&file.source)
            && read_policy_texts(&file.source) != Ok(file.texts.clone()),
        watcher,
        last_read: Ok(file.texts.clone()),
        current: file,
        is_reload_requested: false,
        is_applying: false,
    };
    tasks.start_thread("policy reload", move || reloader.run_reload_loop())?;
    let forward_signals = async move || forward_sighup_signals(&mut hangup, &sender).await;
    tokio::spawn(tasks.keep_running("policy reload on SIGHUP", forward_signals));
    Ok(())
}

async fn forward_sighup_signals(hangup: &mut Signal, events: &Sender<ReloadTrigger>) {
    while hangup.recv().await.is_some() && events.send(ReloadTrigger::Hangup).is_ok() {}
}

/// Returns `true` if the policy can be read repeatedly: its source is a folder or a regular file, not for example a
/// pipe.
fn is_folder_or_regular_file(source: &PolicySource) -> bool {
    source.is_folder() || source.path().metadata().is_ok_and(|found| found.is_file())
}

/// Reads the current texts of the policy files. If the read fails, returns one line for each error.
fn read_policy_texts(source: &PolicySource) -> PolicyReadResult {
    if source.path().exists() && !is_folder_or_regular_file(source) {
        let path = source.path().display();
        return Err(vec![format!(
            "{path}: cannot be reloaded: not a regular file; use a file or a folder, or restart the server"
        )]);
    }
    source.read_texts().map_err(|error| error.lines())
}

impl PolicyReloader {
    fn run_reload_loop(&mut self) {
        if mem::take(&mut self.is_applying) {
            self.record_failed_reload(&["the reload panicked; see the log".to_owned()]);
        }
        loop {
            self.record_pending_reload_triggers();
            if self.is_reload_requested
                || (self.has_file_changed && !self.watcher.is_being_written())
            {
                self.reload_policy();
                continue;
            }
            match self.wait_for_reload_trigger() {
                Ok(event) => self.record_reload_trigger(event),
                Err(RecvTimeoutError::Timeout) => self.has_file_changed = true,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn wait_for_reload_trigger(&self) -> Result<ReloadTrigger, RecvTimeoutError> {
        match self.last_read {
            Ok(_) => Ok(self.events.recv()?),
            Err(_) => self.events.recv_timeout(FAILED_READ_RETRY_INTERVAL),
        }
    }

    fn record_reload_trigger(&mut self, event: ReloadTrigger) {
        match event {
            ReloadTrigger::Hangup => self.is_reload_requested = true,
            ReloadTrigger::File(event) => self.has_file_changed |= self.watcher.on_event(&event),
        }
    }

    /// Records all reload triggers that have already arrived. Does not wait for further ones.
    fn record_pending_reload_triggers(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            self.record_reload_trigger(event);
        }
    }

    fn reload_policy(&mut self) {
        self.has_file_changed = false;
        let stable_read = self.read_until_contents_are_stable();
        let is_reload_requested = mem::take(&mut self.is_reload_requested);
        match stable_read {
            Some(read_result) if is_reload_requested || read_result != self.last_read => {
                self.apply_policy_read_result(read_result)
            }
            // The contents have not changed since the last read.
            Some(_) => {}
            // The file is read once the writer closes it.
            None if !is_reload_requested && self.watcher.is_being_written() => {}
            None => {
                let path = self.current.source.path().display();
                self.apply_policy_read_result(Err(vec![format!(
                    "{path}: cannot be read: it is still being written; it is read when the writer closes it"
                )]));
            }
        }
    }

    /// Reads the policy files until two successive reads are equal and no file is being written. Returns `None` if this
    /// does not happen within [`MAX_POLICY_FILE_READS_PER_RELOAD`] reads.
    fn read_until_contents_are_stable(&mut self) -> Option<PolicyReadResult> {
        let mut previous = read_policy_texts(&self.current.source);
        for _ in 1..MAX_POLICY_FILE_READS_PER_RELOAD {
            thread::sleep(POLICY_FILE_REREAD_INTERVAL);
            self.record_pending_reload_triggers();
            let now = read_policy_texts(&self.current.source);
            if now == previous && !self.watcher.is_being_written() {
                // This read is newer than all events handled so far.
                self.has_file_changed = false;
                return Some(now);
            }
            previous = now;
        }
        None
    }

    fn apply_policy_read_result(&mut self, read_result: PolicyReadResult) {
        self.last_read = read_result.clone();
        self.is_applying = true;
        self.apply_read_result(read_result);
        self.is_applying = false;
    }

    fn apply_read_result(&mut self, read_result: PolicyReadResult) {
        let texts = match read_result {
            Ok(texts) if texts == self.current.texts => {
                return self.record_reload_of_unchanged_policy();
            }
            Ok(texts) => texts,
            Err(errors) => return self.record_failed_reload(&errors),
        };
        match self.current.source.parse(&texts, self.current.supports) {
            Ok(parsed_policy) => self.apply_parsed_policy(texts, parsed_policy),
            Err(error) => self.record_failed_reload(&error.lines()),
        }
    }

    fn record_reload_of_unchanged_policy(&self) {
        self.service.record_reload(ReloadResult::Unchanged, None);
        info!("policy unchanged");
    }

    fn apply_parsed_policy(&mut self, texts: SourceTexts, parsed_policy: ParsedPolicy) {
        let ParsedPolicy { policy, notes } = parsed_policy;
        let diff = policy_diff::diff(&self.current.policy, &policy);
        // The policy is replaced even if the diff is empty, because the order of rules determines the order of limits
        // in responses.
        self.service.replace_policy(&policy);
        (self.current.texts, self.current.policy) = (texts, policy);
        if diff.is_empty() {
            return self.record_reload_of_unchanged_policy();
        }
        self.service.record_reload(ReloadResult::Changed, None);
        info!("the policy has changed: {}", diff.summary());
        log_at_most_max_lines(&diff.lines, |line| info!("{line}"));
        log_notes(&notes);
        if self.current.policy.rules().is_empty() {
            warn!("the policy has no rules, so all requests are allowed");
        }
    }

    /// Records and logs a failed reload. The current policy stays active.
    fn record_failed_reload(&self, errors: &[String]) {
        let problem = match errors {
            [only] => only.clone(),
            [first, more @ ..] => format!("{first} (and {} more)", more.len()),
            [] => String::new(),
        };
        self.service.record_reload(ReloadResult::Failed, Some(problem));
        log_at_most_max_lines(errors, |line| error!("{line}"));
        error!("policy reload failed; keeping the current policy");
    }
}

/// Logs warnings about parts of a policy that have no effect, or an unexpected effect.
pub fn log_notes(notes: &[String]) {
    log_at_most_max_lines(notes, |note| warn!("{note}"));
}

/// Logs at most [`MAX_LOG_LINES_PER_RELOAD`] of the lines, and then the number of omitted lines.
fn log_at_most_max_lines(lines: &[String], log: impl Fn(&str)) {
    for line in lines.iter().take(MAX_LOG_LINES_PER_RELOAD) {
        log(line);
    }
    if let Some(more) = lines.len().checked_sub(MAX_LOG_LINES_PER_RELOAD).filter(|more| *more > 0) {
        log(&format!("and {more} more"));
    }
}

//! Reloads the policy when its file changes, and on SIGHUP.
//!
//! Only a complete and valid policy replaces the current policy. The file is read every second, which also works on
//! network file systems and through links. [`diff`] describes the changes for the log.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::{io, mem};

use tokio::signal::unix::Signal;
use tracing::{error, info, warn};

use crate::bounds::RELOADABLE_FILE_POLL_INTERVAL;
use crate::decide::Service;
use crate::policy::SourceTexts;
use crate::policy::diff;
use crate::policy::file::{ParsedPolicy, PolicyFile, PolicySource};
use crate::telemetry::metrics::ReloadResult;

/// Maximum number of log lines that list the changes or errors of one reload.
const MAX_LOG_LINES_PER_RELOAD: usize = 50;

/// The result of reading the policy files: their texts, or a list of error messages, each of one line.
type PolicyReadResult = Result<SourceTexts, Vec<String>>;

/// The state of the thread that reloads the policy when its file changes or SIGHUP is received. Only one reload runs at
/// a time.
struct PolicyReloader {
    service: Arc<Service>,
    hangups: Receiver<()>,
    /// Whether the policy is read every second. A source that is not a file, such as a pipe, can be read only once.
    is_rereadable: bool,
    /// The active policy, and the texts of the files from which it was parsed.
    current: PolicyFile,
    /// The last read result that was applied or rejected. An equal result is applied again only after SIGHUP.
    last_processed_read: PolicyReadResult,
    /// The result of the previous read, which the next read must equal; `None` before the first read, and after SIGHUP.
    previous_read: Option<PolicyReadResult>,
    /// Whether SIGHUP has been received since the last reload.
    is_reload_requested: bool,
    /// Whether a policy is being applied. If this is `true` when the loop starts, its last reload panicked.
    is_applying: bool,
    /// Whether the last reload failed.
    has_failed: bool,
}

/// Starts a thread that reloads the policy of a service when `file` changes or SIGHUP is received.
pub fn start(file: PolicyFile, service: Arc<Service>, mut hangup: Signal) -> io::Result<()> {
    let tasks = service.health().background_tasks().clone();
    let (sender, hangups) = mpsc::channel();
    let mut reloader = PolicyReloader {
        service,
        hangups,
        is_rereadable: is_folder_or_regular_file(&file.source),
        last_processed_read: Ok(file.texts.clone()),
        previous_read: None,
        current: file,
        is_reload_requested: false,
        is_applying: false,
        has_failed: false,
    };
    tasks.start_thread("policy reload", move || reloader.run_reload_loop())?;
    let forward_signals = async move || forward_sighup_signals(&mut hangup, &sender).await;
    tokio::spawn(tasks.keep_running("policy reload on SIGHUP", forward_signals));
    Ok(())
}

async fn forward_sighup_signals(hangup: &mut Signal, hangups: &Sender<()>) {
    while hangup.recv().await.is_some() && hangups.send(()).is_ok() {}
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
            match self.hangups.recv_timeout(RELOADABLE_FILE_POLL_INTERVAL) {
                // Discards the previous read: only equal reads that are a full interval apart show that a file is
                // complete.
                Ok(()) => (self.is_reload_requested, self.previous_read) = (true, None),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if self.is_rereadable || self.is_reload_requested {
                self.read_policy();
            }
        }
    }

    /// Reads the policy files. Uses the result if it equals the previous read, which shows that the files are complete,
    /// and if it is new or a reload was requested.
    fn read_policy(&mut self) {
        let now = read_policy_texts(&self.current.source);
        if self.previous_read.as_ref() == Some(&now)
            && (mem::take(&mut self.is_reload_requested) || now != self.last_processed_read)
        {
            self.apply_policy_read_result(now.clone());
        }
        self.previous_read = Some(now);
    }

    fn apply_policy_read_result(&mut self, read_result: PolicyReadResult) {
        self.last_processed_read = read_result.clone();
        self.is_applying = true;
        self.apply_read_result(read_result);
        self.is_applying = false;
    }

    fn apply_read_result(&mut self, read_result: PolicyReadResult) {
        let texts = match read_result {
            Ok(texts) if texts == self.current.texts => {
                return self.record_reload_without_differences("policy unchanged");
            }
            Ok(texts) => texts,
            Err(errors) => return self.record_failed_reload(&errors),
        };
        match self.current.source.parse(&texts, self.current.supports) {
            Ok(parsed_policy) => self.apply_parsed_policy(texts, parsed_policy),
            Err(error) => self.record_failed_reload(&error.lines()),
        }
    }

    /// Records a reload after which the rules are described as before.
    fn record_reload_without_differences(&mut self, message: &str) {
        self.service.record_reload(ReloadResult::Unchanged, None);
        if mem::take(&mut self.has_failed) {
            info!("policy reload succeeded again: {message}");
        } else {
            info!("{message}");
        }
    }

    fn apply_parsed_policy(&mut self, texts: SourceTexts, parsed_policy: ParsedPolicy) {
        let ParsedPolicy { policy, notes } = parsed_policy;
        let diff = diff::diff(&self.current.policy, &policy);
        // The policy is replaced even if the diff is empty, because the order of rules determines the order of limits
        // in responses.
        self.service.replace_policy(&policy);
        (self.current.texts, self.current.policy) = (texts, policy);
        if diff.is_empty() {
            let message =
                "policy replaced: its text has changed, but not the description of its rules";
            return self.record_reload_without_differences(message);
        }
        self.service.record_reload(ReloadResult::Changed, None);
        self.has_failed = false;
        info!("the policy has changed; - before, + now:");
        log_at_most_max_lines(&diff, |line| info!("{line}"));
        log_notes(&notes);
        if self.current.policy.rules().is_empty() {
            warn!("the policy has no rules, so all requests are allowed");
        }
    }

    /// Records and logs a failed reload. The current policy stays active.
    fn record_failed_reload(&mut self, errors: &[String]) {
        let problem = match errors {
            [only] => only.clone(),
            [first, more @ ..] => format!("{first} (and {} more)", more.len()),
            [] => String::new(),
        };
        self.service.record_reload(ReloadResult::Failed, Some(problem));
        log_at_most_max_lines(errors, |line| error!("{line}"));
        error!("policy reload failed; keeping the current policy");
        self.has_failed = true;
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

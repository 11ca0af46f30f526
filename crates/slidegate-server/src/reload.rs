//! Reads the policy again when its file changes, and on SIGHUP. Only a policy that is whole and right ever
//! replaces another.

mod trail;
mod watch;

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;
use std::{mem, thread};

use tokio::signal::unix::Signal;
use tracing::{error, info, warn};

use crate::policy_changes;
use crate::policy_file::{ParsedPolicy, PolicyFile, PolicySource, SourceTexts};
use crate::service::Service;
use crate::watch::metrics::Reloaded;

pub use self::watch::FileWatch;

/// Lines of the log about one reload, of what changed or of what is wrong.
const MAX_LINES: usize = 50;

/// Between two readings, which have to be equal.
const PAUSE: Duration = Duration::from_millis(20);

/// How often a file is read that is never the same twice.
const MAX_READINGS: usize = 50;

/// Until a file is read again that could not be: it may be that the system was short of something.
const RETRY: Duration = Duration::from_secs(1);

/// What makes the reader look.
enum Wake {
    /// Somebody asks.
    Hangup,
    /// Something happened where the file is.
    File(notify::Result<notify::Event>),
}

/// What a reading found: texts, or why there is none, a line for each reason.
type Reading = Result<SourceTexts, Vec<String>>;

/// Reads on a thread of its own, one reload at a time: what happens meanwhile is seen by the next reading.
struct Reader {
    service: Arc<Service>,
    wakes: Receiver<Wake>,
    watch: FileWatch,
    /// The policy that holds, and its texts.
    held: PolicyFile,
    last: Reading,
    /// Somebody has asked since the last reload.
    asked: bool,
    /// The file may have changed since it was read last.
    changed: bool,
}

/// From now on the service follows the policy file from which its policy was read.
pub fn start(file: PolicyFile, service: Arc<Service>, hangup: Signal) -> io::Result<()> {
    let (sender, wakes) = mpsc::channel();
    let watch = FileWatch::new(file.source.path(), {
        let sender = sender.clone();
        // Nobody reads any more only when the process ends.
        move |event| drop(sender.send(Wake::File(event)))
    })?;
    let reader = Reader {
        service,
        wakes,
        // Before it was watched. What is no file, such as a pipe, can be read only once.
        changed: can_be_read_again(&file.source) && read(&file.source) != Ok(file.texts.clone()),
        watch,
        last: Ok(file.texts.clone()),
        held: file,
        asked: false,
    };
    thread::Builder::new().name("reload".into()).spawn(|| reader.run())?;
    tokio::spawn(pass_on(hangup, sender));
    Ok(())
}

async fn pass_on(mut hangup: Signal, wakes: Sender<Wake>) {
    while hangup.recv().await.is_some() && wakes.send(Wake::Hangup).is_ok() {}
}

/// Whether it is of files; or of nothing, which may become one.
fn can_be_read_again(source: &PolicySource) -> bool {
    source.is_folder() || source.path().metadata().is_ok_and(|found| found.is_file())
}

/// What a source says now.
fn read(source: &PolicySource) -> Reading {
    if source.path().exists() && !can_be_read_again(source) {
        let path = source.path().display();
        return Err(vec![format!("{path}: cannot be read again: it is no file")]);
    }
    source.read_texts().map_err(|error| error.lines())
}

impl Reader {
    fn run(mut self) {
        loop {
            self.note_pending();
            if self.asked || (self.changed && !self.watch.is_being_written()) {
                self.reload();
                continue;
            }
            match self.next_wake() {
                Ok(wake) => self.note(wake),
                Err(RecvTimeoutError::Timeout) => self.changed = true,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn next_wake(&self) -> Result<Wake, RecvTimeoutError> {
        match self.last {
            Ok(_) => Ok(self.wakes.recv()?),
            Err(_) => self.wakes.recv_timeout(RETRY),
        }
    }

    fn note(&mut self, wake: Wake) {
        match wake {
            Wake::Hangup => self.asked = true,
            Wake::File(event) => self.changed |= self.watch.sees(&event),
        }
    }

    /// Notes what has happened meanwhile.
    fn note_pending(&mut self) {
        while let Ok(wake) = self.wakes.try_recv() {
            self.note(wake);
        }
    }

    fn reload(&mut self) {
        self.changed = false;
        let settled = self.settled();
        let asked = mem::take(&mut self.asked);
        match settled {
            Some(reading) if asked || reading != self.last => self.judge(reading),
            // What was read before.
            Some(_) => {}
            // It is read when it is closed.
            None if !asked && self.watch.is_being_written() => {}
            None => {
                let path = self.held.source.path().display();
                self.judge(Err(vec![format!("{path}: cannot be read: it is still being written")]));
            }
        }
    }

    /// What the file says, as soon as it says the same twice and nobody is writing.
    fn settled(&mut self) -> Option<Reading> {
        let mut before = read(&self.held.source);
        for _ in 1..MAX_READINGS {
            thread::sleep(PAUSE);
            self.note_pending();
            let now = read(&self.held.source);
            if now == before && !self.watch.is_being_written() {
                // It was read after all that is noted.
                self.changed = false;
                return Some(now);
            }
            before = now;
        }
        None
    }

    fn judge(&mut self, reading: Reading) {
        self.last = reading.clone();
        let texts = match reading {
            Ok(texts) if texts == self.held.texts => return self.keep(),
            Ok(texts) => texts,
            Err(wrong) => return self.refuse(&wrong),
        };
        match self.held.source.parse(&texts, self.held.supports) {
            Ok(meaning) => self.replace(texts, meaning),
            Err(error) => self.refuse(&error.lines()),
        }
    }

    fn keep(&self) {
        self.service.record_reload(Reloaded::Unchanged, None);
        info!("the policy is as it was");
    }

    fn replace(&mut self, texts: SourceTexts, meaning: ParsedPolicy) {
        let ParsedPolicy { policy, notes } = meaning;
        let changes = policy_changes::between(&self.held.policy, &policy);
        // Also where nothing is told: the order of rules is that of answers.
        self.service.replace_policy(&policy);
        (self.held.texts, self.held.policy) = (texts, policy);
        if changes.is_empty() {
            return self.keep();
        }
        self.service.record_reload(Reloaded::Changed, None);
        info!("the policy has changed: {}", changes.summary());
        in_log(&changes.lines, |line| info!("{line}"));
        tell(&notes);
        if self.held.policy.rules().is_empty() {
            warn!("the policy has no rules: everything passes");
        }
    }

    /// Goes on with the policy that holds.
    fn refuse(&self, wrong: &[String]) {
        let problem = match wrong {
            [only] => only.clone(),
            [first, more @ ..] => format!("{first} (and {} more)", more.len()),
            [] => String::new(),
        };
        self.service.record_reload(Reloaded::Failed, Some(problem));
        in_log(wrong, |line| error!("{line}"));
        error!("policy reload failed; keeping the current policy");
    }
}

/// Tells what a policy's source says that has no effect, or another than one might think.
pub fn tell(notes: &[String]) {
    in_log(notes, |note| warn!("{note}"));
}

/// Some of the lines, and how many are left out.
fn in_log(lines: &[String], log: impl Fn(&str)) {
    for line in lines.iter().take(MAX_LINES) {
        log(line);
    }
    if let Some(more) = lines.len().checked_sub(MAX_LINES).filter(|more| *more > 0) {
        log(&format!("and {more} more"));
    }
}

//! Reads the files of TLS again when they change, and on SIGHUP. Only what is whole and right ever replaces
//! what holds.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tracing::{error, info};

use super::{LoadedCertificates, Tls, TlsError, TlsFileContents};
use crate::reload::FileWatch;

/// Between two readings, which have to be equal.
const SETTLE_INTERVAL: Duration = Duration::from_millis(50);

/// How often files are read that are never the same twice, before somebody is told.
const MAX_SETTLE_READS: usize = 40;

/// Until files are read again that could not be used: certificate and key are not replaced at once.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// What makes the follower look.
enum ReloadTrigger {
    Hangup,
    File(notify::Result<notify::Event>),
}

/// Follows the files on a thread of its own.
struct CertificateReloader {
    tls: Arc<Tls>,
    triggers: Receiver<ReloadTrigger>,
    watches: Vec<FileWatch>,
    /// What was found last, if it could not be used.
    last_rejected: Option<Result<TlsFileContents, TlsError>>,
}

impl Tls {
    /// From now on what is told to clients follows the files.
    pub fn reload_on_change(self: &Arc<Self>, hangup: Signal) -> io::Result<()> {
        let (sender, triggers) = mpsc::channel();
        let watch = |path| {
            let sender = sender.clone();
            // Nobody reads any more only when the process ends.
            FileWatch::new(path, move |event| drop(sender.send(ReloadTrigger::File(event))))
        };
        let watches = self.files.paths().map(watch).collect::<io::Result<_>>()?;
        // They may have changed before they were watched.
        drop(sender.send(ReloadTrigger::Hangup));
        tokio::spawn(forward_hangups(hangup, sender));
        let follower =
            CertificateReloader { tls: self.clone(), triggers, watches, last_rejected: None };
        thread::Builder::new().name("tls".into()).spawn(|| follower.run())?;
        Ok(())
    }
}

async fn forward_hangups(mut hangup: Signal, triggers: Sender<ReloadTrigger>) {
    while hangup.recv().await.is_some() && triggers.send(ReloadTrigger::Hangup).is_ok() {}
}

impl CertificateReloader {
    fn run(mut self) {
        loop {
            let changed = match self.next_trigger() {
                Ok(trigger) => self.affects_files(trigger) | self.drain_triggers(),
                Err(RecvTimeoutError::Timeout) => true,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if changed {
                self.reload();
            }
        }
    }

    fn next_trigger(&self) -> Result<ReloadTrigger, RecvTimeoutError> {
        match self.last_rejected {
            Some(_) => self.triggers.recv_timeout(RETRY_INTERVAL),
            None => Ok(self.triggers.recv()?),
        }
    }

    /// Whether the files may have changed by this.
    fn affects_files(&mut self, trigger: ReloadTrigger) -> bool {
        match trigger {
            ReloadTrigger::Hangup => true,
            ReloadTrigger::File(event) => {
                self.watches.iter_mut().fold(false, |changed, watch| watch.sees(&event) | changed)
            }
        }
    }

    /// The same of what has happened meanwhile.
    fn drain_triggers(&mut self) -> bool {
        let mut has_changed = false;
        while let Ok(trigger) = self.triggers.try_recv() {
            has_changed |= self.affects_files(trigger);
        }
        has_changed
    }

    fn reload(&mut self) {
        let read = self.read_settled();
        if read.as_ref().is_ok_and(|contents| *contents == self.tls.current.load().contents) {
            self.last_rejected = None;
            return;
        }
        let loaded = read
            .clone()
            .and_then(|contents| LoadedCertificates::from_contents(&self.tls.files, contents));
        match loaded {
            Ok(certificates) => {
                self.tls.current.store(Arc::new(certificates));
                self.last_rejected = None;
                info!("the certificates of TLS have changed: new connections get the new ones");
            }
            Err(_) if self.last_rejected.as_ref() == Some(&read) => {}
            Err(error) => {
                self.last_rejected = Some(read);
                error!("{error}");
                error!("the certificates of TLS go on as they were: the files cannot be used");
            }
        }
    }

    /// What the files say, as soon as they say the same twice and nobody is writing.
    fn read_settled(&mut self) -> Result<TlsFileContents, TlsError> {
        let mut previous = self.tls.files.read_contents();
        for _ in 1..MAX_SETTLE_READS {
            thread::sleep(SETTLE_INTERVAL);
            self.drain_triggers();
            let now = self.tls.files.read_contents();
            if now == previous && !self.watches.iter().any(FileWatch::is_being_written) {
                return now;
            }
            previous = now;
        }
        previous
    }
}

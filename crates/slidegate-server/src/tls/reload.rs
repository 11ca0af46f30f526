//! Reloads certificates when their files change, and on SIGHUP.
//!
//! Only complete and valid files replace the current certificates.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tracing::{error, info};

use super::{LoadedCertificates, Tls, TlsError, TlsFileContents};
use crate::background::BackgroundTasks;
use crate::reload::FileWatcher;

/// Pause between two reads of the files. Equal contents in both reads mean that the files are complete.
const TLS_FILE_REREAD_INTERVAL: Duration = Duration::from_millis(50);

/// Maximum number of reads while the contents of the files keep changing. After that number, the contents of the last
/// read are used.
const MAX_TLS_FILE_READS_PER_RELOAD: usize = 40;

/// Pause before invalid files are read again. A certificate and its key are not replaced at the same moment, so they
/// may not match for a short time.
const INVALID_FILES_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// An event that triggers a reload of the certificates.
enum ReloadTrigger {
    Hangup,
    File(notify::Result<notify::Event>),
}

/// The reloader of the certificates, which runs on its own thread.
struct CertificateReloader {
    tls: Arc<Tls>,
    triggers: Receiver<ReloadTrigger>,
    watches: Vec<FileWatcher>,
    /// The result of the last read, if the server could not use it: contents that are invalid, or the read error.
    last_rejected: Option<Result<TlsFileContents, TlsError>>,
}

impl Tls {
    /// Starts to reload certificates when their files change, and on SIGHUP.
    pub fn reload_on_change(
        self: &Arc<Self>,
        mut hangup: Signal,
        tasks: &BackgroundTasks,
    ) -> io::Result<()> {
        let (sender, triggers) = mpsc::channel();
        let watch = |path| {
            let sender = sender.clone();
            // The receiver is dropped only when the process ends.
            FileWatcher::new(path, move |event| drop(sender.send(ReloadTrigger::File(event))))
        };
        let watches = self.files.paths().map(watch).collect::<io::Result<_>>()?;
        // The files may have changed before the watches were set up.
        drop(sender.send(ReloadTrigger::Hangup));
        let forward_signals = async move || forward_sighup_signals(&mut hangup, &sender).await;
        tokio::spawn(tasks.clone().keep_running("TLS reload on SIGHUP", forward_signals));
        let mut reloader =
            CertificateReloader { tls: self.clone(), triggers, watches, last_rejected: None };
        tasks.start_thread("TLS reload", move || reloader.run_reload_loop())
    }
}

async fn forward_sighup_signals(hangup: &mut Signal, triggers: &Sender<ReloadTrigger>) {
    while hangup.recv().await.is_some() && triggers.send(ReloadTrigger::Hangup).is_ok() {}
}

impl CertificateReloader {
    fn run_reload_loop(&mut self) {
        loop {
            let has_changed = match self.wait_for_reload_trigger() {
                Ok(trigger) => {
                    self.files_may_have_changed_after(trigger)
                        | self.drain_pending_reload_triggers()
                }
                Err(RecvTimeoutError::Timeout) => true,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if has_changed {
                self.reload_certificates();
            }
        }
    }

    fn wait_for_reload_trigger(&self) -> Result<ReloadTrigger, RecvTimeoutError> {
        match self.last_rejected {
            Some(_) => self.triggers.recv_timeout(INVALID_FILES_RETRY_INTERVAL),
            None => Ok(self.triggers.recv()?),
        }
    }

    /// Returns `true` if `trigger` means that the files may have changed.
    fn files_may_have_changed_after(&mut self, trigger: ReloadTrigger) -> bool {
        match trigger {
            ReloadTrigger::Hangup => true,
            ReloadTrigger::File(event) => self
                .watches
                .iter_mut()
                .fold(false, |changed, watch| watch.on_event(&event) | changed),
        }
    }

    /// Removes all reload triggers from the queue. Returns `true` if they mean that the files may have changed.
    fn drain_pending_reload_triggers(&mut self) -> bool {
        let mut has_changed = false;
        while let Ok(trigger) = self.triggers.try_recv() {
            has_changed |= self.files_may_have_changed_after(trigger);
        }
        has_changed
    }

    fn reload_certificates(&mut self) {
        let read = self.read_until_contents_are_stable();
        if read.as_ref().is_ok_and(|contents| *contents == self.tls.current.load().contents) {
            self.last_rejected = None;
            return;
        }
        let loaded = read
            .clone()
            .and_then(|contents| LoadedCertificates::from_file_contents(&self.tls.files, contents));
        match loaded {
            Ok(certificates) => {
                self.tls.current.store(Arc::new(certificates));
                self.last_rejected = None;
                info!("TLS certificates reloaded; new connections use them");
            }
            Err(_) if self.last_rejected.as_ref() == Some(&read) => {}
            Err(error) => {
                self.last_rejected = Some(read);
                error!("{error}");
                error!("TLS certificate reload failed; keeping the current certificates");
            }
        }
    }

    /// Reads the files until two consecutive reads are equal and no file is being written, but at most
    /// [`MAX_TLS_FILE_READS_PER_RELOAD`] times.
    fn read_until_contents_are_stable(&mut self) -> Result<TlsFileContents, TlsError> {
        let mut previous = self.tls.files.read_contents();
        for _ in 1..MAX_TLS_FILE_READS_PER_RELOAD {
            thread::sleep(TLS_FILE_REREAD_INTERVAL);
            self.drain_pending_reload_triggers();
            let now = self.tls.files.read_contents();
            if now == previous && !self.watches.iter().any(FileWatcher::is_being_written) {
                return now;
            }
            previous = now;
        }
        previous
    }
}

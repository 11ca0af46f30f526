//! Reloads certificates when their files change.
//!
//! Only complete and valid files replace the current certificates.

use std::io;
use std::thread;

use tracing::{error, info};

use super::{TlsError, TlsFileContents, TlsFiles};
use crate::background::BackgroundTasks;
use crate::bounds::RELOADABLE_FILE_POLL_INTERVAL;

/// The contents of the files, or the reason why they cannot be read.
type TlsReadResult = Result<TlsFileContents, TlsError>;

/// The reloader of certificates, which runs on its own thread.
pub struct CertificateReloader<R> {
    files: TlsFiles,
    /// The contents of the files that are in use.
    current: TlsFileContents,
    /// Uses new contents for new connections, or returns the reason why they cannot be used.
    replace: R,
    previous_read: Option<TlsReadResult>,
    /// The last read result that could not be used, so that its error is logged only once.
    last_rejected: Option<TlsReadResult>,
}

impl<R> CertificateReloader<R>
where
    R: Fn(&TlsFileContents) -> Result<(), TlsError> + Send + 'static,
{
    /// Creates a reloader of `files`. `current` are the contents in use, and `replace` starts to use new contents.
    pub fn new(files: TlsFiles, current: TlsFileContents, replace: R) -> Self {
        Self { files, current, replace, previous_read: None, last_rejected: None }
    }

    /// Starts a thread that reads the files in intervals.
    pub fn start(mut self, task: &'static str, tasks: &BackgroundTasks) -> io::Result<()> {
        tasks.start_thread(task, move || {
            loop {
                thread::sleep(RELOADABLE_FILE_POLL_INTERVAL);
                self.read_certificates();
            }
        })
    }

    /// Reads the files. Uses them if they have changed, and if they equal the previous read, which shows that they are
    /// complete.
    fn read_certificates(&mut self) {
        let now = self.files.read_contents();
        if now.as_ref() == Ok(&self.current) {
            self.last_rejected = None;
        } else if self.previous_read.as_ref() == Some(&now)
            && self.last_rejected.as_ref() != Some(&now)
        {
            self.reload_certificates(now.clone());
        }
        self.previous_read = Some(now);
    }

    fn reload_certificates(&mut self, read: TlsReadResult) {
        let replaced = read.clone().and_then(|contents| {
            (self.replace)(&contents)?;
            Ok(contents)
        });
        match replaced {
            Ok(contents) => {
                self.current = contents;
                self.last_rejected = None;
                let file = self.files.cert.path().display();
                info!(%file, "TLS certificates reloaded; new connections use them");
            }
            Err(error) => {
                self.last_rejected = Some(read);
                error!("{error}");
                error!("TLS certificate reload failed; keeping the current certificates");
            }
        }
    }
}

//! Reloads certificates when their files change.
//!
//! Only complete and valid files replace the current certificates.

use std::io;
use std::sync::Arc;
use std::thread;

use tracing::{error, info};

use super::{LoadedCertificates, Tls, TlsError, TlsFileContents};
use crate::background::BackgroundTasks;
use crate::reload::READ_INTERVAL;

/// The contents of the files, or the reason why they cannot be read.
type TlsReadResult = Result<TlsFileContents, TlsError>;

/// The reloader of the certificates, which runs on its own thread.
struct CertificateReloader {
    tls: Arc<Tls>,
    previous_read: Option<TlsReadResult>,
    /// The last result that the server could not use.
    last_rejected: Option<TlsReadResult>,
}

impl Tls {
    /// Starts to reload certificates when their files change.
    pub fn reload_on_change(self: &Arc<Self>, tasks: &BackgroundTasks) -> io::Result<()> {
        let mut reloader =
            CertificateReloader { tls: self.clone(), previous_read: None, last_rejected: None };
        tasks.start_thread("TLS reload", move || {
            loop {
                thread::sleep(READ_INTERVAL);
                reloader.read_certificates();
            }
        })
    }
}

impl CertificateReloader {
    /// Reads the files, and uses them if they are complete and have changed.
    fn read_certificates(&mut self) {
        let now = self.tls.files.read_contents();
        let is_current = now.as_ref() == Ok(&self.tls.current.load().contents);
        if is_current {
            self.last_rejected = None;
        } else if self.previous_read.as_ref() == Some(&now)
            && self.last_rejected.as_ref() != Some(&now)
        {
            self.reload_certificates(now.clone());
        }
        self.previous_read = Some(now);
    }

    fn reload_certificates(&mut self, read: TlsReadResult) {
        let loaded = read
            .clone()
            .and_then(|contents| LoadedCertificates::from_file_contents(&self.tls.files, contents));
        match loaded {
            Ok(certificates) => {
                self.tls.current.store(Arc::new(certificates));
                self.last_rejected = None;
                info!("TLS certificates reloaded; new connections use them");
            }
            Err(error) => {
                self.last_rejected = Some(read);
                error!("{error}");
                error!("TLS certificate reload failed; keeping the current certificates");
            }
        }
    }
}

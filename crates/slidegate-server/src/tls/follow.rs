//! Reads the files of TLS again when they change, and on SIGHUP. Only what is whole and right ever replaces
//! what holds.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tracing::{error, info};

use super::{Certificates, Texts, Tls, TlsError};
use crate::reload::FileWatch;

/// Between two readings, which have to be equal.
const PAUSE: Duration = Duration::from_millis(50);

/// How often files are read that are never the same twice, before somebody is told.
const MAX_READINGS: usize = 40;

/// Until files are read again that could not be used: certificate and key are not replaced at once.
const RETRY: Duration = Duration::from_secs(1);

/// What makes the follower look.
enum Wake {
    Hangup,
    File(notify::Result<notify::Event>),
}

/// Follows the files on a thread of its own.
struct Follower {
    tls: Arc<Tls>,
    wakes: Receiver<Wake>,
    watches: Vec<FileWatch>,
    /// What was found last, if it could not be used.
    refused: Option<Result<Texts, TlsError>>,
}

impl Tls {
    /// From now on what is told to clients follows the files.
    pub fn follow_files(self: &Arc<Self>, hangup: Signal) -> io::Result<()> {
        let (sender, wakes) = mpsc::channel();
        let watch = |path| {
            let sender = sender.clone();
            // Nobody reads any more only when the process ends.
            FileWatch::new(path, move |event| drop(sender.send(Wake::File(event))))
        };
        let watches = self.files.paths().map(watch).collect::<io::Result<_>>()?;
        // They may have changed before they were watched.
        drop(sender.send(Wake::Hangup));
        tokio::spawn(pass_on(hangup, sender));
        let follower = Follower { tls: self.clone(), wakes, watches, refused: None };
        thread::Builder::new().name("tls".into()).spawn(|| follower.run())?;
        Ok(())
    }
}

async fn pass_on(mut hangup: Signal, wakes: Sender<Wake>) {
    while hangup.recv().await.is_some() && wakes.send(Wake::Hangup).is_ok() {}
}

impl Follower {
    fn run(mut self) {
        loop {
            let changed = match self.next_wake() {
                Ok(wake) => self.sees(wake) | self.sees_pending(),
                Err(RecvTimeoutError::Timeout) => true,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if changed {
                self.reload();
            }
        }
    }

    fn next_wake(&self) -> Result<Wake, RecvTimeoutError> {
        match self.refused {
            Some(_) => self.wakes.recv_timeout(RETRY),
            None => Ok(self.wakes.recv()?),
        }
    }

    /// Whether the files may have changed by this.
    fn sees(&mut self, wake: Wake) -> bool {
        match wake {
            Wake::Hangup => true,
            Wake::File(event) => {
                self.watches.iter_mut().fold(false, |seen, watch| watch.sees(&event) | seen)
            }
        }
    }

    /// The same of what has happened meanwhile.
    fn sees_pending(&mut self) -> bool {
        let mut seen = false;
        while let Ok(wake) = self.wakes.try_recv() {
            seen |= self.sees(wake);
        }
        seen
    }

    fn reload(&mut self) {
        let found = self.settled();
        if found.as_ref().is_ok_and(|texts| *texts == self.tls.current.load().texts) {
            self.refused = None;
            return;
        }
        let made = found.clone().and_then(|texts| Certificates::of(&self.tls.files, texts));
        match made {
            Ok(certificates) => {
                self.tls.current.store(Arc::new(certificates));
                self.refused = None;
                info!("the certificates of TLS have changed: new connections get the new ones");
            }
            Err(_) if self.refused.as_ref() == Some(&found) => {}
            Err(wrong) => {
                self.refused = Some(found);
                error!("{wrong}");
                error!("the certificates of TLS go on as they were: the files cannot be used");
            }
        }
    }

    /// What the files say, as soon as they say the same twice and nobody is writing.
    fn settled(&mut self) -> Result<Texts, TlsError> {
        let mut before = self.tls.files.texts();
        for _ in 1..MAX_READINGS {
            thread::sleep(PAUSE);
            self.sees_pending();
            let now = self.tls.files.texts();
            if now == before && !self.watches.iter().any(FileWatch::is_being_written) {
                return now;
            }
            before = now;
        }
        before
    }
}

//! Tells when the file that a path leads to may have changed, or those of a folder, and whether somebody is
//! writing them.
//!
//! Directories are watched, not files: who replaces a file by another that is ready, or swaps a link on the
//! way, as Kubernetes does, never touches the file that was.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf, absolute};

use notify::event::{AccessKind, AccessMode, Event, EventKind, ModifyKind};
use notify::{EventHandler, RecommendedWatcher, RecursiveMode, Watcher};
use tracing::warn;

use super::watched_paths::WatchedPaths;

/// Whether the system tells when a file that was written is closed.
const TELLS_OF_CLOSING: bool = cfg!(any(target_os = "linux", target_os = "android"));

/// How often the trail is followed that is never the same twice.
const MAX_TRAILS: usize = 10;

/// Watches where a file is, or a folder of files.
pub struct FileWatcher {
    path: PathBuf,
    trail: Trail,
    /// None if the system has no more.
    watcher: Option<RecommendedWatcher>,
    /// Directories.
    watched: BTreeSet<PathBuf>,
    /// Those of which it was told that they cannot be.
    unwatched: BTreeSet<PathBuf>,
    /// Files that somebody has begun to write, and not closed yet.
    being_written: BTreeSet<PathBuf>,
}

impl FileWatcher {
    /// Watches from now on, and tells of events, also of other files beside.
    pub fn new(path: &Path, events: impl EventHandler) -> io::Result<Self> {
        let watcher = notify::recommended_watcher(events);
        let mut watch = Self {
            path: absolute(path)?,
            trail: Trail::default(),
            watcher: watcher.map_err(|error| warn_of(path, &error)).ok(),
            watched: BTreeSet::new(),
            unwatched: BTreeSet::new(),
            being_written: BTreeSet::new(),
        };
        watch.follow();
        Ok(watch)
    }

    /// Whether somebody has begun to write a file, and not closed it yet.
    pub fn is_being_written(&self) -> bool {
        !self.being_written.is_empty()
    }

    /// Whether the file may have changed by this, and is whole.
    pub fn on_event(&mut self, event: &notify::Result<Event>) -> bool {
        // Something was missed: anything may have changed.
        let Some(event) = event.as_ref().ok().filter(|event| !event.need_rescan()) else {
            self.being_written.clear();
            self.follow();
            return true;
        };
        let changed = event.paths.iter().fold(false, |changed, path| {
            self.lost_directory(path, event.kind) | self.changed_entry(path, event.kind) | changed
        });
        if changed {
            self.follow();
        }
        changed
    }

    /// A directory that goes, or gets another name, is watched no more; what has its name then may be.
    fn lost_directory(&mut self, path: &Path, kind: EventKind) -> bool {
        let goes = matches!(kind, EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_)));
        let lost = goes && self.watched.remove(path);
        if let Some(watcher) = self.watcher.as_mut().filter(|_| lost) {
            // It may have gone by itself.
            let _ = watcher.unwatch(path);
        }
        lost
    }

    fn changed_entry(&mut self, path: &Path, kind: EventKind) -> bool {
        if !self.trail.has(path) {
            return false;
        }
        let being_written = match kind {
            EventKind::Modify(ModifyKind::Data(_)) => TELLS_OF_CLOSING,
            // Who makes a file then writes it, but a link is there at once, also a hard one.
            EventKind::Create(_) => TELLS_OF_CLOSING && is_empty_file(path),
            EventKind::Access(AccessKind::Close(AccessMode::Write))
            | EventKind::Modify(ModifyKind::Name(_))
            | EventKind::Remove(_) => false,
            _ => return false,
        };
        match being_written {
            true => drop(self.being_written.insert(path.to_owned())),
            false => drop(self.being_written.remove(path)),
        }
        !being_written
    }

    /// Watches all directories on the way as it is now.
    fn follow(&mut self) {
        for _ in 0..MAX_TRAILS {
            let trail = Trail::of_all(&self.path);
            self.watch_all(&trail);
            // It may have changed before it was watched.
            if self.trail == trail {
                return;
            }
            // Of what is not on the way any more, nobody tells when it is closed.
            self.being_written.retain(|path| trail.has(path));
            self.trail = trail;
        }
    }

    fn watch_all(&mut self, trail: &Trail) {
        let Some(watcher) = &mut self.watcher else { return };
        let directories = trail.directories();
        for &directory in &directories {
            // Again, too: another may have its name by now.
            match watcher.watch(directory, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    self.watched.insert(directory.to_owned());
                    self.unwatched.remove(directory);
                }
                Err(error) => {
                    // What has just gone leaves another trail.
                    if directory.exists() && self.unwatched.insert(directory.to_owned()) {
                        warn_of(directory, &error);
                    }
                }
            }
        }
        self.watched.retain(|directory| {
            let stays = directories.contains(&**directory);
            if !stays {
                // It may have gone by itself.
                let _ = watcher.unwatch(directory);
            }
            stays
        });
    }
}

fn warn_of(path: &Path, error: &notify::Error) {
    let path = path.display();
    warn!("{path}: cannot be watched: {error}: it is read again on SIGHUP only");
}

fn is_empty_file(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.is_file() && found.len() == 0)
}

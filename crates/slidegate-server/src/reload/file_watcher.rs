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
const HAS_CLOSE_EVENTS: bool = cfg!(any(target_os = "linux", target_os = "android"));

/// How often the trail is followed that is never the same twice.
const MAX_RESOLVE_ATTEMPTS: usize = 10;

/// Watches where a file is, or a folder of files.
pub struct FileWatcher {
    path: PathBuf,
    watched_paths: WatchedPaths,
    /// None if the system has no more.
    watcher: Option<RecommendedWatcher>,
    /// Directories.
    watched_directories: BTreeSet<PathBuf>,
    /// Those of which it was told that they cannot be.
    failed_directories: BTreeSet<PathBuf>,
    /// Files that somebody has begun to write, and not closed yet.
    files_being_written: BTreeSet<PathBuf>,
}

impl FileWatcher {
    /// Watches from now on, and tells of events, also of other files beside.
    pub fn new(path: &Path, events: impl EventHandler) -> io::Result<Self> {
        let watcher = notify::recommended_watcher(events);
        let mut watch = Self {
            path: absolute(path)?,
            watched_paths: WatchedPaths::default(),
            watcher: watcher.map_err(|error| log_watch_failure(path, &error)).ok(),
            watched_directories: BTreeSet::new(),
            failed_directories: BTreeSet::new(),
            files_being_written: BTreeSet::new(),
        };
        watch.update_watches();
        Ok(watch)
    }

    /// Whether somebody has begun to write a file, and not closed it yet.
    pub fn is_being_written(&self) -> bool {
        !self.files_being_written.is_empty()
    }

    /// Whether the file may have changed by this, and is whole.
    pub fn on_event(&mut self, event: &notify::Result<Event>) -> bool {
        // Something was missed: anything may have changed.
        let Some(event) = event.as_ref().ok().filter(|event| !event.need_rescan()) else {
            self.files_being_written.clear();
            self.update_watches();
            return true;
        };
        let changed = event.paths.iter().fold(false, |changed, path| {
            self.remove_lost_directory(path, event.kind)
                | self.update_entry(path, event.kind)
                | changed
        });
        if changed {
            self.update_watches();
        }
        changed
    }

    /// A directory that goes, or gets another name, is watched no more; what has its name then may be.
    fn remove_lost_directory(&mut self, path: &Path, kind: EventKind) -> bool {
        let goes = matches!(kind, EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_)));
        let lost = goes && self.watched_directories.remove(path);
        if let Some(watcher) = self.watcher.as_mut().filter(|_| lost) {
            // It may have gone by itself.
            let _ = watcher.unwatch(path);
        }
        lost
    }

    fn update_entry(&mut self, path: &Path, kind: EventKind) -> bool {
        if !self.watched_paths.contains(path) {
            return false;
        }
        let files_being_written = match kind {
            EventKind::Modify(ModifyKind::Data(_)) => HAS_CLOSE_EVENTS,
            // Who makes a file then writes it, but a link is there at once, also a hard one.
            EventKind::Create(_) => HAS_CLOSE_EVENTS && is_empty_file(path),
            EventKind::Access(AccessKind::Close(AccessMode::Write))
            | EventKind::Modify(ModifyKind::Name(_))
            | EventKind::Remove(_) => false,
            _ => return false,
        };
        match files_being_written {
            true => drop(self.files_being_written.insert(path.to_owned())),
            false => drop(self.files_being_written.remove(path)),
        }
        !files_being_written
    }

    /// Watches all directories on the way as it is now.
    fn update_watches(&mut self) {
        for _ in 0..MAX_RESOLVE_ATTEMPTS {
            let watched_paths = WatchedPaths::from_path(&self.path);
            self.watch_directories(&watched_paths);
            // It may have changed before it was watched.
            if self.watched_paths == watched_paths {
                return;
            }
            // Of what is not on the way any more, nobody tells when it is closed.
            self.files_being_written.retain(|path| watched_paths.contains(path));
            self.watched_paths = watched_paths;
        }
    }

    fn watch_directories(&mut self, watched_paths: &WatchedPaths) {
        let Some(watcher) = &mut self.watcher else { return };
        let directories = watched_paths.directories();
        for &directory in &directories {
            // Again, too: another may have its name by now.
            match watcher.watch(directory, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    self.watched_directories.insert(directory.to_owned());
                    self.failed_directories.remove(directory);
                }
                Err(error) => {
                    // What has just gone leaves another trail.
                    if directory.exists() && self.failed_directories.insert(directory.to_owned()) {
                        log_watch_failure(directory, &error);
                    }
                }
            }
        }
        self.watched_directories.retain(|directory| {
            let stays = directories.contains(&**directory);
            if !stays {
                // It may have gone by itself.
                let _ = watcher.unwatch(directory);
            }
            stays
        });
    }
}

fn log_watch_failure(path: &Path, error: &notify::Error) {
    let path = path.display();
    warn!("{path}: cannot be watched: {error}: it is read again on SIGHUP only");
}

fn is_empty_file(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.is_file() && found.len() == 0)
}

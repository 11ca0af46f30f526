//! Detects changes of a file, or of the files in a folder, and whether they are still being written.
//!
//! The watcher watches the directories that contain the files, not the files themselves. A watch on a file reports no
//! event if another file is renamed to its path, or if Kubernetes switches a symbolic link on the path.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf, absolute};

use notify::event::{AccessKind, AccessMode, Event, EventKind, ModifyKind};
use notify::{EventHandler, RecommendedWatcher, RecursiveMode, Watcher};
use tracing::warn;

use super::watched_paths::WatchedPaths;

/// Whether the operating system reports an event when a process closes a file that it has written.
const SYSTEM_REPORTS_CLOSED_FILES: bool = cfg!(any(target_os = "linux", target_os = "android"));

/// Maximum number of attempts to resolve a path while symbolic links or directories on it keep changing.
const MAX_PATH_RESOLVE_ATTEMPTS: usize = 10;

/// A watcher of one file, or of all configuration files in a folder.
pub struct FileWatcher {
    path: PathBuf,
    watched_paths: WatchedPaths,
    /// The watcher of the operating system, or `None` if it could not be created.
    watcher: Option<RecommendedWatcher>,
    watched_directories: BTreeSet<PathBuf>,
    /// Directories that could not be watched. The failure of each has been logged.
    failed_directories: BTreeSet<PathBuf>,
    /// Watched files that a process has written to and not closed yet.
    files_being_written: BTreeSet<PathBuf>,
}

impl FileWatcher {
    /// Starts to watch a file or a folder. `events` receives all events in the watched directories, including events of
    /// other files.
    pub fn new(path: &Path, events: impl EventHandler) -> io::Result<Self> {
        let watcher = notify::recommended_watcher(events);
        let mut file_watcher = Self {
            path: absolute(path)?,
            watched_paths: WatchedPaths::default(),
            watcher: watcher.map_err(|error| log_failure_to_watch_directory(path, &error)).ok(),
            watched_directories: BTreeSet::new(),
            failed_directories: BTreeSet::new(),
            files_being_written: BTreeSet::new(),
        };
        file_watcher.resolve_and_watch_path();
        Ok(file_watcher)
    }

    /// Returns `true` if a process has written to a watched file and not closed it yet.
    pub fn is_being_written(&self) -> bool {
        !self.files_being_written.is_empty()
    }

    /// Updates the watches after a file system event. Returns `true` if a watched file may have changed and is
    /// completely written.
    pub fn on_event(&mut self, event: &notify::Result<Event>) -> bool {
        // Events were lost: anything may have changed.
        let Some(event) = event.as_ref().ok().filter(|event| !event.need_rescan()) else {
            self.files_being_written.clear();
            self.resolve_and_watch_path();
            return true;
        };
        let has_changed = event.paths.iter().fold(false, |any_changed, path| {
            self.unwatch_removed_directory(path, event.kind)
                | self.update_files_being_written(path, event.kind)
                | any_changed
        });
        if has_changed {
            self.resolve_and_watch_path();
        }
        has_changed
    }

    /// Stops watching a directory that was removed or renamed, because another directory may have its path now. Returns
    /// `true` if the directory was watched.
    fn unwatch_removed_directory(&mut self, path: &Path, kind: EventKind) -> bool {
        let is_removed =
            matches!(kind, EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_)));
        let was_watched = is_removed && self.watched_directories.remove(path);
        if let Some(watcher) = self.watcher.as_mut().filter(|_| was_watched) {
            // The system may have removed the watch already.
            let _ = watcher.unwatch(path);
        }
        was_watched
    }

    /// Updates the set of files that are being written, after an event of the given kind. Returns `true` if `path` is a
    /// watched file that has changed and is completely written.
    fn update_files_being_written(&mut self, path: &Path, kind: EventKind) -> bool {
        if !self.watched_paths.contains(path) {
            return false;
        }
        let is_being_written = match kind {
            EventKind::Modify(ModifyKind::Data(_)) => SYSTEM_REPORTS_CLOSED_FILES,
            // A new file is usually written next, but a symbolic or hard link is complete immediately.
            EventKind::Create(_) => SYSTEM_REPORTS_CLOSED_FILES && is_empty_file(path),
            EventKind::Access(AccessKind::Close(AccessMode::Write))
            | EventKind::Modify(ModifyKind::Name(_))
            | EventKind::Remove(_) => false,
            _ => return false,
        };
        match is_being_written {
            true => drop(self.files_being_written.insert(path.to_owned())),
            false => drop(self.files_being_written.remove(path)),
        }
        !is_being_written
    }

    /// Resolves the watched path, and watches all directories on which it depends. Repeats this until the resolved path
    /// no longer changes, at most [`MAX_PATH_RESOLVE_ATTEMPTS`] times.
    fn resolve_and_watch_path(&mut self) {
        for _ in 0..MAX_PATH_RESOLVE_ATTEMPTS {
            let watched_paths = WatchedPaths::from_path(&self.path);
            self.watch_directories_of_paths(&watched_paths);
            // The path may have changed before it was watched.
            if self.watched_paths == watched_paths {
                return;
            }
            // No close event arrives for files that are no longer on the path.
            self.files_being_written.retain(|path| watched_paths.contains(path));
            self.watched_paths = watched_paths;
        }
    }

    fn watch_directories_of_paths(&mut self, watched_paths: &WatchedPaths) {
        let Some(watcher) = &mut self.watcher else { return };
        let directories = watched_paths.directories();
        for &directory in &directories {
            // Directories that are already watched are added again, because another directory may have the same path
            // now.
            match watcher.watch(directory, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    self.watched_directories.insert(directory.to_owned());
                    self.failed_directories.remove(directory);
                }
                Err(error) => {
                    // If the directory has just been removed, the next attempt resolves another path.
                    if directory.exists() && self.failed_directories.insert(directory.to_owned()) {
                        log_failure_to_watch_directory(directory, &error);
                    }
                }
            }
        }
        self.watched_directories.retain(|directory| {
            let is_needed = directories.contains(&**directory);
            if !is_needed {
                // The system may have removed the watch already.
                let _ = watcher.unwatch(directory);
            }
            is_needed
        });
    }
}

fn log_failure_to_watch_directory(path: &Path, error: &notify::Error) {
    let path = path.display();
    warn!("{path}: cannot be watched: {error}; changes take effect on SIGHUP only");
}

fn is_empty_file(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.is_file() && found.len() == 0)
}

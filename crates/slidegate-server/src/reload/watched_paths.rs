//! Finds the directory entries to watch for one path: the symbolic links on the path, and the file at its end. If one
//! of these entries changes, the path may lead to a different file.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::ratelimit_config::folder;

/// Maximum number of symbolic links to follow on one path, the same as in Linux.
const MAX_SYMBOLIC_LINKS: usize = 40;

/// The directory entries to watch for one path. If one of them changes, the path may lead to a different file. The
/// entries are the symbolic links on the path, and the file at its end. If a part of the path does not exist, the first
/// missing entry takes the place of the file. The directory of each entry is given without symbolic links.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchedPaths {
    entries: Vec<PathBuf>,
    /// The resolved folder, or `None` if the path leads to a file. All configuration files in the folder are watched,
    /// including new ones.
    folder: Option<PathBuf>,
}

impl WatchedPaths {
    /// Finds the entries to watch for an absolute path. If the path leads to a folder, includes the entries for each
    /// configuration file in the folder.
    pub fn from_path(path: &Path) -> Self {
        let mut watched_paths = Self::from_file(path);
        if path.is_dir() {
            watched_paths.folder = path.canonicalize().ok();
            // A folder that cannot be listed is treated as empty.
            for file in folder::files(path).unwrap_or_default() {
                watched_paths.entries.extend(Self::from_file(&file).entries);
            }
        }
        watched_paths
    }

    /// Finds the entries to watch for an absolute path that leads to a single file.
    pub fn from_file(path: &Path) -> Self {
        let (mut entries, mut resolved, mut remaining) =
            (Vec::new(), PathBuf::new(), path.to_owned());
        while entries.len() <= MAX_SYMBOLIC_LINKS {
            let mut components = remaining.components();
            let Some(next) = components.next() else { break };
            let rest = components.as_path().to_owned();
            match next {
                Component::Prefix(_) | Component::RootDir => resolved.push(next),
                Component::CurDir => {}
                // `resolved` contains no links, so its parent is the parent that the system uses.
                Component::ParentDir => drop(resolved.pop()),
                Component::Normal(name) => {
                    let entry = resolved.join(name);
                    match fs::read_link(&entry) {
                        Ok(target) => {
                            entries.push(entry);
                            remaining = target.join(rest);
                            continue;
                        }
                        Err(_) if rest.as_os_str().is_empty() || !entry.is_dir() => {
                            entries.push(entry);
                            break;
                        }
                        Err(_) => resolved = entry,
                    }
                }
            }
            remaining = rest;
        }
        Self { entries, folder: None }
    }

    /// Returns `true` if `entry` is a watched directory entry, or a configuration file in the watched folder.
    pub fn contains(&self, entry: &Path) -> bool {
        let is_in_folder = || {
            entry.parent() == self.folder.as_deref()
                && entry.file_name().is_some_and(folder::is_config_file)
        };
        self.entries.iter().any(|own| own == entry) || (self.folder.is_some() && is_in_folder())
    }

    /// Returns the directories to watch: the directories that contain the entries, and the watched folder if there is
    /// one.
    pub fn directories(&self) -> BTreeSet<&Path> {
        let parents = self.entries.iter().filter_map(|entry| entry.parent());
        parents.chain(self.folder.as_deref()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Creates an empty temporary directory, and returns its path without symbolic links.
    fn create_empty_temp_directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        path.canonicalize().unwrap()
    }

    #[track_caller]
    fn assert_watched_directory_entries(path: &Path, entries: &[PathBuf]) {
        assert_eq!(WatchedPaths::from_file(path).entries, entries);
    }

    #[test]
    fn symbolic_links_and_targets_are_watched() {
        let root = create_empty_temp_directory("trail");
        let (mounted, first) = (root.join("mounted"), root.join("mounted/..2026_1"));
        fs::create_dir_all(&first).unwrap();
        fs::write(first.join("policy.yaml"), "").unwrap();
        symlink("..2026_1", mounted.join("..data")).unwrap();
        symlink("..data/policy.yaml", mounted.join("policy.yaml")).unwrap();
        symlink(&mounted, root.join("elsewhere")).unwrap();
        let in_mounted =
            [mounted.join("policy.yaml"), mounted.join("..data"), first.join("policy.yaml")];
        assert_watched_directory_entries(&mounted.join("policy.yaml"), &in_mounted);
        let over_link = [&[root.join("elsewhere")], &in_mounted[..]].concat();
        assert_watched_directory_entries(&root.join("./elsewhere/policy.yaml"), &over_link);
        assert_watched_directory_entries(
            &root.join("elsewhere/../mounted/..data/policy.yaml"),
            &[&over_link[..1], &in_mounted[1..]].concat(),
        );
        let watched_paths = WatchedPaths::from_file(&mounted.join("policy.yaml"));
        assert_eq!(watched_paths.directories(), BTreeSet::from([&*mounted, &*first]));
        assert!(watched_paths.contains(&mounted.join("..data")) && !watched_paths.contains(&first));
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn watched_folder_includes_new_config_files() {
        let root = create_empty_temp_directory("trail-of-folder");
        let (mounted, data) = (root.join("mounted"), root.join("mounted/..2026_1"));
        fs::create_dir_all(&data).unwrap();
        fs::write(data.join("a.yaml"), "").unwrap();
        symlink("..2026_1", mounted.join("..data")).unwrap();
        symlink("..data/a.yaml", mounted.join("a.yaml")).unwrap();
        symlink(&mounted, root.join("config")).unwrap();
        let path = root.join("config");
        let watched_paths = WatchedPaths::from_path(&path);
        assert_eq!(watched_paths.directories(), BTreeSet::from([&*root, &*mounted, &*data]));
        for entry in ["config", "mounted/a.yaml", "mounted/..data", "mounted/new.yml"] {
            assert!(watched_paths.contains(&root.join(entry)), "{entry}");
        }
        for entry in ["mounted/..2026_1/b.yaml", "mounted/.hidden.yaml", "mounted/notes.txt"] {
            assert!(!watched_paths.contains(&root.join(entry)), "{entry}");
        }
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn path_resolution_ends_at_missing_directory_entry() {
        let root = create_empty_temp_directory("no-trail");
        assert_watched_directory_entries(&root.join("a/b/c"), &[root.join("a")]);
        symlink("a/b", root.join("link")).unwrap();
        assert_watched_directory_entries(
            &root.join("link/c"),
            &[root.join("link"), root.join("a")],
        );
        fs::write(root.join("file"), "").unwrap();
        assert_watched_directory_entries(&root.join("file/c"), &[root.join("file")]);
        symlink("circle", root.join("circle")).unwrap();
        assert_eq!(
            WatchedPaths::from_file(&root.join("circle")).entries.len(),
            MAX_SYMBOLIC_LINKS + 1
        );
        fs::remove_dir_all(root).unwrap();
    }
}

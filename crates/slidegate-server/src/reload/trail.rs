//! Where a path leads, over links, and those of the files of a folder.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::ratelimit_config::folder;

/// Links that are followed, as many as by the system.
const MAX_LINKS: usize = 40;

/// The entries of directories on which it depends where a path leads: the links on its way, and at last what
/// it leads to, or the first that is not there. No directory of theirs is reached by a link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trail {
    entries: Vec<PathBuf>,
    /// A folder of files of which each counts, also one that comes.
    folder: Option<PathBuf>,
}

impl Trail {
    /// The trail of an absolute path, and if a folder is there, those of its files.
    pub fn of_all(path: &Path) -> Self {
        let mut trail = Self::of(path);
        if path.is_dir() {
            trail.folder = path.canonicalize().ok();
            // What cannot be listed has no files.
            for file in folder::files(path).unwrap_or_default() {
                trail.entries.extend(Self::of(&file).entries);
            }
        }
        trail
    }

    /// The trail of an absolute path.
    pub fn of(path: &Path) -> Self {
        let (mut entries, mut at, mut ahead) = (Vec::new(), PathBuf::new(), path.to_owned());
        while entries.len() <= MAX_LINKS {
            let mut components = ahead.components();
            let Some(next) = components.next() else { break };
            let rest = components.as_path().to_owned();
            match next {
                Component::Prefix(_) | Component::RootDir => at.push(next),
                Component::CurDir => {}
                // In a directory that no link leads to, as the system has it.
                Component::ParentDir => drop(at.pop()),
                Component::Normal(name) => {
                    let entry = at.join(name);
                    match fs::read_link(&entry) {
                        Ok(target) => {
                            entries.push(entry);
                            ahead = target.join(rest);
                            continue;
                        }
                        Err(_) if rest.as_os_str().is_empty() || !entry.is_dir() => {
                            entries.push(entry);
                            break;
                        }
                        Err(_) => at = entry,
                    }
                }
            }
            ahead = rest;
        }
        Self { entries, folder: None }
    }

    /// Whether an entry is on it.
    pub fn has(&self, entry: &Path) -> bool {
        let in_folder = || {
            entry.parent() == self.folder.as_deref()
                && entry.file_name().is_some_and(folder::is_config_file)
        };
        self.entries.iter().any(|one| one == entry) || (self.folder.is_some() && in_folder())
    }

    /// The directories of its entries.
    pub fn directories(&self) -> BTreeSet<&Path> {
        let parents = self.entries.iter().filter_map(|entry| entry.parent());
        parents.chain(self.folder.as_deref()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// An empty directory, by a path without links.
    fn empty(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        path.canonicalize().unwrap()
    }

    #[track_caller]
    fn assert_leads_over(path: &Path, entries: &[PathBuf]) {
        assert_eq!(Trail::of(path).entries, entries);
    }

    #[test]
    fn every_link_is_on_the_trail_and_what_it_leads_to() {
        let root = empty("trail");
        let (mounted, first) = (root.join("mounted"), root.join("mounted/..2026_1"));
        fs::create_dir_all(&first).unwrap();
        fs::write(first.join("policy.yaml"), "").unwrap();
        symlink("..2026_1", mounted.join("..data")).unwrap();
        symlink("..data/policy.yaml", mounted.join("policy.yaml")).unwrap();
        symlink(&mounted, root.join("elsewhere")).unwrap();
        let in_mounted =
            [mounted.join("policy.yaml"), mounted.join("..data"), first.join("policy.yaml")];
        assert_leads_over(&mounted.join("policy.yaml"), &in_mounted);
        let over_link = [&[root.join("elsewhere")], &in_mounted[..]].concat();
        assert_leads_over(&root.join("./elsewhere/policy.yaml"), &over_link);
        assert_leads_over(
            &root.join("elsewhere/../mounted/..data/policy.yaml"),
            &[&over_link[..1], &in_mounted[1..]].concat(),
        );
        let trail = Trail::of(&mounted.join("policy.yaml"));
        assert_eq!(trail.directories(), BTreeSet::from([&*mounted, &*first]));
        assert!(trail.has(&mounted.join("..data")) && !trail.has(&first));
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_folder_has_the_trails_of_its_files_and_those_that_come() {
        let root = empty("trail-of-folder");
        let (mounted, data) = (root.join("mounted"), root.join("mounted/..2026_1"));
        fs::create_dir_all(&data).unwrap();
        fs::write(data.join("a.yaml"), "").unwrap();
        symlink("..2026_1", mounted.join("..data")).unwrap();
        symlink("..data/a.yaml", mounted.join("a.yaml")).unwrap();
        symlink(&mounted, root.join("config")).unwrap();
        let path = root.join("config");
        let trail = Trail::of_all(&path);
        assert_eq!(trail.directories(), BTreeSet::from([&*root, &*mounted, &*data]));
        for entry in ["config", "mounted/a.yaml", "mounted/..data", "mounted/new.yml"] {
            assert!(trail.has(&root.join(entry)), "{entry}");
        }
        for entry in ["mounted/..2026_1/b.yaml", "mounted/.hidden.yaml", "mounted/notes.txt"] {
            assert!(!trail.has(&root.join(entry)), "{entry}");
        }
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn what_is_not_there_ends_the_trail() {
        let root = empty("no-trail");
        assert_leads_over(&root.join("a/b/c"), &[root.join("a")]);
        symlink("a/b", root.join("link")).unwrap();
        assert_leads_over(&root.join("link/c"), &[root.join("link"), root.join("a")]);
        fs::write(root.join("file"), "").unwrap();
        assert_leads_over(&root.join("file/c"), &[root.join("file")]);
        symlink("circle", root.join("circle")).unwrap();
        assert_eq!(Trail::of(&root.join("circle")).entries.len(), MAX_LINKS + 1);
        fs::remove_dir_all(root).unwrap();
    }
}

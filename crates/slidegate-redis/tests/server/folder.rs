//! A temporary folder that is removed when its value is dropped.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static NEXT_FOLDER_NUMBER: AtomicU32 = AtomicU32::new(0);
        let nth = NEXT_FOLDER_NUMBER.fetch_add(1, Ordering::Relaxed);
        // A process with the same id may have left a folder.
        let name = |again: u32| format!("slidegate-{}-{nth}-{again}", std::process::id());
        let free = (0..100).map(|again| std::env::temp_dir().join(name(again)));
        let mut made = free.filter(|path| std::fs::create_dir(path).is_ok()).take(1);
        Self(made.next().unwrap())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

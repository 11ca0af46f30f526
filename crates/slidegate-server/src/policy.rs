//! Reads policies from files of slidegate or of Envoy's reference rate limit server, describes them, and compares two.

pub mod description;
pub mod diff;
pub mod file;
pub mod ratelimit_config;

use std::path::PathBuf;
use std::sync::Arc;

use slidegate::Limit;

/// The path and the text of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileText {
    pub path: PathBuf,
    pub text: Arc<str>,
}

/// The paths and texts of all files of a policy source.
pub type SourceTexts = Arc<[FileText]>;

/// A function that checks whether the store supports a limit. The error contains the reason and an alternative.
pub type LimitSupportCheck = fn(&Limit) -> Result<(), String>;

/// Accepts every limit. Used by commands that have no store.
pub fn accept_any_limit(_: &Limit) -> Result<(), String> {
    Ok(())
}

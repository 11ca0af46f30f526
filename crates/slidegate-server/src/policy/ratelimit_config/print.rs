//! Prints converted rules as the text of a policy file.

use serde::Serialize;

use super::finding::{Finding, escape_control_chars};
use crate::policy::FileText;

/// Returns the text of a policy file. Comments above the policy list the source files and the notes.
pub fn format_policy_file(
    sources: &[FileText],
    notes: &[Finding],
    policy: &impl Serialize,
) -> String {
    let mut text = "# Converted by `slidegate convert` from\n".to_owned();
    for FileText { path, .. } in sources {
        text += &format!("# - {}\n", escape_control_chars(&path.display().to_string()));
    }
    if !notes.is_empty() {
        text += "# Notes:\n";
    }
    for note in notes {
        text += &format!("# - {}\n", escape_control_chars(&note.to_string()));
    }
    let options =
        serde_saphyr::ser_options! { compact_list_indent: false, prefer_block_scalars: false };
    // The result is ignored, because these types can always be serialized, and a write to a string cannot fail.
    let _ = serde_saphyr::to_fmt_writer_with_options(&mut text, policy, options);
    text
}

//! Replays access logs through a policy, and suggests limits.
//!
//! [`LogSource`] reads lines, and `line` or `json_line` parses them. `reorder` sorts the lines by time, and stores them as
//! `line_offsets`. [`Replay`] passes each request through a gate at the time of its line. `stats` counts the decisions
//! per rule and limit, and `key_counts` counts them per key. [`ReplayReport`] prints the counts. Each line is parsed only
//! once. For files of Envoy's reference rate limit server, a request has several [`ExactDescriptors`].
//! [`ReplayProgress`] shows the progress on a terminal.
//!
//! `accuracy` compares the decisions of a limit with an `exact_log`; `demand` measures the peak demand of each client,
//! from which `suggest` derives limits.

mod accuracy;
mod demand;
mod exact_descriptors;
mod exact_log;
mod json_line;
mod key_counts;
mod line;
mod line_offsets;
mod progress;
mod reorder;
mod report;
mod run;
mod source;
mod stats;
mod suggest;

pub use exact_descriptors::ExactDescriptors;
pub use json_line::{FieldMapping, FieldMappingError, JsonFields};
pub use line::{ATTRIBUTE_NAMES, Line, LineError};
pub use progress::ReplayProgress;
pub use report::ReplayReport;
pub use run::{Replay, ReplayOptions, UnparsableLine};
pub use source::{LogSource, NextLine};
pub use stats::ReplayStats;
pub use suggest::Headroom;

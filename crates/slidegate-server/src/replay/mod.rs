//! Replays access logs through a policy.
//!
//! [`source`] reads lines, and [`mod@line`] parses them. [`reorder`] sorts the lines by time, and stores them as
//! [`line_offsets`]. [`run`] passes each request through a gate at the time of its line. [`stats`] counts the decisions
//! per rule and limit, and [`key_counts`] counts them per key. [`report`] prints the counts. Each line is parsed only
//! once. For files of Envoy's reference rate limit server, a request has several [`exact_descriptors`]. [`progress`] shows
//! the progress on a terminal.
//!
//! [`accuracy`] compares the decisions of a limit with an [`exact_log`]; [`demand`] measures the peak demand of each
//! client, from which [`suggest`] derives limits.

pub mod exact_descriptors;
pub mod line;
pub mod progress;
pub mod report;
pub mod run;
pub mod source;
pub mod suggest;

mod accuracy;
mod demand;
mod exact_log;
mod key_counts;
mod line_offsets;
mod reorder;
mod stats;

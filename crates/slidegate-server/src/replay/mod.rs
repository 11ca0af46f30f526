//! Replaying an access log: [`source`] reads lines, [`mod@line`] understands one, [`reorder`] sorts them
//! (and [`line_offsets`] holds them meanwhile), [`run`] takes each through the gate at the time that it names,
//! [`stats`] counts what the gate says, [`report`] tells it.
//!
//! [`accuracy`] compares what a limit says with an [`exact_log`] log of what it admitted; [`demand`] finds out
//! the most that each client asks for, and [`suggest`] makes limits of that.

pub mod report;
pub mod run;
pub mod source;
pub mod suggest;

mod accuracy;
mod demand;
mod exact_log;
mod key_counts;
mod line;
mod line_offsets;
mod reorder;
mod stats;

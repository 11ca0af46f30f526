//! Replaying an access log: [`source`] reads lines, [`mod@line`] understands one, [`order`] sorts them
//! (and [`fields`] holds them meanwhile), [`run`] takes each through the gate at the time that it names,
//! [`tally`] counts what the gate says, [`report`] tells it.
//!
//! [`accuracy`] compares what a limit says with an [`exact`] log of what it admitted; [`demand`] finds out
//! the most that each client asks for, and [`suggest`] makes limits of that.

pub mod report;
pub mod run;
pub mod source;
pub mod suggest;

mod accuracy;
mod demand;
mod exact;
mod fields;
mod keys;
mod line;
mod order;
mod tally;

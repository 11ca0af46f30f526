//! Replaying an access log: [`source`] reads lines, [`mod@line`] understands one, [`order`] sorts them,
//! [`run`] takes each through
//! the gate at the time that it names, [`tally`] counts what the gate says, [`report`] tells it.

pub mod report;
pub mod run;
pub mod source;

mod keys;
mod line;
mod order;
mod tally;

//! Measures decisions of a cluster's store beside those of the memory store, what many active keys cost nodes that
//! tell each other, and what slips through.
//!
//! `make bench-cluster`, or `ARGS=--quick`, or some sections: `ARGS='keys slipped'`. Needs a built server.

mod decisions;
mod keys;
mod slipped;

use std::error::Error;

use lab::part;

fn main() -> Result<(), Box<dyn Error>> {
    part::main(&[("decisions", decisions::run), ("keys", keys::run), ("slipped", slipped::run)])
}

//! Measures decision times of the cluster store compared with the memory store, the replication cost of many active
//! keys, and the overshoot of a cluster.
//!
//! `make bench-cluster`, with `ARGS=--quick`, or with the names of sections: `ARGS='keys slipped'`. The server must be
//! built.

mod decisions;
mod keys;
mod overshoot;

use std::error::Error;

use lab::part;

fn main() -> Result<(), Box<dyn Error>> {
    part::main(&[("decisions", decisions::run), ("keys", keys::run), ("slipped", overshoot::run)])
}

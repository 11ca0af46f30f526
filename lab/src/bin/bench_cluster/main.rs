//! Measures decision times of the cluster store compared with the memory store, the replication cost of many active
//! keys, and the overshoot of a cluster.
//!
//! `make bench-cluster` runs all sections. `ARGS=--quick` shortens the measurements, and `ARGS='keys slipped'` runs
//! only the named sections. The slidegate binary must be built first.

mod decisions;
mod keys;
mod overshoot;

use std::error::Error;

use lab::part;

fn main() -> Result<(), Box<dyn Error>> {
    part::main(&[("decisions", decisions::run), ("keys", keys::run), ("slipped", overshoot::run)])
}

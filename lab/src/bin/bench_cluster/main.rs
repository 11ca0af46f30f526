//! Measures a cluster of three nodes: the replication traffic of many active keys, and the overshoot.

mod overshoot;
mod traffic;

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    lab::program::main("bench_cluster", &[("traffic", traffic::run), ("overshoot", overshoot::run)])
}

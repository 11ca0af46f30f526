//! Measures slidegate's memory store beside what users would pick instead.
//!
//! `make bench-memory`, or `ARGS=--quick`, or some sections: `ARGS='keys batches'`. In full it takes 6 GB.

mod batches;
mod footprint;
mod hot_key;
mod keys;
mod limits;
mod log;

use std::env;
use std::error::Error;

use lab::part;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        [footprint::CHILD, what, keys, key_len] => footprint::child(what, keys, key_len),
        [log::CHILD, what] => log::child(what),
        _ => part::main(&[
            ("keys", keys::run),
            ("batches", batches::run),
            ("limits", limits::run),
            ("footprint", footprint::run),
            ("log", log::run),
            ("hot-key", hot_key::run),
        ]),
    }
}

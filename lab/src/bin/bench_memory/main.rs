//! Measures slidegate's memory store compared with other in-memory limiters.
//!
//! `make bench-memory` runs all sections. `ARGS=--quick` shortens the measurements, and `ARGS='keys batches'` runs only
//! the named sections. A full run needs 6 GB of memory.

mod batches;
mod cached_keys;
mod cluster_of_one;
mod footprint;
mod hot_key;
mod limits;
mod log;
mod sliding_window;
mod uncached_keys;

use std::env;
use std::error::Error;

use lab::part;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        [footprint::CHILD_ARGUMENT, name, keys, key_len] => {
            footprint::run_child(name, keys, key_len)
        }
        [log::CHILD_ARGUMENT, name] => log::run_child(name),
        [sliding_window::CHILD_ARGUMENT, algorithm, keys, charges, keys_in_turns] => {
            sliding_window::run_child([algorithm, keys, charges, keys_in_turns])
        }
        _ => part::main(&[
            ("keys", cached_keys::run),
            ("uncached-keys", uncached_keys::run),
            ("batches", batches::run),
            ("limits", limits::run),
            ("footprint", footprint::run),
            ("sliding-window", sliding_window::run),
            ("log", log::run),
            ("hot-key", hot_key::run),
            ("cluster-of-one", cluster_of_one::run),
        ]),
    }
}

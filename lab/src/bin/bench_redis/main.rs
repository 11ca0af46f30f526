//! Compares slidegate's Redis scripts with published scripts, and measures concurrent callers whose requests share calls,
//! and the calls that the denial cache saves. The program starts its own Redis servers.
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

mod callers;
mod denials;
mod pipelined;
mod redis_server;
mod scripts;

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    lab::program::main(
        "bench_redis",
        &[
            ("log", pipelined::measure_logs),
            ("buckets", pipelined::measure_three_limits),
            ("callers", callers::measure_one_and_three_limits),
            ("sliding-window", callers::measure_sliding_window),
            ("denials", denials::run),
        ],
    )
}

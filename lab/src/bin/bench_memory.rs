//! Measures the memory per key of the memory store and of governor. Each is filled in a process of its own.

use std::collections::hash_map::RandomState;
use std::env;
use std::error::Error;
use std::process::Command;
use std::time::Duration;

use lab::keys::{KEY_LEN, format_key};
use lab::limiters::{BenchLimiter, new_governor};
use lab::program::BenchRun;
use lab::server::resident_bytes;
use slidegate::Limiter;

const LONG_KEY_LEN: usize = 200;

/// The first argument of the child process that fills one limiter.
const CHILD_ARGUMENT: &str = "fill";

const SLIDEGATE: &str = "slidegate";

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        [CHILD_ARGUMENT, name, keys, key_len] => fill(name, keys.parse()?, key_len.parse()?),
        _ => lab::program::main("bench_memory", &[("footprint", measure_footprint)]),
    }
}

fn measure_footprint(run: &mut BenchRun) -> Result<(), Box<dyn Error>> {
    let keys: usize = run.effort.full_or_quick(10_000_000, 1_000_000);
    for (name, key_len) in
        [(SLIDEGATE, KEY_LEN), (SLIDEGATE, LONG_KEY_LEN), ("governor, String keys", KEY_LEN)]
    {
        let mut child = Command::new(env::current_exe()?);
        child.args([CHILD_ARGUMENT, name, &keys.to_string(), &key_len.to_string()]);
        let bytes: f64 = String::from_utf8(child.output()?.stdout)?.trim().parse()?;
        let row = format!("{name}, keys of {key_len} bytes");
        run.record(["memory-footprint", &row, "bytes per key"], bytes / keys as f64);
    }
    Ok(())
}

/// Fills the limiter with this name, and prints the number of bytes by which the memory of this process grows.
fn fill(name: &str, keys: usize, key_len: usize) -> Result<(), Box<dyn Error>> {
    let before = resident_bytes("self")?;
    let slidegate = Limiter::new(["1000/w"])?;
    let governor = new_governor::<String, RandomState>(1_000, Duration::from_secs(7 * 86_400));
    let limiter: &dyn BenchLimiter<String> = if name == SLIDEGATE { &slidegate } else { &governor };
    for nth in 0..keys {
        assert!(limiter.charge_units(&format_key(nth, key_len), 1), "a new key accepts a charge");
    }
    println!("{}", resident_bytes("self")? - before);
    Ok(())
}

//! A reference in another language drives the server over HTTP, over memory and over Redis with the deny cache, and
//! compares every decision, figure and wait. `DIFFERENTIAL_SECONDS=600` runs longer, `DIFFERENTIAL_SEED=7` draws certain
//! requests.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../../../slidegate-redis/tests/server/mod.rs"]
mod server;

use std::process::Command;

use common::Server;
use server::Redis;

fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable}={value} is no number")))
}

#[test]
fn decisions_figures_and_waits_are_those_of_a_reference_in_python() {
    let policy = include_str!("policy.yaml");
    let redis = Redis::start();
    let address = redis.address();
    let memory = Server::start(policy);
    let over_redis = Server::start_with(policy, &["--store", &address, "--redis-timeout", "5s"]);
    let seconds = number("DIFFERENTIAL_SECONDS").unwrap_or(60);
    let seed = number("DIFFERENTIAL_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let output = Command::new("python3")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/differential/differential.py"))
        .args([seconds.to_string(), seed.to_string()])
        .arg(format!("memory=http://{}", memory.address()))
        .arg(format!("redis=http://{}", over_redis.address()))
        .output()
        .unwrap();
    println!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

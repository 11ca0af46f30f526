//! Compares the responses of the server with a reference implementation in Python, over HTTP.
//!
//! Random requests go to a server with the memory store and to a server with Redis and the denial cache. The test
//! compares every decision, every limit status and every wait time. The test takes one minute.
//! `DIFFERENTIAL_SECONDS=600` runs ten minutes, as does `make differential`, and `DIFFERENTIAL_SEED=7` selects the
//! sequence of requests.

use std::process::Command;

use crate::common::Server;
use crate::redis_server::Redis;

/// Returns the number in an environment variable, or `None` if the variable is not set.
fn parse_env_number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable}={value} is not a number")))
}

#[test]
fn server_matches_python_reference() {
    let policy = include_str!("differential/policy.yaml");
    let redis = Redis::start();
    let address = redis.address();
    let memory = Server::start(policy);
    let with_redis =
        Server::start_with_admin(policy, &["--store", &address, "--redis-timeout", "5s"]);
    let seconds = parse_env_number("DIFFERENTIAL_SECONDS").unwrap_or(60);
    let seed =
        parse_env_number("DIFFERENTIAL_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let output = Command::new("python3")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/differential/differential.py"))
        .args([seconds.to_string(), seed.to_string()])
        .arg(format!("memory=http://{}", memory.address()))
        .arg(format!("redis=http://{}=http://{}", with_redis.address(), with_redis.admin_address()))
        .output()
        .unwrap();
    println!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

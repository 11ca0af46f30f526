//! Tests that the records of calls with an idempotency key stay within the memory that the flags allow.

#![cfg(target_os = "linux")]

use std::fmt::Write;
use std::fs;

use serde_json::json;

use crate::common::Server;
use crate::http::client::Client;

/// The number of rules that apply to each call. Each takes a part of the record of the call.
const RULES: usize = 60;

/// The number of calls. Without a bound on bytes, their records take 28 MB.
const CALLS: usize = 4_000;

/// The number of calls before the memory of the server is measured for the first time.
const WARM_UP_CALLS: usize = 200;

/// The page size, the unit of `/proc/PID/statm`, in bytes.
const PAGE_SIZE_BYTES: usize = 4096;

fn read_resident_bytes(server: &Server) -> usize {
    let statm = fs::read_to_string(format!("/proc/{}/statm", server.process_id())).unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * PAGE_SIZE_BYTES
}

/// Returns the bytes by which a server with these flags grows while it decides large calls with different idempotency
/// keys.
fn measure_growth(flags: &[&str]) -> usize {
    let mut policy = String::from("rules:\n");
    for rule in 0..RULES {
        writeln!(policy, "  - {{ name: r{rule}, per: [id], limits: [1000000/h] }}").unwrap();
    }
    let server = Server::start_with(&policy, flags);
    let client = Client::new(&server);
    let check = |call: usize| {
        let call = json!({ "attributes": { "id": "a" }, "idempotency_key": call.to_string() });
        assert_eq!(client.check(&call).status, 200);
    };
    (0..WARM_UP_CALLS).for_each(check);
    let before = read_resident_bytes(&server);
    (WARM_UP_CALLS..CALLS).for_each(check);
    read_resident_bytes(&server).saturating_sub(before)
}

#[test]
fn records_stay_within_max_memory() {
    let grown = measure_growth(&["--max-memory", "16MiB"]);
    assert!(grown < 12_000_000, "{grown}");
}

#[test]
fn records_stay_within_bound_while_redis_is_unavailable() {
    // Nothing listens on the port of the discard service.
    let store = ["--store", "redis://127.0.0.1:9", "--redis-timeout", "5ms"];
    for bound in [["--max-memory", "16MiB"], ["--max-call-records", "100"]] {
        let grown = measure_growth(&[&store[..], &bound].concat());
        assert!(grown < 12_000_000, "{bound:?}: {grown}");
    }
}

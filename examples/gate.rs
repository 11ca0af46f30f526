//! Uses a policy file in your own program, without a slidegate server. The counters are in the memory of the program.
//!
//! ```sh
//! cargo run -p slidegate --example gate
//! ```

use std::error::Error;

use slidegate::{Descriptor, Gate, ManualClock, MemoryStore, Policy, Request, Timestamp};

fn main() -> Result<(), Box<dyn Error>> {
    // An invalid policy is an error that lists all problems with their positions.
    let policy = Policy::from_yaml(include_str!("public-api.yaml"))?;
    // A manual clock, so that the output is always the same. A service uses `MemoryStore::new()`.
    let clock = ManualClock::at(Timestamp::from_secs(1_750_000_000));
    let gate = Gate::new(policy, MemoryStore::with_clock(clock, 1_000_000));

    for (method, path, key, plan) in [
        ("GET", "/v1/items/7", "k1", "free"),
        ("GET", "/v1/items/8", "k1", "pro"),
        ("GET", "/v1/search?q=a", "k1", "pro"),
        ("POST", "/v1/exports", "k1", "pro"),
        ("POST", "/v1/exports", "k1", "pro"),
        ("POST", "/v1/exports", "k1", "pro"),
        ("GET", "/v1/items/7", "leaked", "free"),
    ] {
        let attributes = [("method", method), ("path", path), ("api_key", key), ("plan", plan)];
        let decision = gate.check(&Request::new("default", Descriptor::new(attributes)));
        // The binding limit: the limit that denies, or else the limit closest to its maximum.
        let limit = decision.binding().map_or("nothing", |limit| limit.policy_name());
        match decision.is_allowed() {
            true => println!("{method} {path}: {limit} has {} left", decision.remaining()),
            false => println!("{method} {path}: denied by {limit}, {:?}", decision.retry_after()),
        }
    }
    Ok(())
}

// It prints:
//
// GET /v1/items/7: per-caller.1s has 9 left
// GET /v1/items/8: per-caller has 98 left
// GET /v1/search?q=a: search has 4 left
// POST /v1/exports: exports.1m has 1 left
// POST /v1/exports: exports.1m has 0 left
// POST /v1/exports: denied by exports.1m, Some(60s)
// GET /v1/items/7: denied by per-caller, None

//! Defines limits in code, without a policy file: each customer may send 3 requests in any second, and use 10,000 units
//! a day.
//!
//! ```sh
//! cargo run -p slidegate --example limiter
//! ```

use slidegate::{Check, Limiter, LimiterError, ManualClock, MemoryStore, Timestamp};

fn main() -> Result<(), LimiterError> {
    // A manual clock, so that the output is always the same. A real service uses
    // `Limiter::new(["3/s", "10000/d"])?`.
    let clock = ManualClock::at(Timestamp::from_secs(1_750_000_000));
    let store = MemoryStore::with_clock(clock.clone(), 1_000_000);
    let limiter = Limiter::with_store("customers", ["3/s", "10000/d"], store)?;

    // Any hashable value can be a key.
    for nth in 1..=4 {
        let decision = limiter.check(&("customer", 42));
        match decision.is_allowed() {
            true => println!("{nth}: served, {} left", decision.remaining()),
            false => println!("{nth}: denied, come back in {:?}", decision.retry_after()),
        }
    }

    // A request after `retry_after` is allowed.
    let wait = limiter.peek(&("customer", 42)).retry_after().unwrap_or_default();
    clock.advance(wait);
    println!("after {wait:?}: allowed is {}", limiter.check(&("customer", 42)).is_allowed());

    // If the charged units are not used after all, the charge can be reverted.
    let decision = limiter.check(Check::new(&("customer", 7)).cost(3));
    println!("left for a batch of 3: {}", decision.remaining());
    limiter.revert(&decision);
    println!("after giving it back: {}", limiter.peek(&("customer", 7)).remaining());
    Ok(())
}

// It prints:
//
// 1: served, 2 left
// 2: served, 1 left
// 3: served, 0 left
// 4: denied, come back in Some(1s)
// after 1s: allowed is true
// left for a batch of 3: 0
// after giving it back: 3

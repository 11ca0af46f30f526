//! A background worker that waits for its turn: it sends at most 2 mails per 100 ms.
//!
//! ```sh
//! cargo run -p slidegate --features tokio --example worker
//! ```

use std::error::Error;

use slidegate::{Check, Limiter};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    // Over Redis, `Limiter::with_store("mails", ["2/100ms"], RedisStore::open(address, settings)?)?`.
    let limiter = Limiter::new(["2/100ms"])?.named("mails");

    for mail in 1..=5 {
        // The decision is needed only to settle or revert the charge.
        let _ = limiter.wait_async("smtp.example").await?;
        println!("mail {mail} sent");
    }
    // A cost above the limit never fits: an error, and no endless wait.
    if let Err(error) = limiter.wait_async(Check::new("smtp.example").cost(3)).await {
        println!("{error}");
    }
    Ok(())
}

// It prints:
//
// mail 1 sent
// mail 2 sent
// mail 3 sent
// mail 4 sent
// mail 5 sent
// denied by the limit `mails` (cost_exceeds_max)

//! Limits in code with counters in Redis, which all instances of a service share.
//!
//! ```sh
//! REDIS_URL=redis://127.0.0.1:6379 cargo run -p slidegate-redis --example redis_limiter
//! ```

use std::env;
use std::error::Error;
use std::time::Duration;

use slidegate::{Check, Limiter, OnStoreError};
use slidegate_redis::{RedisSettings, RedisStore};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    // The default timeout of 15 ms suits services. The first call of this program waits for the connection.
    let settings = RedisSettings { timeout: Duration::from_secs(1), ..RedisSettings::default() };
    let store = RedisStore::open(&address, settings)?;
    // Other limiters in the same Redis have other names, and so other counters.
    let limiter = Limiter::with_store("example", ["3/h", "10000/d"], store)?;
    // While Redis is unavailable, this limiter allows all calls. By default, it counts in memory.
    let limiter = limiter.on_store_error(OnStoreError::Allow);

    // A key is a string, an integer, an IP address, or a pair of them.
    let key = ("customer", 42);
    limiter.reset_async(&key).await?;
    for nth in 1..=4 {
        let decision = limiter.check_async(&key).await;
        match decision.is_allowed() {
            true => println!("{nth}: served, {} left", decision.remaining()),
            false => {
                println!("{nth}: denied, retry is possible: {}", decision.retry_after().is_some())
            }
        }
    }

    // An estimated cost is corrected when the actual cost is known.
    let key = ("customer", 7);
    limiter.reset_async(&key).await?;
    let decision = limiter.check_async(Check::new(&key).cost(3)).await;
    limiter.settle_async(&decision, 1).await?;
    println!("after settling: {} left", limiter.peek_async(&key).await.remaining());
    Ok(())
}

// It prints:
//
// 1: served, 2 left
// 2: served, 1 left
// 3: served, 0 left
// 4: denied, retry is possible: true
// after settling: 2 left

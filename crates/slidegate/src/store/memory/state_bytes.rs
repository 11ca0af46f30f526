//! The memory that the state of one key takes.

use crate::algorithm::{AnyCounter, with_counter};
use crate::limit::Limit;
use crate::store::table::bucket_bytes;

use super::shard::HasStateTable;

impl Limit {
    /// Returns the largest number of bytes that one key of this limit takes in a [`MemoryStore`](crate::MemoryStore): its
    /// slot, its share of the free slots of the tables, and the largest heap allocation of its state. The share of the
    /// free slots is at most three quarters of a slot, on average over the shards of a store with several hundred keys each.
    ///
    /// The largest allocation is reached with `sliding_buckets` when every bucket has units, and with `sliding_log` and
    /// `sliding_window` when charges without a check, such as reported ones, have filled the log to twice its max. Most
    /// keys take far less.
    ///
    /// ```
    /// use slidegate::{Algorithm, Limit};
    /// use std::time::Duration;
    ///
    /// let counter = Limit::new("100/min".parse()?, Algorithm::SlidingCounter)?;
    /// assert_eq!(counter.max_state_bytes(), 57);
    /// let precision = Some(Duration::from_secs(60));
    /// let buckets = Limit::new("10000/d".parse()?, Algorithm::SlidingBuckets { precision })?;
    /// assert_eq!(buckets.max_state_bytes(), 11_655);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn max_state_bytes(&self) -> usize {
        let heap_bytes = match self.counter() {
            AnyCounter::SlidingLog(counter) => counter.max_heap_bytes(),
            AnyCounter::SlidingBuckets(counter) => counter.max_heap_bytes(),
            AnyCounter::SlidingWindow(counter) => counter.max_heap_bytes(),
            AnyCounter::Concurrent(counter) => counter.max_heap_bytes(),
            AnyCounter::SlidingCounter(_)
            | AnyCounter::FixedWindow(_)
            | AnyCounter::TokenBucket(_) => 0,
        };
        let bucket_bytes = with_counter!(self.counter(), counter => table_bucket_bytes(counter));
        bucket_bytes + bucket_bytes * 3 / 4 + heap_bytes
    }
}

fn table_bucket_bytes<C: HasStateTable>(_: C) -> usize {
    bucket_bytes::<C::State>()
}

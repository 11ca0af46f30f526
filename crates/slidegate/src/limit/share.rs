//! Shares of a limit, for instances that count independently, and for the sub-keys of one key.

use std::num::NonZeroU32;

use super::Limit;
use crate::algorithm::AnyCounter;
use crate::algorithm::concurrent::Concurrent;
use crate::algorithm::fixed_window::FixedWindow;
use crate::algorithm::sliding_buckets::SlidingBuckets;
use crate::algorithm::sliding_counter::SlidingCounter;
use crate::algorithm::sliding_log::SlidingLog;
use crate::algorithm::sliding_window::SlidingWindow;
use crate::algorithm::token_bucket::TokenBucket;
use crate::quota::Quota;

impl Limit {
    /// Returns this instance's share of the limit, if several instances enforce it independently: max and burst are
    /// divided by the number of instances, and at least 1 unless they are 0.
    pub(crate) fn instance_share(&self, instances: NonZeroU32) -> Self {
        let instances = u64::from(instances.get());
        self.map_units(|units| (units / instances).max(units.min(1)))
    }

    /// Returns the share of the sub-key `part`, counted from 0, of a limit that is split into `parts` sub-keys. The
    /// shares add up to exactly the limit: the remainders of max and burst go to the first sub-keys, one unit each.
    pub(crate) fn sub_key_share(&self, part: u32, parts: NonZeroU32) -> Self {
        let (part, parts) = (u64::from(part), u64::from(parts.get()));
        self.map_units(|units| units / parts + u64::from(part < units % parts))
    }

    /// Returns the limit with max, burst and largest debt each replaced by the value that `share` returns for it.
    fn map_units(&self, share: impl Fn(u64) -> u64) -> Self {
        let quota = self.quota();
        let quota = Quota::from_parts(share(quota.max()), quota.window_us());
        Self::from_counter(match self.counter {
            AnyCounter::SlidingLog(_) => AnyCounter::SlidingLog(SlidingLog::new(&quota)),
            AnyCounter::SlidingBuckets(counter) => {
                AnyCounter::SlidingBuckets(SlidingBuckets::new(&quota, counter.precision_us()))
            }
            AnyCounter::SlidingWindow(counter) => {
                AnyCounter::SlidingWindow(SlidingWindow::new(&quota, counter.resolution()))
            }
            AnyCounter::SlidingCounter(_) => {
                AnyCounter::SlidingCounter(SlidingCounter::new(&quota))
            }
            AnyCounter::FixedWindow(counter) => {
                AnyCounter::FixedWindow(FixedWindow::new(&quota, counter.align()))
            }
            AnyCounter::TokenBucket(counter) => {
                let (burst, max_debt) = (share(counter.burst()), share(counter.max_debt()));
                AnyCounter::TokenBucket(TokenBucket::new(&quota, burst, max_debt))
            }
            AnyCounter::Concurrent(_) => AnyCounter::Concurrent(Concurrent::new(&quota)),
        })
    }
}

//! Options of a rule for stores that count in Redis, and the selection of one sub-key if a counter is split over
//! several.

use std::hash::Hasher;
use std::num::NonZeroU32;

use fnv::FnvHasher;

use super::attributes::DescriptorAttributes;
use crate::redis_options::RedisOptions;

/// The `redis` options of a rule. Stores that do not count in Redis ignore these options.
#[derive(Clone, Debug)]
pub struct RuleRedisOptions {
    /// The options of the rule. The key scopes of each limit contain a copy of these options that is adapted to the
    /// limit.
    pub(super) options: RedisOptions,
    pub(super) split_by: Box<[Box<str>]>,
}

impl RuleRedisOptions {
    /// Returns the indexes of the entries of `per` whose values determine the hash slot in Redis Cluster. The list is
    /// empty if the values of all entries determine it.
    pub fn slot_by(&self) -> &[usize] {
        self.options.slot_by()
    }

    /// Returns the names of the attributes whose values select the sub-key of a request, which is one of the Redis keys
    /// over which a counter is split.
    pub fn split_by(&self) -> impl Iterator<Item = &str> {
        self.split_by.iter().map(|name| &**name)
    }

    /// Returns the number of Redis keys (sub-keys) over which each counter is split; `None` if the counters are not
    /// split.
    pub fn split_into(&self) -> Option<NonZeroU32> {
        self.options.split_into()
    }

    /// Returns the sampling ratio `n`: one in `n` requests is sent to Redis. The ratio is 1 if all requests are sent.
    pub fn sample(&self) -> NonZeroU32 {
        self.options.sample()
    }

    /// Returns the index of the sub-key of a request; `None` if counters are not split. The index is a stable hash of
    /// the attributes in `split_by`, so every process selects the same sub-key.
    pub(super) fn sub_key_index_for_request(
        &self,
        attributes: &DescriptorAttributes<'_, '_>,
    ) -> Option<u16> {
        let part_count = self.split_into()?;
        let mut hasher = FnvHasher::default();
        for name in self.split_by() {
            // The bytes that end a value or mark an absent one do not occur in UTF-8 text, so different combinations of
            // values never have the same bytes.
            match attributes.get(name) {
                Some(value) => {
                    hasher.write(value.as_bytes());
                    hasher.write(&[0xFF]);
                }
                None => hasher.write(&[0xFE]),
            }
        }
        let hash = hasher.finish();
        // The lowest bits of an FNV hash alone are not distributed evenly enough, so the upper half is mixed into them.
        Some(((hash ^ (hash >> 32)) as u32 % part_count) as u16)
    }
}

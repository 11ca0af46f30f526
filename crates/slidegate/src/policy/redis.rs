//! Options of a rule for stores that count in Redis, and the choice of the sub-key of a request.

use std::hash::Hasher;
use std::num::NonZeroU32;

use fnv::FnvHasher;

use super::Attributes;
use crate::redis_options::RedisOptions;

/// The `redis` options of a rule; other stores ignore them.
#[derive(Clone, Debug)]
pub struct RuleRedisOptions {
    /// The options of the rule, independent of a limit. The scopes of each limit have their own copy.
    pub(super) options: RedisOptions,
    pub(super) split_by: Box<[Box<str>]>,
}

impl RuleRedisOptions {
    /// Returns the indexes of the entries of `per` that choose the hash slot; empty if all do.
    pub fn slot_by(&self) -> &[usize] {
        self.options.slot_by()
    }

    /// Returns the attributes whose values choose the sub-key.
    pub fn split_by(&self) -> impl Iterator<Item = &str> {
        self.split_by.iter().map(|name| &**name)
    }

    /// Returns the number of sub-keys of each key; `None` if the counters are not split.
    pub fn split_into(&self) -> Option<NonZeroU32> {
        self.options.split_into()
    }

    /// Returns `n` if one in `n` requests is sent to Redis; 1 if all are.
    pub fn sample(&self) -> NonZeroU32 {
        self.options.sample()
    }

    /// Returns the index of the sub-key of a request: the same in every process.
    pub(super) fn part(&self, attributes: &Attributes<'_, '_>) -> Option<u16> {
        let part_count = self.split_into()?;
        let mut hasher = FnvHasher::default();
        for name in self.split_by() {
            // Neither byte occurs in UTF-8 text.
            match attributes.get(name) {
                Some(value) => {
                    hasher.write(value.as_bytes());
                    hasher.write(&[0xFF]);
                }
                None => hasher.write(&[0xFE]),
            }
        }
        let hash = hasher.finish();
        // The lowest bits of FNV alone are not distributed evenly enough.
        Some(((hash ^ (hash >> 32)) as u32 % part_count) as u16)
    }
}

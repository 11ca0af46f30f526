//! What a rule says to stores that count in Redis, and to which sub-key a request goes.

use std::hash::Hasher;
use std::num::NonZeroU32;

use fnv::FnvHasher;

use super::Attributes;
use crate::redis_options::RedisOptions;

/// What a rule says to stores that count in Redis; other stores ignore it.
#[derive(Clone, Debug)]
pub struct RuleRedis {
    /// Whatever the limit: the scopes of each limit have their own.
    pub(super) settings: RedisOptions,
    pub(super) split_by: Box<[Box<str>]>,
}

impl RuleRedis {
    /// The entries of `per` that choose the hash slot, by their places; none: all do.
    pub fn slot_by(&self) -> &[usize] {
        self.settings.slot_by()
    }

    /// The attributes whose values choose the sub-key.
    pub fn split_by(&self) -> impl Iterator<Item = &str> {
        self.split_by.iter().map(|name| &**name)
    }

    /// Over how many sub-keys each identity is spread.
    pub fn split_into(&self) -> Option<NonZeroU32> {
        self.settings.split_into()
    }

    /// One request in so many asks; 1: all do.
    pub fn sample(&self) -> NonZeroU32 {
        self.settings.sample()
    }

    /// The sub-key of a request: the same in every process.
    pub(super) fn part(&self, attributes: &Attributes<'_, '_>) -> Option<u16> {
        let into = self.split_into()?;
        let mut hasher = FnvHasher::default();
        for name in self.split_by() {
            // Neither byte stands in any text.
            match attributes.get(name) {
                Some(value) => {
                    hasher.write(value.as_bytes());
                    hasher.write(&[0xFF]);
                }
                None => hasher.write(&[0xFE]),
            }
        }
        let hash = hasher.finish();
        // The lowest bits of FNV alone are too much alike.
        Some(((hash ^ (hash >> 32)) as u32 % into) as u16)
    }
}

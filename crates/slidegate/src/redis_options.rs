//! Options of a limit for stores that count in Redis; other stores ignore them.
//!
//! The options are part of the scope of a key. They do not change the identity of the key (`Key::values_text`). The
//! store derives hash slots and the names of sub-keys from them. This module also checks whether a limit supports the
//! options.

use std::num::NonZeroU32;

use thiserror::Error;

use crate::limit::Limit;

/// Options for the keys of one limit in Redis; other stores ignore them.
///
/// The options select the hash slot, split keys into sub-keys, and charge only a sample of the requests.
///
/// ```
/// use slidegate::Limit;
/// use slidegate::store::{Key, RedisOptions, Scope};
///
/// let limit: Limit = "100/s".parse()?;
/// let scope = Scope::new("api", "hot", "1s", &["tenant"]);
/// let scope = scope.with_redis(RedisOptions::new(&limit).with_split(8)?);
/// let values = ["acme".into()];
/// let key = Key::new(&scope, &values).with_sub_key(3);
/// assert_eq!(key.sub_key_index(), Some(3));
/// assert_eq!(key.limit_share().unwrap().quota().max(), 13);     // 4 of the 8 have 13, the others 12
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisOptions {
    /// The limit to which the options apply.
    limit: Limit,
    /// The indices of the values that determine the hash slot. If the list is empty, all values determine it.
    slot_by: Box<[usize]>,
    /// The division of the limit over sub-keys, if it is split.
    split: Option<LimitSplit>,
    /// The sampling interval n: only one request in n is charged, with n times its cost.
    sample: NonZeroU32,
}

/// The division of a limit over several sub-keys.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LimitSplit {
    parts: NonZeroU32,
    /// The shares of the limit, largest first. Each share applies to a range of sub-key indices. The number before a
    /// share is the exclusive end of its range. The first range begins at 0, each other range at the end of the
    /// previous one. There are up to three different shares, since max and burst have different remainders.
    shares: [(u32, Limit); 3],
}

/// Invalid options for Redis.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RedisOptionsError {
    /// `slot_by` is empty.
    #[error("`slot_by` is empty; list entries of `per`, or remove `slot_by`")]
    EmptySlotBy,
    /// `slot_by` lists an entry of `per` twice.
    #[error("`slot_by` lists an entry of `per` twice; remove one")]
    DuplicateSlotBy,
    /// Both `slot_by` and `split` are set.
    #[error(
        "`slot_by` keeps counters in one hash slot, but `split` spreads them over several; remove one of the two"
    )]
    SlotByWithSplit,
    /// The number of sub-keys is out of bounds.
    #[error("a counter cannot be split into {0}; write 2 to {max}", max = RedisOptions::MAX_SUB_KEYS)]
    Parts(u32),
    /// Some sub-keys would have a share of 0.
    #[error(
        "a {quantity} of {units} cannot be split into {parts}, because each part needs at least 1; increase `{quantity}`, or decrease `into`"
    )]
    EmptyShare {
        /// The parameter of the limit that is too small for the split: `max` or `burst`.
        quantity: &'static str,
        /// The value of this parameter, in units.
        units: u64,
        /// The number of sub-keys.
        parts: NonZeroU32,
    },
    /// The sampling interval is out of bounds.
    #[error("a sample of one in {0} requests is not supported; use one in 2 to one in {max}", max = RedisOptions::MAX_SAMPLING_INTERVAL)]
    Sample(u32),
    /// The limit bounds the requests in flight, which cannot be sampled.
    #[error(
        "`sample` counts one request in n, but each request in flight needs its own permit; remove `sample`, or move the limit with `concurrent` to another rule"
    )]
    SampledPermits,
    /// The charge of a sampled request never fits. The charge includes the costs of the requests that are not sent to
    /// Redis.
    #[error(
        "every request is denied, because one request in {sample} is charged {sample} times its cost, and {}; increase the limit, or `sample`",
        describe_capacity(*capacity, *parts)
    )]
    SampleNeverFits {
        /// The sampling interval n: only one request in n is charged, with n times its cost.
        sample: NonZeroU32,
        /// The number of units that fit at once into the limit or, with a split, into its smallest share.
        capacity: u64,
        /// The number of sub-keys, if the limit is split.
        parts: Option<NonZeroU32>,
    },
}

fn describe_capacity(capacity: u64, parts: Option<NonZeroU32>) -> String {
    match parts {
        None => format!("at most {capacity} units fit"),
        Some(parts) => format!("at most {capacity} units fit in each of {parts} parts"),
    }
}

impl RedisOptions {
    /// The largest number of sub-keys into which a key can be split.
    pub const MAX_SUB_KEYS: u32 = 1_024;

    /// The largest sampling interval: one request in 100 is charged.
    pub const MAX_SAMPLING_INTERVAL: u32 = 100;

    /// Creates default options for the keys of a limit: the hash slot depends on all values, and there is no split and
    /// no sample.
    pub fn new(limit: &Limit) -> Self {
        Self { limit: *limit, slot_by: Box::default(), split: None, sample: NonZeroU32::MIN }
    }

    /// Derives the hash slot in a Redis Cluster only from the values of a key at these indices, in this order. Keys
    /// with the same values at these indices are in the same slot.
    ///
    /// # Errors
    /// If `indices` is empty or contains an index twice, or the limit is split.
    pub fn with_slot_by(self, indices: &[usize]) -> Result<Self, RedisOptionsError> {
        let is_duplicate = |(nth, index): (usize, &usize)| indices[..nth].contains(index);
        match indices {
            [] => Err(RedisOptionsError::EmptySlotBy),
            _ if indices.iter().enumerate().any(is_duplicate) => {
                Err(RedisOptionsError::DuplicateSlotBy)
            }
            _ if self.split.is_some() => Err(RedisOptionsError::SlotByWithSplit),
            _ => Ok(Self { slot_by: indices.into(), ..self }),
        }
    }

    /// Spreads the counts of each key over `parts` sub-keys, each with a share of the limit. The shares add up to
    /// exactly the limit.
    ///
    /// # Errors
    /// If `parts` is out of bounds, a share would be 0, the charge of a sampled request would not fit in a share, or
    /// `slot_by` is set.
    pub fn with_split(self, parts: u32) -> Result<Self, RedisOptionsError> {
        let valid =
            NonZeroU32::new(parts).filter(|parts| (2..=Self::MAX_SUB_KEYS).contains(&parts.get()));
        let parts = valid.ok_or(RedisOptionsError::Parts(parts))?;
        if !self.slot_by.is_empty() {
            return Err(RedisOptionsError::SlotByWithSplit);
        }
        let quantities = [("max", self.limit.quota().max()), ("burst", self.limit.capacity())];
        for (quantity, units) in quantities {
            if (1..u64::from(parts.get())).contains(&units) {
                return Err(RedisOptionsError::EmptyShare { quantity, units, parts });
            }
        }
        let split = Some(LimitSplit { parts, shares: sub_key_shares(&self.limit, parts) });
        Self { split, ..self }.validate_sampling_interval()
    }

    /// Sends only one request in `one_in` to Redis, and charges it `one_in` times its cost.
    ///
    /// # Errors
    /// If `one_in` is out of bounds, the charge of a sampled request never fits, or the limit bounds the requests in
    /// flight.
    pub fn with_sample(self, one_in: u32) -> Result<Self, RedisOptionsError> {
        let sample = NonZeroU32::new(one_in)
            .filter(|n| (2..=Self::MAX_SAMPLING_INTERVAL).contains(&n.get()));
        let sample = sample.ok_or(RedisOptionsError::Sample(one_in))?;
        Self { sample, ..self }.validate_sampling_interval()
    }

    /// Returns the same options for the keys of another limit.
    ///
    /// # Errors
    /// If the other limit is too small for the split or the sample.
    pub fn for_limit(&self, limit: &Limit) -> Result<Self, RedisOptionsError> {
        let own = Self { limit: *limit, split: None, ..self.clone() };
        match self.split_into() {
            Some(parts) => own.with_split(parts.get()),
            None => own.validate_sampling_interval(),
        }
    }

    /// Checks that the charge of a sampled request fits in the smallest share, and returns the options unchanged.
    fn validate_sampling_interval(self) -> Result<Self, RedisOptionsError> {
        let smallest = self.split.as_ref().map_or(&self.limit, |split| split.smallest_share());
        let (capacity, sample, parts) = (smallest.capacity(), self.sample, self.split_into());
        if self.limit.is_concurrent() && sample > NonZeroU32::MIN {
            return Err(RedisOptionsError::SampledPermits);
        }
        if (1..u64::from(sample.get())).contains(&capacity) {
            Err(RedisOptionsError::SampleNeverFits { sample, capacity, parts })
        } else {
            Ok(self)
        }
    }

    /// Returns the indices of the values that determine the hash slot, in order. If the list is empty, all values
    /// determine the slot.
    pub fn slot_by(&self) -> &[usize] {
        &self.slot_by
    }

    /// Returns the number of sub-keys of each key; `None` if the limit is not split.
    pub fn split_into(&self) -> Option<NonZeroU32> {
        self.split.as_ref().map(|split| split.parts)
    }

    /// Returns the sampling interval n: only one request in n is sent to Redis, and is charged n times its cost. 1
    /// means that all requests are sent.
    pub fn sample(&self) -> NonZeroU32 {
        self.sample
    }

    /// Returns the share of the limit for the sub-key with this index; `None` if the limit is not split.
    pub(crate) fn limit_share(&self, part: u16) -> Option<&Limit> {
        let split = self.split.as_ref()?;
        let own = split.shares.iter().find(|(end, _)| u32::from(part) < *end);
        Some(own.map_or_else(|| split.smallest_share(), |(_, share)| share))
    }
}

impl LimitSplit {
    /// Returns the smallest share of a sub-key.
    fn smallest_share(&self) -> &Limit {
        &self.shares[2].1
    }
}

/// Returns the shares of a limit that is split over `parts` sub-keys, largest first; see [`LimitSplit::shares`].
fn sub_key_shares(limit: &Limit, parts: NonZeroU32) -> [(u32, Limit); 3] {
    let remainder = |units: u64| (units % u64::from(parts.get())) as u32;
    let mut ends = [remainder(limit.quota().max()), remainder(limit.capacity()), parts.get()];
    ends.sort_unstable();
    // All sub-keys between two ends have the same share. If two ends are equal, there are none between them.
    ends.map(|end| (end, limit.sub_key_share(end.saturating_sub(1), parts)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Algorithm;

    fn new_limit(quota: &str, algorithm: Algorithm) -> Limit {
        Limit::new(quota.parse().unwrap(), algorithm).unwrap()
    }

    fn new_token_bucket_limit(quota: &str, burst: u64) -> Limit {
        new_limit(quota, Algorithm::TokenBucket { burst: Some(burst), max_debt: None })
    }

    fn max_and_capacity_of_shares(limit: &Limit, parts: u32) -> Vec<(u64, u64)> {
        let options = RedisOptions::new(limit).with_split(parts).unwrap();
        let shares = (0..parts as u16).map(|part| *options.limit_share(part).unwrap());
        let shares: Vec<Limit> = shares.collect();
        assert!(
            shares.iter().all(|share| share.counter_shape_text() == limit.counter_shape_text())
        );
        shares.iter().map(|share| (share.quota().max(), share.capacity())).collect()
    }

    #[test]
    fn shares_of_split_limit_sum_up_to_limit() {
        for algorithm in Algorithm::ALL {
            for max in [0, 8, 9, 15, 16, 1_023, 1_024, 100_000] {
                let limit = new_limit(&format!("{max}/min"), algorithm);
                for parts in [2, 3, 8].into_iter().filter(|parts| max == 0 || *parts <= max) {
                    let shares = max_and_capacity_of_shares(&limit, parts as u32);
                    let expected = (0..parts).map(|nth| max / parts + u64::from(nth < max % parts));
                    let expected: Vec<_> = expected.map(|units| (units, units)).collect();
                    assert_eq!(shares, expected, "{limit} into {parts}");
                    assert_eq!(shares.iter().map(|share| share.0).sum::<u64>(), max);
                }
            }
        }
        // Max and burst have different remainders.
        assert_eq!(
            max_and_capacity_of_shares(&new_token_bucket_limit("10/s", 7), 4),
            [(3, 2), (3, 2), (2, 2), (2, 1)]
        );
        assert_eq!(
            max_and_capacity_of_shares(&new_token_bucket_limit("9/s", 11), 4),
            [(3, 3), (2, 3), (2, 3), (2, 2)]
        );
        assert_eq!(
            max_and_capacity_of_shares(&new_limit("1024/s", Algorithm::default()), 1_024),
            [(1, 1); 1_024]
        );
    }

    #[test]
    fn split_with_share_of_zero_is_rejected() {
        let split = |limit: &Limit, parts| RedisOptions::new(limit).with_split(parts);
        let seven = new_limit("7/min", Algorithm::default());
        assert!(split(&seven, 7).is_ok());
        let parts = NonZeroU32::new(8).unwrap();
        let empty_share =
            |quantity, units| Err(RedisOptionsError::EmptyShare { quantity, units, parts });
        assert_eq!(split(&seven, 8), empty_share("max", 7));
        assert_eq!(split(&new_token_bucket_limit("8/s", 7), 8), empty_share("burst", 7));
        assert_eq!(split(&new_token_bucket_limit("7/s", 8), 8), empty_share("max", 7));
        assert!(
            split(&new_token_bucket_limit("8/s", 8), 8).is_ok()
                && split(&new_token_bucket_limit("8/s", 0), 8).is_ok()
        );
        assert!(split(&Limit::deny_all(), RedisOptions::MAX_SUB_KEYS).is_ok());
        for parts in [0, 1, RedisOptions::MAX_SUB_KEYS + 1] {
            assert_eq!(split(&Limit::deny_all(), parts), Err(RedisOptionsError::Parts(parts)));
        }
    }

    #[test]
    fn sampling_rate_that_never_fits_is_rejected() {
        let ten = new_limit("10/min", Algorithm::default());
        let sample = |limit: &Limit, one_in| RedisOptions::new(limit).with_sample(one_in);
        assert_eq!(sample(&ten, 10).unwrap().sample().get(), 10);
        let error = sample(&ten, 11).unwrap_err().to_string();
        assert!(error.contains("at most 10 units fit;"), "{error}");
        // The units that fit in a bucket at once are its burst.
        assert!(
            sample(&new_token_bucket_limit("1/s", 10), 10).is_ok()
                && sample(&new_token_bucket_limit("100/s", 9), 10).is_err()
        );
        assert!(sample(&Limit::deny_all(), RedisOptions::MAX_SAMPLING_INTERVAL).is_ok());
        for one_in in [0, 1, RedisOptions::MAX_SAMPLING_INTERVAL + 1] {
            assert_eq!(sample(&ten, one_in), Err(RedisOptionsError::Sample(one_in)));
        }
        // With a split, the smallest share counts, regardless of the order of the calls.
        let both = |one_in| {
            let sampled = RedisOptions::new(&ten)
                .with_sample(one_in)
                .and_then(|options| options.with_split(3));
            let split = RedisOptions::new(&ten)
                .with_split(3)
                .and_then(|options| options.with_sample(one_in));
            assert_eq!(sampled, split);
            split
        };
        assert!(both(3).is_ok());
        let error = both(4).unwrap_err().to_string();
        assert!(error.contains("at most 3 units fit in each of 3 parts;"), "{error}");
    }

    #[test]
    fn invalid_redis_slot_by_is_rejected() {
        let options = RedisOptions::new(&Limit::deny_all());
        let slot_by = |indices: &[usize]| options.clone().with_slot_by(indices);
        assert_eq!(slot_by(&[2, 0]).unwrap().slot_by(), [2, 0]);
        assert_eq!(slot_by(&[]), Err(RedisOptionsError::EmptySlotBy));
        assert_eq!(slot_by(&[0, 1, 0]), Err(RedisOptionsError::DuplicateSlotBy));
        let split = options.clone().with_split(2).unwrap();
        assert_eq!(split.with_slot_by(&[0]), Err(RedisOptionsError::SlotByWithSplit));
        let slot = slot_by(&[0]).unwrap();
        assert_eq!(slot.with_split(2), Err(RedisOptionsError::SlotByWithSplit));
    }

    #[test]
    fn redis_options_apply_to_another_limit() {
        let small = Limit::deny_all();
        let large = new_limit("100/s", Algorithm::default());
        let options = |limit: &Limit| {
            RedisOptions::new(limit).with_split(8).and_then(|split| split.with_sample(10)).unwrap()
        };
        assert_eq!(options(&small).for_limit(&large), Ok(options(&large)));
        assert!(options(&small).for_limit(&new_limit("79/s", Algorithm::default())).is_err());
        let slot = |limit: &Limit| RedisOptions::new(limit).with_slot_by(&[1]).unwrap();
        assert_eq!(slot(&small).for_limit(&large), Ok(slot(&large)));
    }
}

//! What a rule says to stores that count in Redis: data that rides along, and that other stores ignore.

use std::num::NonZeroU32;

use thiserror::Error;

use crate::limit::Limit;

/// What a rule says to stores that count in Redis; other stores ignore it. For the keys of one limit.
///
/// ```
/// use slidegate::{Key, Limit, RedisOptions, Scope};
///
/// let limit: Limit = "100/s".parse()?;
/// let scope = Scope::new("api", "hot", "1s", &["tenant"]);
/// let scope = scope.with_redis(RedisOptions::new(&limit).with_split(8)?);
/// let values = ["acme".into()];
/// let key = Key::new(&scope, &values).with_part(3);
/// assert_eq!(key.hash_tagged_identity().to_string(), "{tenant=acme#3}");
/// assert_eq!(key.share().unwrap().quota().max(), 13);     // 4 of the 8 have 13, the others 12
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisOptions {
    limit: Limit,
    slot_by: Box<[usize]>,
    split: Option<Split>,
    sample: NonZeroU32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Split {
    into: NonZeroU32,
    /// What the sub-keys below a number have, from the largest share to the smallest: max and burst leave
    /// remainders of their own.
    shares: [(u32, Limit); 3],
}

/// Why terms for Redis cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RedisOptionsError {
    /// No entry is to choose the hash slot.
    #[error("nothing chooses the hash slot: name entries of `per`, or leave `slot_by` out")]
    NoSlot,
    /// An entry is to choose the hash slot twice.
    #[error("an entry of `per` stands in `slot_by` twice: take one away")]
    SlotTwice,
    /// Both `slot_by` and `split`.
    #[error(
        "`slot_by` gathers counts in one hash slot, and `split` spreads them over several: take one of the two away"
    )]
    SlotOfSplit,
    /// Too few sub-keys, or too many.
    #[error("a split is into 2 to {most} parts, not {0}", most = RedisOptions::MAX_PARTS)]
    Parts(u32),
    /// Some sub-keys would have nothing.
    #[error(
        "a {what} of {units} cannot be split into {into}: each part needs at least 1, so make it larger, or `into` smaller"
    )]
    NoShare {
        /// `max` or `burst`.
        what: &'static str,
        /// What is split.
        units: u64,
        /// Into how many.
        into: NonZeroU32,
    },
    /// One request in too few, or too many.
    #[error("a sample is one request in 2 to {most}, not one in {0}", most = RedisOptions::RAREST_SAMPLE)]
    Sample(u32),
    /// What a sampled request is charged never fits.
    #[error(
        "nothing could ever pass: one request in {sample} is charged {sample} times its cost, and {}; make the limit larger, or `sample`",
        most_that_fits(*fits, *into)
    )]
    SampleNeverFits {
        /// One request in so many.
        sample: NonZeroU32,
        /// What fits at once, of a split in its smallest part.
        fits: u64,
        /// Into how many parts the limit is split.
        into: Option<NonZeroU32>,
    },
}

fn most_that_fits(fits: u64, into: Option<NonZeroU32>) -> String {
    match into {
        None => format!("at most {fits} fit"),
        Some(into) => format!("at most {fits} fit in each of {into} parts"),
    }
}

impl RedisOptions {
    /// Sub-keys that an identity may be split into.
    pub const MAX_PARTS: u32 = 1_024;

    /// The rarest sample: one request in so many.
    pub const RAREST_SAMPLE: u32 = 100;

    /// Terms for the keys of a limit; they say nothing yet.
    pub fn new(limit: &Limit) -> Self {
        Self { limit: *limit, slot_by: Box::default(), split: None, sample: NonZeroU32::MIN }
    }

    /// Has the hash slot of a Redis Cluster depend on these values of a key only, by their places: keys
    /// that have them in common, in this order, are in one slot.
    ///
    /// # Errors
    /// If there are none, one stands there twice, or the counts are split.
    pub fn with_slot_by(self, places: &[usize]) -> Result<Self, RedisOptionsError> {
        let twice = |(nth, place): (usize, &usize)| places[..nth].contains(place);
        match places {
            [] => Err(RedisOptionsError::NoSlot),
            _ if places.iter().enumerate().any(twice) => Err(RedisOptionsError::SlotTwice),
            _ if self.split.is_some() => Err(RedisOptionsError::SlotOfSplit),
            _ => Ok(Self { slot_by: places.into(), ..self }),
        }
    }

    /// Spreads each identity over so many sub-keys, each with its share of the limit: together they have
    /// exactly all of it.
    ///
    /// # Errors
    /// If there are too few or too many, one has nothing, a sample never fits in one, or the hash slot is
    /// chosen otherwise.
    pub fn with_split(self, into: u32) -> Result<Self, RedisOptionsError> {
        let parts =
            NonZeroU32::new(into).filter(|into| (2..=Self::MAX_PARTS).contains(&into.get()));
        let into = parts.ok_or(RedisOptionsError::Parts(into))?;
        if !self.slot_by.is_empty() {
            return Err(RedisOptionsError::SlotOfSplit);
        }
        for (what, units) in [("max", self.limit.quota().max()), ("burst", self.limit.capacity())] {
            if (1..u64::from(into.get())).contains(&units) {
                return Err(RedisOptionsError::NoShare { what, units, into });
            }
        }
        let split = Some(Split { into, shares: shares(&self.limit, into) });
        Self { split, ..self }.with_fitting_sample()
    }

    /// Asks Redis for one request in so many, at so many times its cost.
    ///
    /// # Errors
    /// If it is too few or too many, or what a request is then charged never fits.
    pub fn with_sample(self, one_in: u32) -> Result<Self, RedisOptionsError> {
        let sample =
            NonZeroU32::new(one_in).filter(|n| (2..=Self::RAREST_SAMPLE).contains(&n.get()));
        let sample = sample.ok_or(RedisOptionsError::Sample(one_in))?;
        Self { sample, ..self }.with_fitting_sample()
    }

    /// The same for the keys of another limit.
    ///
    /// # Errors
    /// If that one is too small for it.
    pub fn for_limit(&self, limit: &Limit) -> Result<Self, RedisOptionsError> {
        let own = Self { limit: *limit, split: None, ..self.clone() };
        match self.split_into() {
            Some(into) => own.with_split(into.get()),
            None => own.with_fitting_sample(),
        }
    }

    fn with_fitting_sample(self) -> Result<Self, RedisOptionsError> {
        let smallest = self.split.as_ref().map_or(&self.limit, |split| split.smallest());
        let (fits, sample, into) = (smallest.capacity(), self.sample, self.split_into());
        match (1..u64::from(sample.get())).contains(&fits) {
            true => Err(RedisOptionsError::SampleNeverFits { sample, fits, into }),
            false => Ok(self),
        }
    }

    /// The places of the values that the hash slot depends on, in their order; none: on all.
    pub fn slot_by(&self) -> &[usize] {
        &self.slot_by
    }

    /// Over how many sub-keys each identity is spread.
    pub fn split_into(&self) -> Option<NonZeroU32> {
        self.split.as_ref().map(|split| split.into)
    }

    /// One request in so many asks, and is charged so many times its cost. 1: all do.
    pub fn sample(&self) -> NonZeroU32 {
        self.sample
    }

    /// What a sub-key has of the limit; none if there are no sub-keys.
    pub(crate) fn share(&self, part: u16) -> Option<&Limit> {
        let split = self.split.as_ref()?;
        let own = split.shares.iter().find(|(end, _)| u32::from(part) < *end);
        Some(own.map_or_else(|| split.smallest(), |(_, share)| share))
    }
}

impl Split {
    fn smallest(&self) -> &Limit {
        &self.shares[2].1
    }
}

fn shares(limit: &Limit, into: NonZeroU32) -> [(u32, Limit); 3] {
    let left = |units: u64| (units % u64::from(into.get())) as u32;
    let mut ends = [left(limit.quota().max()), left(limit.capacity()), into.get()];
    ends.sort_unstable();
    // Those below an end are alike. Where the end is that of the one before, or 0, there are none.
    ends.map(|end| (end, limit.part_of(end.saturating_sub(1), into)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Algorithm;

    fn limit(quota: &str, algorithm: Algorithm) -> Limit {
        Limit::new(quota.parse().unwrap(), algorithm).unwrap()
    }

    fn bucket(quota: &str, burst: u64) -> Limit {
        limit(quota, Algorithm::TokenBucket { burst: Some(burst), max_debt: None })
    }

    fn shares_of(limit: &Limit, into: u32) -> Vec<(u64, u64)> {
        let terms = RedisOptions::new(limit).with_split(into).unwrap();
        let shares = (0..into as u16).map(|part| *terms.share(part).unwrap());
        let shares: Vec<Limit> = shares.collect();
        assert!(shares.iter().all(|share| share.shape_text() == limit.shape_text()));
        shares.iter().map(|share| (share.quota().max(), share.capacity())).collect()
    }

    #[test]
    fn the_shares_of_a_split_sum_up_to_the_limit_and_the_first_have_one_more() {
        for algorithm in Algorithm::ALL {
            for max in [0, 8, 9, 15, 16, 1_023, 1_024, 100_000] {
                let limit = limit(&format!("{max}/min"), algorithm);
                for into in [2, 3, 8].into_iter().filter(|into| max == 0 || *into <= max) {
                    let shares = shares_of(&limit, into as u32);
                    let expected = (0..into).map(|nth| max / into + u64::from(nth < max % into));
                    let expected: Vec<_> = expected.map(|units| (units, units)).collect();
                    assert_eq!(shares, expected, "{limit} into {into}");
                    assert_eq!(shares.iter().map(|share| share.0).sum::<u64>(), max);
                }
            }
        }
        // Max and burst each leave a remainder.
        assert_eq!(shares_of(&bucket("10/s", 7), 4), [(3, 2), (3, 2), (2, 2), (2, 1)]);
        assert_eq!(shares_of(&bucket("9/s", 11), 4), [(3, 3), (2, 3), (2, 3), (2, 2)]);
        assert_eq!(shares_of(&limit("1024/s", Algorithm::default()), 1_024), [(1, 1); 1_024]);
    }

    #[test]
    fn a_share_of_nothing_is_refused_unless_all_have_nothing() {
        let split = |limit: &Limit, into| RedisOptions::new(limit).with_split(into);
        let seven = limit("7/min", Algorithm::default());
        assert!(split(&seven, 7).is_ok());
        let into = NonZeroU32::new(8).unwrap();
        let no_share = |what, units| Err(RedisOptionsError::NoShare { what, units, into });
        assert_eq!(split(&seven, 8), no_share("max", 7));
        assert_eq!(split(&bucket("8/s", 7), 8), no_share("burst", 7));
        assert_eq!(split(&bucket("7/s", 8), 8), no_share("max", 7));
        assert!(split(&bucket("8/s", 8), 8).is_ok() && split(&bucket("8/s", 0), 8).is_ok());
        assert!(split(&Limit::denied(), RedisOptions::MAX_PARTS).is_ok());
        for into in [0, 1, RedisOptions::MAX_PARTS + 1] {
            assert_eq!(split(&Limit::denied(), into), Err(RedisOptionsError::Parts(into)));
        }
    }

    #[test]
    fn a_sample_that_never_fits_is_refused() {
        let ten = limit("10/min", Algorithm::default());
        let sample = |limit: &Limit, one_in| RedisOptions::new(limit).with_sample(one_in);
        assert_eq!(sample(&ten, 10).unwrap().sample().get(), 10);
        let error = sample(&ten, 11).unwrap_err().to_string();
        assert!(error.contains("at most 10 fit;"), "{error}");
        // What fits in a bucket at once is its burst.
        assert!(sample(&bucket("1/s", 10), 10).is_ok() && sample(&bucket("100/s", 9), 10).is_err());
        assert!(sample(&Limit::denied(), RedisOptions::RAREST_SAMPLE).is_ok());
        for one_in in [0, 1, RedisOptions::RAREST_SAMPLE + 1] {
            assert_eq!(sample(&ten, one_in), Err(RedisOptionsError::Sample(one_in)));
        }
        // Of a split, the smallest share counts, whichever is said first.
        let both = |one_in| {
            let sampled = RedisOptions::new(&ten).with_sample(one_in).and_then(|t| t.with_split(3));
            let split = RedisOptions::new(&ten).with_split(3).and_then(|t| t.with_sample(one_in));
            assert_eq!(sampled, split);
            split
        };
        assert!(both(3).is_ok());
        let error = both(4).unwrap_err().to_string();
        assert!(error.contains("at most 3 fit in each of 3 parts;"), "{error}");
    }

    #[test]
    fn a_slot_is_chosen_by_entries_that_differ_and_not_of_what_is_split() {
        let terms = RedisOptions::new(&Limit::denied());
        let slot_by = |places: &[usize]| terms.clone().with_slot_by(places);
        assert_eq!(slot_by(&[2, 0]).unwrap().slot_by(), [2, 0]);
        assert_eq!(slot_by(&[]), Err(RedisOptionsError::NoSlot));
        assert_eq!(slot_by(&[0, 1, 0]), Err(RedisOptionsError::SlotTwice));
        let split = terms.clone().with_split(2).unwrap();
        assert_eq!(split.with_slot_by(&[0]), Err(RedisOptionsError::SlotOfSplit));
        let slot = slot_by(&[0]).unwrap();
        assert_eq!(slot.with_split(2), Err(RedisOptionsError::SlotOfSplit));
    }

    #[test]
    fn terms_of_another_limit_say_the_same() {
        let small = Limit::denied();
        let large = limit("100/s", Algorithm::default());
        let terms = |limit: &Limit| {
            RedisOptions::new(limit).with_split(8).and_then(|terms| terms.with_sample(10)).unwrap()
        };
        assert_eq!(terms(&small).for_limit(&large), Ok(terms(&large)));
        assert!(terms(&small).for_limit(&limit("79/s", Algorithm::default())).is_err());
        let slot = |limit: &Limit| RedisOptions::new(limit).with_slot_by(&[1]).unwrap();
        assert_eq!(slot(&small).for_limit(&large), Ok(slot(&large)));
    }
}

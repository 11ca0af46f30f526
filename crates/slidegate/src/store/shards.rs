//! The shards into which a store in memory divides its keys.

/// Returns the index of the shard of a fingerprint.
///
/// The last shards have about twice as many keys as the first ones, and the number increases by the same factor from shard
/// to shard. Tables double when they are full; in shards with equally many keys, they would all double at the same time.
/// This way some double at any time, and the memory per key stays the same while a store grows.
///
/// The index depends on the bits below the top seven, because a table uses the top seven and the lowest ones.
#[inline]
pub fn shard_index(fingerprint: u64, shards: usize) -> usize {
    let x = (fingerprint << 7) >> 32;
    // The line x + 0.34 x (1 - x), which is close to the logarithm of 1 + x to the base 2.
    let y = x + (((x * ((1 << 32) - x)) >> 32) * 87 >> 8);
    ((y * shards as u64) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_shards_have_twice_as_many_keys() {
        let mut keys = [0; 64];
        for key in 0..=u64::from(u16::MAX) {
            keys[shard_index(key << 41, keys.len())] += 1;
        }
        let average = (u64::from(u16::MAX) + 1) / 64;
        assert!((average * 72 / 100..average * 78 / 100).contains(&keys[0]), "{}", keys[0]);
        assert!((average * 145 / 100..average * 155 / 100).contains(&keys[63]), "{}", keys[63]);
        assert!(keys.is_sorted(), "{keys:?}");
        assert_eq!(shard_index(u64::MAX, 64), 63);
    }
}

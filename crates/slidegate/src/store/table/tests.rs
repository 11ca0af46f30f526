use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

fn collect_states(table: &mut Table<u32>) -> HashMap<u64, u32> {
    table.iter_mut().map(|(fingerprint, slot)| (fingerprint, slot.state)).collect()
}

fn fingerprint(key: u64) -> u64 {
    (key + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17)
}

proptest! {
    /// Compares a table with a map after random insertions and removals. Many fingerprints have the same bucket.
    #[test]
    fn state_table_behaves_like_hash_map(
        steps in proptest::collection::vec((0u8..8, 0u64..60, any::<u32>()), 1..400),
    ) {
        let (mut table, keys) = (Table::default(), KeyCounts::default());
        let mut map = HashMap::new();
        for (action, key, state) in steps {
            let fingerprint = (key % 3) | key << 40;
            match (action, table.find(fingerprint)) {
                (0, _) => table.shrink_if_sparse(),
                (1..5, found) => {
                    let index = found.unwrap_or_else(|| table.insert(fingerprint, 0));
                    table.slot_mut(index).state = state;
                    map.insert(fingerprint, state);
                }
                (_, Some(index)) => {
                    table.remove(index, &keys);
                    map.remove(&fingerprint);
                }
                (_, None) => prop_assert!(!map.contains_key(&fingerprint)),
            }
            prop_assert_eq!(&collect_states(&mut table), &map);
            for (&fingerprint, &state) in &map {
                let found = table.find(fingerprint).map(|index| table.slot(index).state);
                prop_assert_eq!(found, Some(state));
            }
        }
    }

    #[test]
    fn table_sweep_removes_only_expired_keys(
        expires in proptest::collection::vec(0u32..10, 1..300),
        now in 0u32..10,
    ) {
        let mut table = Table::<u32>::default();
        for (key, &expires) in (0..).zip(&expires) {
            let index = table.insert(fingerprint(key), 0);
            table.slot_mut(index).expires = expires;
        }
        // A table that shrinks during a round needs another one.
        let rounds = 2 * table.bucket_count() / BUCKETS_PER_SWEEP + 2;
        let keys = KeyCounts::default();
        for _ in &expires {
            keys.count_new_key(0);
        }
        (0..rounds).for_each(|_| table.sweep(now, &keys));
        let expired = expires.iter().filter(|&&expires| expires < now).count();
        prop_assert_eq!(keys.total(), expires.len() - expired);
        prop_assert_eq!(collect_states(&mut table).len(), expires.len() - expired);
    }

    /// Checks the number of bytes for which the budget of a store must have room before an insertion.
    #[test]
    fn growth_bytes_are_those_of_next_allocation(
        steps in proptest::collection::vec((0u8..5, any::<u32>()), 1..2000),
    ) {
        let (mut table, keys) = (Table::<u32>::default(), KeyCounts::default());
        for (key, (action, state)) in (0..).zip(steps) {
            if action == 0 {
                let candidate = table.eviction_candidate(0, &keys, &mut 0);
                candidate.map(|candidate| table.evict(candidate, &keys));
            }
            let (growth, before) = (table.growth_bytes(), table.bytes());
            let index = table.insert(fingerprint(key), 0);
            table.slot_mut(index).state = state;
            if table.bytes() != before {
                prop_assert!((table.bytes()..=table.bytes() + 16).contains(&growth), "{growth}");
            }
        }
    }
}

#[test]
fn swept_table_frees_memory() {
    let mut table = Table::<u32>::default();
    for key in 0..10_000 {
        let index = table.insert(fingerprint(key), 0);
        table.slot_mut(index).expires = if key < 1_000 { 9 } else { 1 };
    }
    let keys = KeyCounts::default();
    (0..10_000).for_each(|_| _ = keys.count_new_key(0));
    let full = table.bytes();
    (0..10_000).for_each(|_| table.sweep(5, &keys));
    assert!(table.bytes() * 4 <= full, "{} of {full}", table.bytes());
    assert_eq!(collect_states(&mut table).len(), 1_000);
    (0..10_000).for_each(|_| table.sweep(10, &keys));
    assert_eq!(table.bytes(), 0);
}

#[test]
fn number_takes_25_bytes_and_sliding_window_33() {
    type State = crate::algorithm::sliding_window::State;
    assert_eq!((bucket_bytes::<u64>(), bucket_bytes::<State>()), (25, 33));
}

/// Inserts keys with these groups, depletions and times of expiry, and evicts all of them at the time 10. Returns the
/// times of expiry in the order of the evictions.
fn evict_all(slots: &[(KeyGroup, Depletion, CoarseTime)]) -> Vec<CoarseTime> {
    let (mut table, keys) = (Table::<u32>::default(), KeyCounts::default());
    for (key, &(group, depletion, expires)) in (0..).zip(slots) {
        keys.count_new_key(group);
        let index = table.insert(fingerprint(key), group);
        let slot = table.slot_mut(index);
        (slot.depletion, slot.expires) = (depletion, expires);
    }
    let mut evict_next = || {
        let candidate = table.eviction_candidate(10, &keys, &mut 1_000)?;
        Some(table.evict(candidate, &keys))
    };
    std::iter::from_fn(&mut evict_next).collect()
}

#[test]
fn expired_keys_then_least_depleted_ones_are_evicted_first() {
    assert_eq!(
        evict_all(&[(0, 1, 20), (0, 0, 30), (0, EXHAUSTED_DEPLETION, 9), (0, 0, 25)]),
        [9, 25, 30, 20]
    );
    assert_eq!(
        evict_all(&[(0, EXHAUSTED_DEPLETION, 20), (0, PINNED_DEPLETION, 15), (0, 2, 2_000)]),
        [2_000, 20]
    );
}

#[test]
fn depletion_counts_halvings() {
    let depletion = |remaining, capacity| {
        depletion(&Outcome::new(remaining, std::time::Duration::ZERO, None), capacity)
    };
    assert_eq!(
        [100, 51, 50, 26, 25, 13, 12, 0].map(|left| depletion(left, 100)),
        [0, 0, 1, 1, 2, 2, 3, 3]
    );
    assert_eq!(
        [(1, 1), (0, 1), (1, 2), (0, 0)].map(|(left, max)| depletion(left, max)),
        [0, 3, 1, 3]
    );
}

#[test]
fn keys_of_group_above_its_share_are_evicted_first() {
    let flooded = [(7, 2, 50), (7, 2, 51), (7, 2, 52)];
    let slots = [(1, 0, 40), flooded[0], flooded[1], flooded[2], (2, 0, 41)];
    assert_eq!(evict_all(&slots)[..2], [50, 51]);
}

#[test]
fn exhausted_key_is_evicted_by_magnitude_of_its_remaining_time() {
    let old_and_new: Vec<_> = (0..200).map(|nth| (0, EXHAUSTED_DEPLETION, 2_000 + nth)).collect();
    let evicted = evict_all(&old_and_new);
    assert!(evicted.iter().take(100).any(|&expires| expires >= 2_100), "not the oldest ones first");
    assert_eq!(
        evict_all(&[(0, EXHAUSTED_DEPLETION, 2_000), (0, EXHAUSTED_DEPLETION, 500)]),
        [500, 2_000]
    );
}

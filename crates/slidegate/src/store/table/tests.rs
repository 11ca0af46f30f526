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
        let mut table = Table::default();
        let mut map = HashMap::new();
        for (action, key, state) in steps {
            let fingerprint = (key % 3) | key << 40;
            match (action, table.find(fingerprint)) {
                (0, _) => table.trim(),
                (1..5, found) => {
                    let index = found.unwrap_or_else(|| table.insert(fingerprint));
                    table.slot_mut(index).state = state;
                    map.insert(fingerprint, state);
                }
                (_, Some(index)) => {
                    table.remove(index);
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
            let index = table.insert(fingerprint(key));
            table.slot_mut(index).expires = expires;
        }
        // A table that shrinks during a round needs another one.
        let rounds = 2 * table.bucket_count() / BUCKETS_PER_SWEEP + 2;
        let swept: usize = (0..rounds).map(|_| table.sweep(now)).sum();
        let expired = expires.iter().filter(|&&expires| expires < now).count();
        prop_assert_eq!(swept, expired);
        prop_assert_eq!(collect_states(&mut table).len(), expires.len() - expired);
    }

    /// Checks the number of bytes for which the budget of a store must have room before an insertion.
    #[test]
    fn growth_bytes_are_those_of_next_allocation(
        steps in proptest::collection::vec((0u8..5, any::<u32>()), 1..2000),
    ) {
        let mut table = Table::<u32>::default();
        for (key, (action, state)) in (0..).zip(steps) {
            if action == 0 {
                table.eviction_candidate(0).inspect(|candidate| table.remove(candidate.slot));
            }
            let (growth, before) = (table.growth_bytes(), table.bytes());
            let index = table.insert(fingerprint(key));
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
        let index = table.insert(fingerprint(key));
        table.slot_mut(index).expires = if key < 1_000 { 9 } else { 1 };
    }
    let full = table.bytes();
    assert_eq!((0..10_000).map(|_| table.sweep(5)).sum::<usize>(), 9_000);
    assert!(table.bytes() * 4 <= full, "{} of {full}", table.bytes());
    assert_eq!(collect_states(&mut table).len(), 1_000);
    assert_eq!((0..10_000).map(|_| table.sweep(10)).sum::<usize>(), 1_000);
    assert_eq!(table.bytes(), 0);
}

#[test]
fn number_takes_25_bytes_and_sliding_window_33() {
    type State = crate::algorithm::sliding_window::State;
    assert_eq!((bucket_bytes::<u64>(), bucket_bytes::<State>()), (25, 33));
}

#[test]
fn eviction_candidate_is_undenied_and_expires_first() {
    let mut table = Table::<u32>::default();
    for (key, expires, denied_until) in [(1, 9, 0), (2, 5, 0), (3, 1, 8)] {
        let index = table.insert(key << 8);
        table.slot_mut(index).expires = expires;
        table.slot_mut(index).denied_until = denied_until;
    }
    let candidate = table.eviction_candidate(7).unwrap();
    assert_eq!(table.slot(candidate.slot).fingerprint, 2 << 8);
    table.remove(candidate.slot);
    let candidate = table.eviction_candidate(7).unwrap();
    assert_eq!(table.slot(candidate.slot).fingerprint, 1 << 8);
    table.remove(candidate.slot);
    assert_eq!(table.eviction_candidate(7), None);
    assert!(table.eviction_candidate(8).is_some(), "no longer denied");
}

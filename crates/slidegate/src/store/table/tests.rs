use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

fn collect_states(table: &mut Table<u32>) -> HashMap<u64, u32> {
    table.iter_mut().map(|(fingerprint, slot)| (fingerprint, slot.state)).collect()
}

proptest! {
    /// Compares a table with a `HashMap`. The probe sequences of the fingerprints begin at only a few groups, so that
    /// groups overflow, and probe sequences pass the end of the table.
    #[test]
    fn state_table_behaves_like_hash_map(
        steps in proptest::collection::vec((0u8..8, 0u64..60, any::<u32>()), 1..400),
    ) {
        let mut table = Table::default();
        let mut map = HashMap::new();
        for (action, key, state) in steps {
            let fingerprint = (key % 3) << 32 | ((key % 5) * 0x3fff_ffff) | key << 40;
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
        for fingerprint in map.into_keys() {
            let index = table.find(fingerprint).expect("the key is in the table");
            table.remove(index);
        }
        let passed = (0..table.groups()).filter(|group| table.tags(*group).has_passed_keys());
        prop_assert_eq!(passed.count(), 0, "an empty table counts no passed keys");
    }

    #[test]
    fn table_sweep_removes_only_expired_keys(
        expires in proptest::collection::vec(0u32..10, 1..300),
        now in 0u32..10,
    ) {
        let mut table = Table::<u32>::default();
        for (key, &expires) in expires.iter().enumerate() {
            let index = table.insert((key as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            table.slot_mut(index).expires = expires;
        }
        let mut swept = 0;
        for _ in 0..2 * expires.len() + 16 {
            swept += table.sweep(now);
        }
        let expired = expires.iter().filter(|&&expires| expires < now).count();
        prop_assert_eq!(swept, expired);
        prop_assert_eq!(collect_states(&mut table).len(), expires.len() - expired);
    }
}

/// A group counts at most 255 passed keys. Beyond that the number stays, and all keys are still found.
#[test]
fn keys_are_found_after_many_keys_passed_one_group() {
    let mut table = Table::<u32>::default();
    for key in 0..600u64 {
        table.insert(key << 32);
    }
    for key in (0..600u64).step_by(2) {
        let index = table.find(key << 32).expect("the key was inserted");
        table.remove(index);
    }
    for key in 0..600u64 {
        assert_eq!(table.find(key << 32).is_some(), key % 2 == 1, "{key}");
    }
}

#[test]
fn most_keys_of_full_table_are_found_in_first_group() {
    let mut table = Table::<u32>::default();
    let fingerprint = |key: u64| (key + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17);
    for key in 0..100_000 {
        table.insert(fingerprint(key));
    }
    let mut groups_read = 0;
    for key in 0..100_000 {
        let mut probe = ProbeSequence::new(fingerprint(key), table.groups());
        let found = table.find(fingerprint(key)).expect("the key was inserted");
        while probe.group != found.group {
            probe.advance(table.groups());
        }
        groups_read += probe.steps + 1;
    }
    assert!(groups_read < 150_000, "{groups_read} groups for 100,000 searches");
}

#[test]
fn sliding_window_slot_takes_half_cache_line() {
    type State = crate::algorithm::sliding_window::State;
    assert_eq!(size_of::<Slot<State>>(), 32);
    assert_eq!(size_of::<group::Group<State>>(), 7 * 32);
    assert_eq!(slot_bytes::<State>(), 34);
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

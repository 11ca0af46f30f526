//! A map from text prefixes or networks to rules. A lookup finds all keys that contain a text or an address.
//!
//! Two keys either are disjoint, or one contains the other. The keys are sorted, so each key follows all keys that
//! contain it. Each key has a link to its parent, the smallest other key that contains it. A lookup first finds the
//! last key at or before the value, with a binary search. Then it follows the links from this key to its parent, the
//! parent of the parent, and so on. All keys that contain the value are among these keys.

use std::borrow::Borrow;

use ipnet::IpNet;

/// An ordered type whose values are text prefixes or networks. Two values are either disjoint, or one contains the
/// other.
pub(super) trait Containment: Ord {
    fn is_contained_in(&self, other: &Self) -> bool;
}

impl Containment for str {
    fn is_contained_in(&self, other: &Self) -> bool {
        self.starts_with(other)
    }
}

impl Containment for IpNet {
    fn is_contained_in(&self, other: &Self) -> bool {
        other.contains(self)
    }
}

/// A sorted map from prefixes or networks to rules.
#[derive(Clone, Debug)]
pub(super) struct NestedKeyMap<K, V>(Vec<NestedEntry<K, V>>);

#[derive(Clone, Debug)]
struct NestedEntry<K, V> {
    key: K,
    /// Index of the entry with the smallest key that contains this key; `None` if no key contains this key.
    parent: Option<usize>,
    rules: Vec<V>,
}

impl<K, V> Default for NestedKeyMap<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Ord, V> NestedKeyMap<K, V> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a rule with its key. Lookups find the rule only after the next call of
    /// [`sort_and_link_keys`](Self::sort_and_link_keys).
    pub(super) fn insert(&mut self, key: K, rule: V) {
        self.0.push(NestedEntry { key, parent: None, rules: vec![rule] });
    }

    /// Sorts the keys, merges equal keys, and links each key to its parent, the smallest key that contains it.
    pub(super) fn sort_and_link_keys<Q: Containment + ?Sized>(&mut self)
    where
        K: Borrow<Q>,
    {
        self.0.sort_by(|left, right| left.key.cmp(&right.key));
        self.0.dedup_by(|next, previous| {
            let same = next.key == previous.key;
            if same {
                previous.rules.append(&mut next.rules);
            }
            same
        });
        for index in 1..self.0.len() {
            self.0[index].parent =
                self.index_of_smallest_containing_key(index - 1, self.0[index].key.borrow());
        }
    }

    /// Calls `on_rules` once for each key that contains the value, with the rules of this key.
    pub(super) fn for_each_containing_key<'c, Q: Containment + ?Sized>(
        &'c self,
        value: &Q,
        mut on_rules: impl FnMut(&'c [V]),
    ) where
        K: Borrow<Q>,
    {
        let end = self.0.partition_point(|entry| entry.key.borrow() <= value);
        let mut index =
            end.checked_sub(1).and_then(|last| self.index_of_smallest_containing_key(last, value));
        while let Some(entry) = index.and_then(|index| self.0.get(index)) {
            on_rules(&entry.rules);
            index = entry.parent;
        }
    }

    /// Searches the key at index `last` and its parents for the smallest key that contains `value`. Returns the index
    /// of this key, or `None` if none of these keys contains the value.
    fn index_of_smallest_containing_key<Q: Containment + ?Sized>(
        &self,
        last: usize,
        value: &Q,
    ) -> Option<usize>
    where
        K: Borrow<Q>,
    {
        let mut index = Some(last);
        while let Some(current) = index
            && !value.is_contained_in(self.0[current].key.borrow())
        {
            index = self.0[current].parent;
        }
        index
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn find_containing_rules<K: Borrow<Q> + Ord + Clone, Q: Containment + ?Sized>(
        keys: &[K],
        value: &Q,
    ) -> Vec<u32> {
        let mut nested = NestedKeyMap::default();
        (0..).zip(keys).for_each(|(index, key)| nested.insert(key.clone(), index));
        nested.sort_and_link_keys::<Q>();
        let mut found = Vec::new();
        nested.for_each_containing_key(value, |rules| found.extend_from_slice(rules));
        found.sort_unstable();
        found
    }

    proptest! {
        #[test]
        fn nested_key_map_finds_every_prefix_of_text(
            keys in proptest::collection::vec("[ab]{1,5}", 0..30),
            value in "[ab]{0,6}",
        ) {
            let expected = (0..).zip(&keys).filter(|(_, key)| value.starts_with(&**key));
            let expected: Vec<u32> = expected.map(|(index, _)| index).collect();
            prop_assert_eq!(find_containing_rules(&keys, value.as_str()), expected);
        }

        #[test]
        fn nested_key_map_finds_every_network_of_address(
            keys in proptest::collection::vec((any::<bool>(), 0..4u32, 0..=32u8), 0..30),
            value in (any::<bool>(), 0..4u32),
        ) {
            let network = |(v6, bits, length): (bool, u32, u8)| -> IpNet {
                let bits = bits << 30 | bits;
                let net = if v6 { IpNet::new(std::net::Ipv6Addr::from_bits(u128::from(bits) << 96).into(), length) } else { IpNet::new(std::net::Ipv4Addr::from_bits(bits).into(), length) };
                net.unwrap().trunc()
            };
            let keys: Vec<IpNet> = keys.into_iter().map(network).collect();
            let value = IpNet::from(network((value.0, value.1, 32)).addr());
            let expected = (0..).zip(&keys).filter(|(_, key)| key.contains(&value));
            let expected: Vec<u32> = expected.map(|(index, _)| index).collect();
            prop_assert_eq!(find_containing_rules(&keys, &value), expected);
        }
    }
}

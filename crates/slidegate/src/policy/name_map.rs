//! A map from texts of the policy, such as attribute names, to values. Most of these maps have only a few entries.

use std::collections::HashMap;

use foldhash::fast::FixedState;

/// The largest map whose entries are compared one after the other. This takes fewer instructions than a hash.
pub(super) const MAX_ENTRIES_WITHOUT_HASH: usize = 4;

/// A map from texts of the policy to values. Iterates in the order of insertion.
#[derive(Clone, Debug)]
pub(super) struct NameMap<V> {
    entries: Vec<(Box<str>, V)>,
    /// Positions in `entries`. Empty if the map has at most [`MAX_ENTRIES_WITHOUT_HASH`] entries.
    ///
    /// The hash function has a fixed seed. The keys come from the policy, so a client cannot choose keys that collide.
    positions: HashMap<Box<str>, usize, FixedState>,
}

impl<V> Default for NameMap<V> {
    fn default() -> Self {
        Self { entries: Vec::new(), positions: HashMap::default() }
    }
}

impl<V> NameMap<V> {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the value of a name; `None` if the map does not contain the name.
    #[inline]
    pub(super) fn get(&self, name: &str) -> Option<&V> {
        self.position(name).and_then(|position| self.entries.get(position)).map(|(_, value)| value)
    }

    /// Returns the value of a name, which is created with `new_value` if the map does not contain the name.
    pub(super) fn get_or_insert_with(
        &mut self,
        name: &str,
        new_value: impl FnOnce() -> V,
    ) -> &mut V {
        let position = self.position(name).unwrap_or_else(|| {
            self.entries.push((name.into(), new_value()));
            self.index_last_entry();
            self.entries.len() - 1
        });
        &mut self.entries[position].1
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &V)> {
        self.entries.iter().map(|(name, value)| (&**name, value))
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.entries.iter_mut().map(|(_, value)| value)
    }

    #[inline]
    fn position(&self, name: &str) -> Option<usize> {
        if self.positions.is_empty() {
            self.entries.iter().position(|(own, _)| **own == *name)
        } else {
            self.positions.get(name).copied()
        }
    }

    /// Adds the last entry to the positions. Adds all entries if there were few before.
    fn index_last_entry(&mut self) {
        let first = match self.positions.len() {
            _ if self.entries.len() <= MAX_ENTRIES_WITHOUT_HASH => return,
            indexed => indexed,
        };
        let unindexed = (first..).zip(&self.entries[first..]);
        self.positions.extend(unindexed.map(|(position, (name, _))| (name.clone(), position)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_map_of_any_size_finds_every_name() {
        for size in 0..3 * MAX_ENTRIES_WITHOUT_HASH {
            let mut map = NameMap::default();
            for value in 0..size {
                *map.get_or_insert_with(&format!("name {value}"), || 0) += value;
            }
            *map.get_or_insert_with("name 0", || 0) += 7;
            assert_eq!(map.get("name 0"), Some(&7));
            for value in 1..size {
                assert_eq!(map.get(&format!("name {value}")), Some(&value));
            }
            assert_eq!(map.get("name"), None);
            assert_eq!(map.iter().count(), size.max(1));
        }
    }
}

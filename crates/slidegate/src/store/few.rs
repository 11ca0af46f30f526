//! A list that usually has few items.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use arrayvec::ArrayVec;

/// The number of items that are stored without an allocation.
const INLINE_ITEMS: usize = 4;

/// The number of items for which a first allocation has space.
const ALLOCATED_ITEMS: usize = 8;

/// A list of items, of which up to four are stored without an allocation. Clones share an allocation until one of them
/// is changed.
#[derive(Clone, Debug)]
pub(crate) struct Few<T> {
    /// The items; empty if there is an allocation.
    inline: ArrayVec<T, INLINE_ITEMS>,
    allocated: Option<Arc<Vec<T>>>,
}

impl<T> Default for Few<T> {
    #[inline(always)]
    fn default() -> Self {
        Self { inline: ArrayVec::new(), allocated: None }
    }
}

impl<T: Copy> Few<T> {
    /// Appends an item.
    #[inline(always)]
    pub(crate) fn push(&mut self, item: T) {
        if self.allocated.is_some() || self.inline.try_push(item).is_err() {
            self.push_to_allocation(item);
        }
    }

    #[cold]
    fn push_to_allocation(&mut self, item: T) {
        let new = || Arc::new(Vec::with_capacity(ALLOCATED_ITEMS));
        let items = Arc::make_mut(self.allocated.get_or_insert_with(new));
        items.extend(self.inline.drain(..));
        items.push(item);
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        match &self.allocated {
            Some(items) => items,
            None => &self.inline,
        }
    }
}

impl<T: Clone> DerefMut for Few<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.allocated {
            Some(items) => Arc::<Vec<T>>::make_mut(items),
            None => &mut self.inline,
        }
    }
}

impl<T: PartialEq> PartialEq for Few<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Copy> Extend<T> for Few<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, items: I) {
        items.into_iter().for_each(|item| self.push(item));
    }
}

impl<T: Copy> FromIterator<T> for Few<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut list = Self::default();
        list.extend(items);
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_has_same_items_with_and_without_allocation() {
        for count in 0..3 * ALLOCATED_ITEMS {
            let mut list: Few<usize> = (0..count).collect();
            assert_eq!(*list, (0..count).collect::<Vec<_>>());
            let copy = list.clone();
            list.iter_mut().for_each(|item| *item += 1);
            assert_eq!(*list, (1..=count).collect::<Vec<_>>());
            assert_eq!(*copy, (0..count).collect::<Vec<_>>(), "a copy is independent");
        }
    }
}

//! A list that usually has one item.

use std::ops::{Deref, DerefMut};

use serde::{Deserialize, Serialize};

/// A list whose single item is stored without an allocation. In contrast to the lists of `smallvec`, it is plain data:
/// where only a part of the list is used, the compiler does not move the rest.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "Vec<T>", into = "Vec<T>", bound(serialize = "T: Clone + Serialize"))]
pub enum OneOrMany<T> {
    /// One item.
    One(T),
    /// Any number of items.
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    /// Creates an empty list that has space for this number of items.
    #[inline]
    pub fn with_capacity(capacity: usize) -> Self {
        Self::Many(if capacity > 1 { Vec::with_capacity(capacity) } else { Vec::new() })
    }

    /// Appends an item.
    #[inline]
    pub fn push(&mut self, item: T) {
        match self {
            Self::Many(items) if items.capacity() == 0 => *self = Self::One(item),
            Self::Many(items) => items.push(item),
            Self::One(_) => {
                let mut items = Vec::from(std::mem::take(self));
                items.push(item);
                *self = Self::Many(items);
            }
        }
    }
}

impl<T> Default for OneOrMany<T> {
    #[inline]
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl<T> Deref for OneOrMany<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match self {
            Self::One(item) => std::slice::from_ref(item),
            Self::Many(items) => items,
        }
    }
}

impl<T> DerefMut for OneOrMany<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::One(item) => std::slice::from_mut(item),
            Self::Many(items) => items,
        }
    }
}

impl<T: PartialEq> PartialEq for OneOrMany<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T> From<Vec<T>> for OneOrMany<T> {
    fn from(items: Vec<T>) -> Self {
        Self::Many(items)
    }
}

impl<T> From<OneOrMany<T>> for Vec<T> {
    fn from(list: OneOrMany<T>) -> Self {
        match list {
            OneOrMany::One(item) => vec![item],
            OneOrMany::Many(items) => items,
        }
    }
}

impl<T> FromIterator<T> for OneOrMany<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut items = items.into_iter();
        match (items.next(), items.next()) {
            (None, _) => Self::default(),
            (Some(first), None) => Self::One(first),
            (Some(first), Some(second)) => {
                Self::Many([first, second].into_iter().chain(items).collect())
            }
        }
    }
}

//! The outcomes of the hits of one call.

use std::ops::{Deref, DerefMut};

use super::few::Few;
use crate::outcome::Outcome;

/// The outcomes of the hits of one call, in the order of the hits. Up to four outcomes are stored without an allocation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcomes(Few<Outcome>);

impl Outcomes {
    /// Creates an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a list of one outcome.
    #[inline(always)]
    pub fn of_one(outcome: Outcome) -> Self {
        let mut outcomes = Few::default();
        outcomes.push(outcome);
        Self(outcomes)
    }

    /// Appends an outcome.
    #[inline]
    pub fn push(&mut self, outcome: Outcome) {
        self.0.push(outcome);
    }
}

impl Deref for Outcomes {
    type Target = [Outcome];

    #[inline(always)]
    fn deref(&self) -> &[Outcome] {
        &self.0
    }
}

impl DerefMut for Outcomes {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [Outcome] {
        &mut self.0
    }
}

impl FromIterator<Outcome> for Outcomes {
    fn from_iter<I: IntoIterator<Item = Outcome>>(outcomes: I) -> Self {
        Self(outcomes.into_iter().collect())
    }
}

impl Extend<Outcome> for Outcomes {
    fn extend<I: IntoIterator<Item = Outcome>>(&mut self, outcomes: I) {
        self.0.extend(outcomes);
    }
}

impl<'o> IntoIterator for &'o Outcomes {
    type Item = &'o Outcome;
    type IntoIter = std::slice::Iter<'o, Outcome>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'o> IntoIterator for &'o mut Outcomes {
    type Item = &'o mut Outcome;
    type IntoIter = std::slice::IterMut<'o, Outcome>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

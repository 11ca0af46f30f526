//! The origin of each hit: the rule and the limit from which it was created. A decision finds its limits with them.

use std::sync::Arc;

use arrayvec::ArrayVec;

use super::rule::SettingsSource;
use crate::hit::Veto;
use crate::rule_limit::RuleLimit;

/// Number of hits whose origins need no allocation.
const INLINE_ORIGINS: usize = 3;

/// The rules and limits from which the hits of a request were created, one entry for each hit.
///
/// Everything that needs a destructor is in one box, so that the compiler can inline the destructor of a decision.
#[derive(Clone, Debug, Default)]
pub(crate) struct HitOrigins {
    first: ArrayVec<HitOrigin, INLINE_ORIGINS>,
    /// Data that few requests need; `None` if the request has none of it.
    rest: Option<Box<UncommonHitOrigins>>,
}

/// The data of [`HitOrigins`] that few requests have: many hits, limits in descriptors, and rules without limits.
#[derive(Clone, Debug, Default)]
struct UncommonHitOrigins {
    /// The origins of the hits after the first [`INLINE_ORIGINS`].
    hits: Vec<HitOrigin>,
    /// The limits that the descriptors of the request contained.
    requested: Vec<Arc<RuleLimit>>,
    /// Indexes of the descriptors to which a rule without limits (`limits: unlimited`) applies.
    unlimited: Vec<u32>,
}

/// The rule and the limit from which a hit was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HitOrigin {
    /// Index of the match in `MatchedRules`.
    pub(crate) matched: u32,
    /// Index of the descriptor in the request.
    pub(crate) descriptor: u32,
    /// Index of the rule in the policy.
    pub(crate) rule: u32,
    pub(crate) settings_source: SettingsSource,
    /// Index of the limit in the settings of the rule. If `is_requested` is set, the index of
    /// the limit in [`HitOrigins::requested_limit`].
    pub(crate) limit: u16,
    pub(crate) is_requested: bool,
    pub(crate) is_refund: bool,
    pub(crate) is_reported: bool,
    /// Whether the hit charges the cost of the request. `false` for a refund and for a rule with its own `cost`.
    pub(crate) has_request_cost: bool,
    pub(crate) veto: Veto,
}

/// Creates the origins of a request with one hit.
impl From<HitOrigin> for HitOrigins {
    fn from(origin: HitOrigin) -> Self {
        let mut origins = Self::default();
        origins.push(origin);
        origins
    }
}

impl HitOrigins {
    /// Appends the origin of the next hit.
    #[inline]
    pub(super) fn push(&mut self, origin: HitOrigin) {
        if let Err(full) = self.first.try_push(origin) {
            self.uncommon_mut().hits.push(full.element());
        }
    }

    /// Adds a limit that a descriptor contained. Returns its index for [`HitOrigin::limit`].
    pub(super) fn push_requested_limit(&mut self, limit: Arc<RuleLimit>) -> u16 {
        let requested = &mut self.uncommon_mut().requested;
        requested.push(limit);
        (requested.len() - 1) as u16
    }

    /// Records that a rule without limits applies to the descriptor with this index.
    pub(super) fn push_unlimited_descriptor(&mut self, descriptor: u32) {
        self.uncommon_mut().unlimited.push(descriptor);
    }

    #[cold]
    fn uncommon_mut(&mut self) -> &mut UncommonHitOrigins {
        self.rest.get_or_insert_default()
    }

    /// Returns the origin of the hit with this index.
    #[inline]
    pub(crate) fn get(&self, hit_index: usize) -> Option<HitOrigin> {
        match self.first.get(hit_index) {
            Some(origin) => Some(*origin),
            None => self.rest.as_ref()?.hits.get(hit_index.checked_sub(INLINE_ORIGINS)?).copied(),
        }
    }

    /// Returns a limit that a descriptor contained. `index` is [`HitOrigin::limit`].
    pub(crate) fn requested_limit(&self, index: usize) -> Option<&RuleLimit> {
        self.rest.as_ref()?.requested.get(index).map(|limit| &**limit)
    }

    /// Returns `true` if a rule without limits applies to the descriptor with this index.
    pub(crate) fn is_unlimited(&self, descriptor: usize) -> bool {
        let unlimited = self.rest.iter().flat_map(|rest| &rest.unlimited);
        unlimited.into_iter().any(|&index| index as usize == descriptor)
    }

    /// Returns `true` if both have the same hits and no uncommon data, so that they have the same limits.
    pub(crate) fn are_same(&self, other: &Self) -> bool {
        self.first == other.first && self.rest.is_none() && other.rest.is_none()
    }
}

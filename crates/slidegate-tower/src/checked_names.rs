//! The state of the comparison of the names of a layer with the names of a policy. The module [`names`](crate::names)
//! compares them.

use std::sync::atomic::{AtomicU64, Ordering};

/// The state of the comparison of a layer with the policy of its gate.
#[derive(Debug, Default)]
pub struct NameCheckState {
    /// The [id](slidegate::Policy::id) of the policy that was compared last; 0 if none was.
    policy_id: AtomicU64,
    /// The extractors without whose values a rule does not apply, as [bits](crate::Attributes::attribute_bit). An
    /// extractor is removed when a warning about its value has been logged.
    needed_extractors: AtomicU64,
}

/// A clone starts without a comparison, because it belongs to a copy of a layer whose names are about to be changed.
impl Clone for NameCheckState {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl NameCheckState {
    /// Returns whether the policy with this id has been compared last.
    pub fn is_policy_checked(&self, policy_id: u64) -> bool {
        self.policy_id.load(Ordering::Relaxed) == policy_id
    }

    /// Returns `true` if the caller must compare the policy with this id. Later calls return `false`.
    pub fn begin_check(&self, policy_id: u64) -> bool {
        self.policy_id.swap(policy_id, Ordering::Relaxed) != policy_id
    }

    pub fn set_needed_extractors(&self, extractors: u64) {
        self.needed_extractors.store(extractors, Ordering::Relaxed);
    }

    /// Returns whether a rule needs one of these extractors, and no warning about its value has been logged.
    pub fn needs_any_extractor(&self, extractors: u64) -> bool {
        self.needed_extractors.load(Ordering::Relaxed) & extractors != 0
    }

    /// Removes an extractor from the needed ones. Returns whether it was one of them.
    pub fn remove_needed_extractor(&self, extractor: u64) -> bool {
        self.needed_extractors.fetch_and(!extractor, Ordering::Relaxed) & extractor != 0
    }
}

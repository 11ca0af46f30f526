//! The rules of a policy in two forms: as written, and as an instance enforces them while the store is unavailable.
//!
//! Both forms have the same rules at the same indexes; only their limits differ.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::rule::Rule;

/// The rules of a policy, and a copy of them with divided limits.
#[derive(Clone, Debug)]
pub(super) struct FullAndLocalRules {
    /// All rules, in the order of the file.
    pub(super) all: Arc<[Rule]>,
    /// A copy of the rules in which each limit is divided by `instances`. Enforced while the store is unavailable.
    local_rules: Arc<[Rule]>,
    /// The number of instances of the service that share the store.
    instances: NonZeroU32,
}

impl FullAndLocalRules {
    /// Creates the rule sets of a service that runs as one process, which enforces each limit in full.
    pub(super) fn new(all: Arc<[Rule]>) -> Self {
        Self { local_rules: all.clone(), instances: NonZeroU32::MIN, all }
    }

    /// Sets the number of instances that share the store, and divides the limits of the local rules by it.
    pub(super) fn with_instance_count(self, instances: NonZeroU32) -> Self {
        let local_rules = match instances {
            NonZeroU32::MIN => self.all.clone(),
            _ => self.all.iter().map(|rule| rule.with_per_instance_limits(instances)).collect(),
        };
        Self { local_rules, instances, ..self }
    }

    /// Returns the rules that an instance enforces in its own memory while the store is unavailable: their limits are
    /// divided by the number of instances, which is returned too.
    pub(super) fn local_rules(&self) -> (&Arc<[Rule]>, NonZeroU32) {
        (&self.local_rules, self.instances)
    }
}

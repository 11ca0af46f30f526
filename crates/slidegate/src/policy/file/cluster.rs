//! Makes terms for clusters of what a policy file says of them.

use super::compile::Compiler;
use super::spec::RuleSpec;
use crate::cluster_options::ClusterOptions;

impl Compiler<'_> {
    /// What the rule says to stores that count in a cluster.
    pub(super) fn cluster(&mut self, rule: &RuleSpec) -> Option<ClusterOptions> {
        let (entry, at) = rule.cluster.given()?;
        if entry.max_unsynced.is_absent() && entry.on_partition.is_absent() {
            let message =
                "`cluster` is empty: give it `max_unsynced` or `on_partition`, or leave it out";
            self.wrong(at, message);
        }
        let on_partition = entry.on_partition.get().copied().unwrap_or_default();
        let settings = ClusterOptions::new().with_on_partition(on_partition);
        let Some((&units, at)) = entry.max_unsynced.given() else { return Some(settings) };
        self.or_wrong(at, settings.with_max_unsynced(units))
    }
}

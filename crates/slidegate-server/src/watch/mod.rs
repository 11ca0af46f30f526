//! Who watches what is decided. Nothing here changes an answer.

pub mod metrics;
mod seconds;
mod store;
mod verdict;

use slidegate::policy::Applied;
use slidegate::{Policy, Ruling};

pub use self::metrics::Metrics;
pub use self::store::Watched;

use self::metrics::LimitCounters;
use self::verdict::Verdict;

/// Gathers what the admin address tells.
pub struct Watch {
    metrics: Option<Metrics>,
}

/// What is gathered of each limit of one policy, by its place; of none if no metrics are.
#[derive(Default)]
pub struct Tallies(Box<[LimitCounters]>);

impl Watch {
    /// Nothing seen yet.
    pub fn new(metrics: Option<Metrics>) -> Self {
        Self { metrics }
    }

    /// The metrics, if they are gathered.
    pub fn metrics(&self) -> Option<&Metrics> {
        self.metrics.as_ref()
    }

    /// Where to count what a policy decides. What was counted under another policy goes on.
    pub fn tallies(&self, policy: &Policy) -> Tallies {
        let Some(metrics) = &self.metrics else { return Tallies::default() };
        Tallies(policy.limits().map(|(rule, limit)| metrics.limit(rule, limit)).collect())
    }

    /// Sees a decision: that `applied` was decided so.
    pub fn decided(&self, tallies: &Tallies, applied: &Applied<'_>, ruling: &Ruling) {
        let decision = ruling.decision();
        if let Some(metrics) = self.metrics.as_ref().filter(|_| decision.is_degraded()) {
            metrics.degraded_decisions.inc();
        }
        for standing in ruling.limits() {
            let Some(verdict) = Verdict::of(&standing, decision.is_allowed()) else { continue };
            if let Some(counters) = tallies.0.get(standing.limit.place()) {
                counters.count(verdict);
            }
            let _ = standing.asked_by(applied);
        }
    }
}

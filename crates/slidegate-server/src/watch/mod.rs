//! Who watches what is decided. Nothing here changes an answer.

mod denials;
pub mod metrics;
mod pace;
pub mod redact;
mod seconds;
mod store;
mod striped;
pub mod top;
pub mod traces;
mod unmatched;
mod verdict;

use std::collections::HashMap;

use slidegate::policy::MatchedRules;
use slidegate::{Clock, Policy, Ruling, SystemClock, Timestamp};

pub use self::denials::Denials;
pub use self::metrics::Metrics;
pub use self::pace::Pace;
pub use self::redact::Redact;
pub use self::store::Watched;
pub use self::top::Top;
pub use self::traces::Traces;

use self::metrics::{LimitCounters, UnmatchedCounter};
use self::top::{Kind, Report};
use self::unmatched::UnknownDomains;
use self::verdict::Verdict;

/// Keys of each rule that are counted in each minute.
const TOP_KEYS: usize = 64;

/// Sees what is decided: gathers what the admin address tells, and tells the log and a collector of traces.
pub struct Watch {
    clock: SystemClock,
    gathered: Option<Gathered>,
    denials: Option<Denials>,
    traces: Option<Traces>,
    unknown_domains: UnknownDomains,
}

/// What the admin address tells.
struct Gathered {
    metrics: Metrics,
    top: Top,
}

/// The counters of one policy.
pub struct Tallies {
    /// Indexed by the place of the limit; empty if no metrics are gathered.
    limits: Box<[LimitCounters]>,
    /// Requests to which no rule applied, by domain: every domain of the policy, and no other.
    unmatched: HashMap<Box<str>, Option<UnmatchedCounter>>,
}

impl Watch {
    /// Nothing seen yet, and nobody who sees.
    pub fn new() -> Self {
        Self {
            clock: SystemClock::new(),
            gathered: None,
            denials: None,
            traces: None,
            unknown_domains: UnknownDomains::new(),
        }
    }

    /// The same with what the admin address tells; values are shown as `redact` does.
    pub fn gathering(self, metrics: Metrics, redact: Redact) -> Self {
        let top = Top::new(TOP_KEYS, redact, self.clock.now());
        Self { gathered: Some(Gathered { metrics, top }), ..self }
    }

    /// The same with denials in the log, and with traces.
    pub fn telling(self, denials: Option<Denials>, traces: Option<Traces>) -> Self {
        Self { denials, traces, ..self }
    }

    /// The metrics, if they are gathered.
    pub fn metrics(&self) -> Option<&Metrics> {
        self.gathered.as_ref().map(|gathered| &gathered.metrics)
    }

    /// Who is limited most: so many keys of each rule.
    pub fn top(&self, most: usize) -> Option<Report> {
        self.gathered.as_ref().map(|gathered| gathered.top.report(most, self.clock.now()))
    }

    /// The traces, if there are any.
    pub fn traces(&self) -> Option<&Traces> {
        self.traces.as_ref()
    }

    /// Where to count what a policy decides. What was counted under another policy goes on.
    pub fn tallies(&self, policy: &Policy) -> Tallies {
        let metrics = self.metrics();
        let limits = metrics
            .into_iter()
            .flat_map(|metrics| policy.limits().map(|(rule, limit)| metrics.limit(rule, limit)));
        let unmatched = policy
            .domains()
            .map(|domain| (domain.into(), metrics.map(|metrics| metrics.unmatched(domain))));
        Tallies { limits: limits.collect(), unmatched: unmatched.collect() }
    }

    /// Records the decision about a request of a domain, to which `applied` applied.
    pub fn decided(
        &self,
        tallies: &Tallies,
        domain: &str,
        applied: &MatchedRules<'_>,
        ruling: &Ruling,
    ) {
        if applied.matches().next().is_none() {
            self.unmatched(tallies, domain);
        }
        if let Some(gathered) = &self.gathered {
            gathered.count(tallies, applied, ruling, || self.clock.now());
        }
        if let Some(denials) = &self.denials {
            denials.decided(applied, ruling);
        }
    }

    /// Records a request to which no rule applied. Only domains of the policy are labels.
    fn unmatched(&self, tallies: &Tallies, domain: &str) {
        match tallies.unmatched.get(domain) {
            Some(Some(counter)) => drop(counter.inc()),
            Some(None) => {}
            None => {
                if let Some(metrics) = self.metrics() {
                    metrics.unknown_domain_requests.inc();
                }
                self.unknown_domains.log(domain);
            }
        }
    }
}

impl Gathered {
    fn count(
        &self,
        tallies: &Tallies,
        applied: &MatchedRules<'_>,
        ruling: &Ruling,
        now: impl Fn() -> Timestamp,
    ) {
        let decision = ruling.decision();
        if decision.is_degraded() {
            self.metrics.degraded_decisions.inc();
        }
        // Of one who asks, a rule counts each kind once, however many of its limits say so.
        let mut told = (usize::MAX, 0_u8);
        for standing in ruling.limits() {
            let Some(verdict) = Verdict::of(&standing, decision.is_allowed()) else { continue };
            if let Some(counters) = tallies.limits.get(standing.limit.index()) {
                counters.count(verdict);
            }
            let Some(kind) = kind(verdict) else { continue };
            if told.0 != standing.match_index() {
                told = (standing.match_index(), 0);
            }
            let first = told.1 & (1 << kind as u8) == 0;
            told.1 |= 1 << kind as u8;
            if let Some(asked) = standing.find_match(applied).filter(|_| first) {
                self.top.count(kind, standing.rule, || asked.identity(), 1, now());
            }
        }
    }
}

/// What a key is counted for.
fn kind(verdict: Verdict) -> Option<Kind> {
    match verdict {
        Verdict::Allowed => None,
        Verdict::Near => Some(Kind::Near),
        Verdict::Denied => Some(Kind::Denied),
        Verdict::Observed => Some(Kind::Observed),
    }
}

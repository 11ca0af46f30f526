//! Denials in the log: a few of them, with who was denied and why.

use std::fmt::{self, Write};
use std::time::Duration;

use slidegate::policy::{Match, MatchedRules};
use slidegate::{Clock, LimitStatus, Ruling, SystemClock};
use tracing::info;

use super::limit_result::LimitResult;
use super::log_throttle::LogThrottle;
use super::redact::{RedactedValue, Redactor};
use crate::durations::ceil_millis;

/// Bytes that a value may have in the log.
const MAX_VALUE_BYTES: usize = 128;

/// Logs denials, so many in each second.
pub struct DenialLog {
    log_throttle: LogThrottle,
    redactor: Redactor,
    clock: SystemClock,
}

impl DenialLog {
    /// At most so many in one second; none if that is zero.
    pub fn new(per_second: u16, redactor: Redactor) -> Option<Self> {
        let log_throttle = LogThrottle::new(per_second, Duration::from_secs(1));
        (per_second > 0).then(|| Self { log_throttle, redactor, clock: SystemClock::new() })
    }

    /// Tells of a decision, if it denies, or if a rule that only watches would have.
    pub fn record(&self, applied: &MatchedRules<'_>, ruling: &Ruling) {
        let decision = ruling.decision();
        if !decision.is_allowed() {
            self.log_denied(applied, ruling);
        }
        for status in ruling.limits().filter(LimitStatus::is_observed) {
            if LimitResult::from_status(&status, decision.is_allowed())
                == Some(LimitResult::Observed)
            {
                self.observed(&status, applied, decision.is_degraded());
            }
        }
    }

    fn log_denied(&self, applied: &MatchedRules<'_>, ruling: &Ruling) {
        let Some(unlogged) = self.log_throttle.try_acquire(self.clock.now()) else { return };
        let degraded = ruling.decision().is_degraded();
        match ruling.binding() {
            Some(status) => self.log_limit(&status, applied, degraded, unlogged),
            None => {
                let domain = applied.matches().next().map(|one| one.rule().domain());
                let because = ruling.decision().is_refused().then_some("the store did not answer");
                info!(domain, because, degraded, unlogged, "denied");
            }
        }
    }

    fn observed(&self, status: &LimitStatus<'_>, applied: &MatchedRules<'_>, degraded: bool) {
        if let Some(unlogged) = self.log_throttle.try_acquire(self.clock.now()) {
            self.log_limit(status, applied, degraded, unlogged);
        }
    }

    fn log_limit(
        &self,
        status: &LimitStatus<'_>,
        applied: &MatchedRules<'_>,
        degraded: bool,
        unlogged: u64,
    ) {
        let asked_by = status.asked_by(applied);
        let key = asked_by.map(|one| self.key(one).to_string()).filter(|key| !key.is_empty());
        let cost = asked_by.and_then(|one| one.hits().next()).map(|hit| hit.cost);
        let observed = status.is_observed();
        info!(
            domain = status.rule.domain(),
            rule = status.rule.name(),
            limit = status.limit.id(),
            key,
            cost,
            retry_after_ms = status.outcome.retry_after().map(ceil_millis),
            reset_after_ms = ceil_millis(status.outcome.reset_after()),
            observed,
            degraded,
            unlogged,
            "{}",
            if observed { "would have been denied" } else { "denied" }
        );
    }

    /// Whose counts, as people read it: `tenant=acme,ip=192.0.2.7`.
    fn key(&self, asked_by: &Match<'_>) -> impl fmt::Display {
        fmt::from_fn(move |f| {
            for (nth, (name, value)) in asked_by.identity().enumerate() {
                write!(f, "{}{name}=", if nth > 0 { "," } else { "" })?;
                match self.redactor.redact(name, value) {
                    RedactedValue::Value(value) => write_escaped(f, &value.to_string())?,
                    hash @ RedactedValue::Hash(_) => write!(f, "{hash}")?,
                }
            }
            Ok(())
        })
    }
}

/// Cut if it is long. What stands between two values is percent-encoded, so that no value looks like two.
fn write_escaped(f: &mut fmt::Formatter<'_>, value: &str) -> fmt::Result {
    let shown = &value[..value.floor_char_boundary(MAX_VALUE_BYTES)];
    for char in shown.chars() {
        match char {
            ',' => f.write_str("%2C")?,
            '%' => f.write_str("%25")?,
            _ => f.write_char(char)?,
        }
    }
    if shown.len() < value.len() { f.write_char('…') } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use slidegate::{Descriptor, Policy, Request};

    use super::*;

    fn key(redactor: &Redactor, tenant: &str, ip: &str) -> String {
        let policy = Policy::from_yaml("rules: [{ name: a, per: [tenant, ip], limits: [1/s] }]");
        let policy = policy.unwrap();
        let request = Request::new("default", Descriptor::new([("ip", ip), ("tenant", tenant)]));
        let applied = policy.apply(&request);
        DenialLog::new(1, redactor.clone())
            .unwrap()
            .key(applied.matches().next().unwrap())
            .to_string()
    }

    #[test]
    fn a_key_reads_as_one_has_it_and_no_value_looks_like_two() {
        assert_eq!(
            key(&Redactor::default(), "ac me=ö\n", "192.0.2.7"),
            "tenant=ac me=ö\n,ip=192.0.2.7"
        );
        assert_eq!(key(&Redactor::default(), "a,ip=1%", "2"), "tenant=a%2Cip=1%25,ip=2");
        let long = format!("{}ä", "x".repeat(127));
        assert_eq!(
            key(&Redactor::default(), &long, "2"),
            format!("tenant={}…,ip=2", "x".repeat(127))
        );
    }

    #[test]
    fn a_redacted_key_has_hashes_only_of_whole_values() {
        let redactor = Redactor::new(true);
        let key = |tenant: &str| key(&redactor, tenant, "same");
        let (one, other) = ("x".repeat(1024), "x".repeat(1023) + "y");
        assert_eq!(
            key(&one),
            format!(
                "tenant={},ip={}",
                redactor.redact("tenant", (&*one).into()),
                redactor.redact("ip", "same".into())
            )
        );
        assert_ne!(key(&one), key(&other));
    }
}

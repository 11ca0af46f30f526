//! What one limit had to say of a request.

use slidegate::{LimitStatus, Veto};

/// A limit's own verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitResult {
    /// The request fits, and passed.
    Allowed,
    /// The same, and more than 80 % of the limit is used.
    Near,
    /// It does not fit, and was denied.
    Denied,
    /// It does not fit, and was not denied: the rule observes, or another joint limit fits.
    Observed,
}

impl LimitResult {
    /// None if the request fits, and another limit denied it; or if units were given back.
    pub fn from_status(status: &LimitStatus<'_>, is_allowed: bool) -> Option<Self> {
        if status.is_refund() {
            return None;
        }
        let fits = status.outcome.fits();
        match status.veto {
            Veto::Alone if !fits => Some(Self::Denied),
            // Another joint limit fits.
            Veto::Jointly if !fits && is_allowed => Some(Self::Observed),
            Veto::Jointly if !fits => Some(Self::Denied),
            Veto::Never if !fits => Some(Self::Observed),
            _ if !is_allowed => None,
            _ if is_near(status) => Some(Self::Near),
            _ => Some(Self::Allowed),
        }
    }
}

fn is_near(status: &LimitStatus<'_>) -> bool {
    status.outcome.remaining().saturating_mul(5) < status.limit.limit().capacity()
}

#[cfg(test)]
mod tests {
    use slidegate::{Descriptor, Gate, ManualClock, MemoryStore, Policy, Request};

    use super::*;

    const POLICY: &str = "
rules:
  - { name: narrow, limits: [10/h], algorithm: sliding_log }
  - { name: watched, limits: [3/h], algorithm: sliding_log, mode: observe }
";

    #[test]
    fn each_limit_has_a_verdict_of_its_own() {
        let policy = Policy::from_yaml(POLICY).unwrap();
        let gate = Gate::new(policy, MemoryStore::with_clock(ManualClock::default(), 10));
        let next = || {
            let ruling = gate.check_now(&Request::new("default", Descriptor::new([])));
            let allowed = ruling.decision().is_allowed();
            let verdicts = ruling.limits().map(|status| LimitResult::from_status(&status, allowed));
            <[_; 2]>::try_from(verdicts.collect::<Vec<_>>()).unwrap()
        };
        use LimitResult::{Allowed, Denied, Near, Observed};
        assert_eq!(next(), [Some(Allowed), Some(Allowed)]);
        assert_eq!(next(), [Some(Allowed), Some(Allowed)]);
        assert_eq!(next(), [Some(Allowed), Some(Near)]);
        assert_eq!(next(), [Some(Allowed), Some(Observed)]);
        for _ in 4..8 {
            assert_eq!(next()[0], Some(Allowed), "80 % are not above 80 %");
        }
        assert_eq!(next()[0], Some(Near));
        assert_eq!(next()[0], Some(Near));
        assert_eq!(next(), [Some(Denied), Some(Observed)]);
    }

    #[test]
    fn joint_limit_that_does_not_fit_denies_only_with_all_others() {
        let rule = |name, max| {
            format!("{{ name: {name}, limits: [{max}/h], mode: jointly, algorithm: sliding_log }}")
        };
        let policy = format!("rules: [{}, {}]", rule("small", 1), rule("large", 2));
        let policy = Policy::from_yaml(&policy).unwrap();
        let gate = Gate::new(policy, MemoryStore::with_clock(ManualClock::default(), 10));
        let next = || {
            let ruling = gate.check_now(&Request::new("default", Descriptor::new([])));
            let allowed = ruling.decision().is_allowed();
            let verdicts = ruling.limits().map(|status| LimitResult::from_status(&status, allowed));
            verdicts.collect::<Vec<_>>()
        };
        assert_eq!(next(), [Some(LimitResult::Near), Some(LimitResult::Allowed)]);
        assert_eq!(next(), [Some(LimitResult::Observed), Some(LimitResult::Near)]);
        assert_eq!(next(), [Some(LimitResult::Denied), Some(LimitResult::Denied)]);
    }

    #[test]
    fn what_is_given_back_has_no_verdict() {
        let policy = Policy::from_yaml(POLICY).unwrap();
        let gate = Gate::new(policy, MemoryStore::with_clock(ManualClock::default(), 10));
        for cost in [3, 10] {
            let back = Descriptor::new([]).cost(cost).as_refund();
            let ruling = gate.check_now(&Request::new("default", back));
            assert_eq!(ruling.limits().count(), 2);
            assert!(
                ruling.limits().all(|status| LimitResult::from_status(&status, true).is_none())
            );
        }
    }
}

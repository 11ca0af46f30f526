//! Logs requests with domains that are not in the policy, at a limited rate.

use std::time::Duration;

use slidegate::clock::{Clock, SystemClock};
use tracing::warn;

use super::log_throttle::LogThrottle;

/// Maximum number of bytes of a domain in the log. Longer domains are cut.
const MAX_LOGGED_DOMAIN_BYTES: usize = 128;

/// A log of requests with domains that are not in the policy, with at most one message per minute.
pub struct UnknownDomainLog {
    log_throttle: LogThrottle,
    clock: SystemClock,
}

impl UnknownDomainLog {
    /// Creates a log of unknown domains that has not logged a message yet.
    pub fn new() -> Self {
        Self {
            log_throttle: LogThrottle::new(1, Duration::from_secs(60)),
            clock: SystemClock::new(),
        }
    }

    /// Logs a domain that is not in the policy, unless a domain has been logged in the current minute. The field
    /// `unlogged` is the number of such requests that were not logged since the last message.
    pub fn log(&self, domain: &str) {
        if let Some(unlogged) = self.log_throttle.try_acquire(self.clock.now()) {
            let domain = truncate_domain_for_log(domain);
            warn!(
                domain,
                unlogged,
                "the policy has no rule for this domain, so its requests are not limited; add a rule, or \
                 correct the domain of the caller"
            );
        }
    }
}

fn truncate_domain_for_log(domain: &str) -> &str {
    &domain[..domain.floor_char_boundary(MAX_LOGGED_DOMAIN_BYTES)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_domain_is_truncated_at_character_boundary() {
        assert_eq!(truncate_domain_for_log("shop"), "shop");
        let long = format!("{}ä", "x".repeat(MAX_LOGGED_DOMAIN_BYTES - 1));
        assert_eq!(truncate_domain_for_log(&long), "x".repeat(MAX_LOGGED_DOMAIN_BYTES - 1));
    }
}

//! Requests for domains that the policy does not have, in the log.

use std::time::Duration;

use slidegate::{Clock, SystemClock};
use tracing::warn;

use super::log_throttle::LogThrottle;

/// Bytes of a domain that are logged.
const MAX_DOMAIN_BYTES: usize = 128;

/// Logs unknown domains, at most one in each minute.
pub struct UnknownDomainLog {
    log_throttle: LogThrottle,
    clock: SystemClock,
}

impl UnknownDomainLog {
    /// Creates one that has logged nothing.
    pub fn new() -> Self {
        Self {
            log_throttle: LogThrottle::new(1, Duration::from_secs(60)),
            clock: SystemClock::new(),
        }
    }

    /// Logs a domain, unless one was logged in this minute. `unlogged` counts the requests since then.
    pub fn log(&self, domain: &str) {
        if let Some(unlogged) = self.log_throttle.try_acquire(self.clock.now()) {
            let domain = truncate(domain);
            warn!(
                domain,
                unlogged, "the policy has no rule of this domain: requests for it are not limited"
            );
        }
    }
}

fn truncate(domain: &str) -> &str {
    &domain[..domain.floor_char_boundary(MAX_DOMAIN_BYTES)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_domain_is_cut_between_characters() {
        assert_eq!(truncate("shop"), "shop");
        let long = format!("{}ä", "x".repeat(MAX_DOMAIN_BYTES - 1));
        assert_eq!(truncate(&long), "x".repeat(MAX_DOMAIN_BYTES - 1));
    }
}

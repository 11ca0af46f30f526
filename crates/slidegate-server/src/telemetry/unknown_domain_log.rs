//! Logs requests with domains that are not in the policy.

use std::time::Duration;

use slidegate::{Clock, SystemClock};
use tracing::warn;

use super::log_throttle::LogThrottle;

/// Maximum number of bytes of a domain in the log.
const MAX_DOMAIN_BYTES: usize = 128;

/// Logs at most one unknown domain per minute.
pub struct UnknownDomainLog {
    log_throttle: LogThrottle,
    clock: SystemClock,
}

impl UnknownDomainLog {
    /// Creates a log.
    pub fn new() -> Self {
        Self {
            log_throttle: LogThrottle::new(1, Duration::from_secs(60)),
            clock: SystemClock::new(),
        }
    }

    /// Logs a domain, unless one has been logged in the current minute. The field `unlogged` is the number of requests
    /// since the last message.
    pub fn log(&self, domain: &str) {
        if let Some(unlogged) = self.log_throttle.try_acquire(self.clock.now()) {
            let domain = truncate_domain(domain);
            warn!(
                domain,
                unlogged, "the policy has no rule of this domain: its requests are not limited"
            );
        }
    }
}

fn truncate_domain(domain: &str) -> &str {
    &domain[..domain.floor_char_boundary(MAX_DOMAIN_BYTES)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_domain_is_cut_between_characters() {
        assert_eq!(truncate_domain("shop"), "shop");
        let long = format!("{}ä", "x".repeat(MAX_DOMAIN_BYTES - 1));
        assert_eq!(truncate_domain(&long), "x".repeat(MAX_DOMAIN_BYTES - 1));
    }
}

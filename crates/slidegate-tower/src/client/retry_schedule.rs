//! The schedule of retries: the maximum number of attempts for a request, and the waits between attempts.

use std::time::Duration;

use http::{Response, StatusCode};
use slidegate::Jitter;
use slidegate::clock::{Clock, WallClock};

use super::rate_limit_headers::parse_retry_delay;

/// The minimum value of both backoff settings (`initial` and `max`), so that the client does not retry without a pause.
const MIN_BACKOFF: Duration = Duration::from_millis(1);

/// The maximum number of attempts, and the settings for the waits between attempts.
#[derive(Clone, Debug)]
pub(super) struct RetrySchedule {
    pub max_attempts: u32,
    pub total_time: Duration,
    pub jitter: Jitter,
    initial_backoff: Duration,
    max_backoff: Duration,
}

impl Default for RetrySchedule {
    fn default() -> Self {
        Self {
            max_attempts: 4,
            total_time: Duration::from_secs(30),
            jitter: Jitter::up_to_percent(10),
            initial_backoff: Duration::from_millis(500),
            max_backoff: Duration::from_secs(10),
        }
    }
}

impl RetrySchedule {
    pub fn set_backoff(&mut self, initial: Duration, max: Duration) {
        self.initial_backoff = initial.max(MIN_BACKOFF);
        self.max_backoff = max.max(MIN_BACKOFF);
    }

    /// Returns the wait before the next attempt; `None` if the response is final. `attempt` is the number of the
    /// attempt that received the response, starting at 1, and `elapsed` is the time since the start of the first
    /// attempt.
    pub fn compute_wait_before_retry<R>(
        &self,
        response: &Response<R>,
        attempt: u32,
        elapsed: Duration,
    ) -> Option<Duration> {
        if !is_denial_status(response.status()) || attempt >= self.max_attempts {
            return None;
        }
        let wait = match parse_retry_delay(response.headers(), WallClock.now()) {
            // A stated wait of zero counts as no stated wait, so that the client backs off and does not retry without a
            // pause.
            None | Some(Duration::ZERO) => self.draw_random_backoff(attempt),
            Some(stated) => self.jitter.draw().extend(stated),
        };
        (elapsed.saturating_add(wait) <= self.total_time).then_some(wait)
    }

    /// Draws a backoff with full jitter: a random time between zero and a bound that doubles with each attempt.
    fn draw_random_backoff(&self, attempt: u32) -> Duration {
        Jitter::up_to(self.backoff_upper_bound(attempt)).draw().extend(Duration::ZERO)
    }

    /// Returns the upper bound of the backoff after the given attempt. Attempts are counted from 1.
    fn backoff_upper_bound(&self, attempt: u32) -> Duration {
        let factor = 2_u32.saturating_pow(attempt.saturating_sub(1));
        self.initial_backoff.saturating_mul(factor).min(self.max_backoff)
    }
}

fn is_denial_status(status: StatusCode) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS || status == StatusCode::SERVICE_UNAVAILABLE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_four_backoff_upper_bounds(initial: Duration, max: Duration) -> [Duration; 4] {
        let mut schedule = RetrySchedule::default();
        schedule.set_backoff(initial, max);
        [1, 2, 3, u32::MAX].map(|attempt| schedule.backoff_upper_bound(attempt))
    }

    #[test]
    fn backoff_upper_bound_doubles_up_to_max() {
        let ms = Duration::from_millis;
        assert_eq!(first_four_backoff_upper_bounds(ms(100), ms(350)), [100, 200, 350, 350].map(ms));
        assert_eq!(first_four_backoff_upper_bounds(ms(100), ms(50)), [ms(50); 4]);
        assert_eq!(first_four_backoff_upper_bounds(Duration::ZERO, Duration::ZERO), [ms(1); 4]);
        assert_eq!(
            first_four_backoff_upper_bounds(Duration::MAX, Duration::MAX),
            [Duration::MAX; 4]
        );
    }
}

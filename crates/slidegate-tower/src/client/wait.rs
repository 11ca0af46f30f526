//! Whether to wait after an answer, and for how long.

use std::time::Duration;

use http::{Response, StatusCode};
use slidegate::{Clock, Jitter, WallClock};

use super::told::told_wait;

/// Less than this is no pause.
const LEAST_BACKOFF: Duration = Duration::from_millis(1);

/// How long to wait, and how often.
#[derive(Clone, Debug)]
pub(super) struct Waits {
    pub attempts: u32,
    pub total_time: Duration,
    pub jitter: Jitter,
    first_backoff: Duration,
    most_backoff: Duration,
}

impl Default for Waits {
    fn default() -> Self {
        Self {
            attempts: 4,
            total_time: Duration::from_secs(30),
            jitter: Jitter::up_to_percent(10),
            first_backoff: Duration::from_millis(500),
            most_backoff: Duration::from_secs(10),
        }
    }
}

impl Waits {
    pub fn set_backoff(&mut self, first: Duration, most: Duration) {
        self.first_backoff = first.max(LEAST_BACKOFF);
        self.most_backoff = most.max(LEAST_BACKOFF);
    }

    /// How long to wait after an answer to the `asked`-th attempt, `elapsed` after the first began; none if
    /// this answer is the last.
    pub fn after<R>(
        &self,
        answer: &Response<R>,
        asked: u32,
        elapsed: Duration,
    ) -> Option<Duration> {
        if !is_denied(answer.status()) || asked >= self.attempts {
            return None;
        }
        let wait = match told_wait(answer.headers(), WallClock.now()) {
            // To come back at once, again and again, is what nobody means who tells to wait.
            None | Some(Duration::ZERO) => self.backoff(asked),
            Some(told) => self.jitter.draw().extend(told),
        };
        (elapsed.saturating_add(wait) <= self.total_time).then_some(wait)
    }

    /// Full jitter: anything up to a bound that doubles.
    fn backoff(&self, asked: u32) -> Duration {
        Jitter::up_to(self.most_after(asked)).draw().extend(Duration::ZERO)
    }

    /// The bound after the `asked`-th attempt.
    fn most_after(&self, asked: u32) -> Duration {
        let doubled = 2_u32.saturating_pow(asked.saturating_sub(1));
        self.first_backoff.saturating_mul(doubled).min(self.most_backoff)
    }
}

fn is_denied(status: StatusCode) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS || status == StatusCode::SERVICE_UNAVAILABLE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(first: Duration, most: Duration) -> [Duration; 4] {
        let mut waits = Waits::default();
        waits.set_backoff(first, most);
        [1, 2, 3, u32::MAX].map(|asked| waits.most_after(asked))
    }

    #[test]
    fn the_backoff_doubles_up_to_its_most() {
        let ms = Duration::from_millis;
        assert_eq!(bounds(ms(100), ms(350)), [100, 200, 350, 350].map(ms));
        assert_eq!(bounds(ms(100), ms(50)), [ms(50); 4]);
        assert_eq!(bounds(Duration::ZERO, Duration::ZERO), [ms(1); 4]);
        assert_eq!(bounds(Duration::MAX, Duration::MAX), [Duration::MAX; 4]);
    }
}

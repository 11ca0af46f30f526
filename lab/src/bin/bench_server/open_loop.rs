//! Sends requests in an open loop: each request is due at a predetermined time, even if earlier responses are late. The
//! delay of a request is measured from its due time. A closed loop, in contrast, sends the next request only after the
//! response. While the server stalls, a closed loop sends no requests, so few delays are measured.

use std::error::Error;
use std::time::Duration;
use std::{fs, thread};

use hdrhistogram::Histogram;
use quanta::Instant;

/// The maximum delay in the histogram. Longer delays are recorded as this delay.
const MAX_HISTOGRAM_DELAY: Duration = Duration::from_secs(60);

/// The number of significant decimal digits of the delays in the histogram.
const HISTOGRAM_SIGNIFICANT_DIGITS: u8 = 3;

/// A clock that shows the time since the start of a measurement.
pub trait LoadClock {
    /// Returns the time since the start of the measurement.
    fn now(&self) -> Duration;

    /// Waits until the time `due` after the start of the measurement.
    fn wait_until(&self, due: Duration);
}

/// The real clock of this machine, which shows the time since the start of a measurement.
pub struct WallLoadClock {
    start: Instant,
}

impl WallLoadClock {
    /// Creates a clock that counts from `start`. It also configures the current thread so that it wakes up at the exact
    /// time.
    pub fn new(start: Instant) -> Self {
        // By default Linux may wake a thread 50 µs late, to wake several threads at once. Failure to change this is
        // ignored.
        if let Ok(thread) = fs::read_link("/proc/thread-self")
            && let Some(id) = thread.file_name()
        {
            let _ = fs::write(format!("/proc/{}/timerslack_ns", id.display()), "1");
        }
        Self { start }
    }
}

impl LoadClock for WallLoadClock {
    fn now(&self) -> Duration {
        Instant::now().saturating_duration_since(self.start)
    }

    fn wait_until(&self, due: Duration) {
        // The start may be in the future.
        let early = (self.start + due).saturating_duration_since(Instant::now());
        if !early.is_zero() {
            thread::sleep(early);
        }
    }
}

/// An iterator over the due times of requests. They are random (a Poisson process), like the requests of many
/// independent clients.
pub struct Poisson {
    random: fastrand::Rng,
    mean: Duration,
    next: Duration,
    end: Duration,
}

impl Poisson {
    /// Creates an iterator over due times with this mean number of requests per second. All due times are before `end`.
    pub fn new(per_second: f64, end: Duration, seed: u64) -> Self {
        let mean = Duration::from_secs_f64(1.0 / per_second);
        Self { random: fastrand::Rng::with_seed(seed), mean, next: Duration::ZERO, end }
    }
}

impl Iterator for Poisson {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.next += self.mean.mul_f64(-(1.0 - self.random.f64()).ln());
        (self.next < self.end).then_some(self.next)
    }
}

/// Sends each request at its due time, or as soon as the previous response has arrived if that is later. Returns the
/// delays between the due times and the responses, in nanoseconds.
///
/// # Errors
/// If a request fails.
pub fn measure_delays(
    due: impl Iterator<Item = Duration>,
    clock: &impl LoadClock,
    mut send: impl FnMut() -> Result<(), Box<dyn Error>>,
) -> Result<Histogram<u64>, Box<dyn Error>> {
    let mut delays = empty_histogram()?;
    for due in due {
        clock.wait_until(due);
        send()?;
        let delay = clock.now().saturating_sub(due);
        delays.saturating_record(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX));
    }
    Ok(delays)
}

/// Creates an empty histogram for delays in nanoseconds.
pub fn empty_histogram() -> Result<Histogram<u64>, Box<dyn Error>> {
    Ok(Histogram::new_with_max(
        MAX_HISTOGRAM_DELAY.as_nanos() as u64,
        HISTOGRAM_SIGNIFICANT_DIGITS,
    )?)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A manual clock, which advances only while the load waits, or when the test sets it.
    #[derive(Default)]
    struct ManualLoadClock(Cell<Duration>);

    impl LoadClock for ManualLoadClock {
        fn now(&self) -> Duration {
            self.0.get()
        }

        fn wait_until(&self, due: Duration) {
            self.0.set(self.0.get().max(due));
        }
    }

    const ONE_MS: Duration = Duration::from_millis(1);

    #[test]
    fn slow_response_increases_delays_of_later_requests() -> Result<(), Box<dyn Error>> {
        let clock = ManualLoadClock::default();
        let mut sent = 0;
        // A thousand requests at intervals of 10 ms; the 500th response takes a second, all others 1 ms.
        let due = (1..=1000).map(|nth| 10 * ONE_MS * nth);
        let delays = measure_delays(due, &clock, || {
            sent += 1;
            let latency = if sent == 500 { 1000 * ONE_MS } else { ONE_MS };
            clock.0.set(clock.0.get() + latency);
            Ok(())
        })?;
        let ms = |quantile| delays.value_at_quantile(quantile) as f64 / 1e6;
        assert_eq!(delays.len(), 1000);
        // The next request was due 990 ms before the end of the stall. Each request makes up for 9 ms, so 110 are late.
        assert!((1.0..1.01).contains(&ms(0.88)), "{}", ms(0.88));
        assert!(ms(0.90) > 80.0, "{}", ms(0.90));
        assert!((880.0..920.0).contains(&ms(0.99)), "{}", ms(0.99));
        assert!((980.0..1001.0).contains(&ms(0.999)), "{}", ms(0.999));
        // A closed loop would show only one late response of a thousand.
        Ok(())
    }

    #[test]
    fn poisson_due_times_match_rate_and_distribution() {
        let due: Vec<Duration> = Poisson::new(1000.0, Duration::from_secs(20), 7).collect();
        assert!((19_000..21_000).contains(&due.len()), "{}", due.len());
        assert!(due.is_sorted());
        let early = due.windows(2).filter(|two| two[1] - two[0] < ONE_MS).count() as f64;
        let share = early / due.len() as f64;
        // A share of 1 - 1/e of such gaps is shorter than the mean.
        assert!((0.61..0.65).contains(&share), "{share}");
    }
}

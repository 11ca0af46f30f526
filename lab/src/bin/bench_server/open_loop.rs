//! Sends requests in an open loop: each request is due at a predetermined time, even if earlier responses are late. The
//! delay of a request is measured from its due time. A closed loop, in contrast, sends the next request only after the
//! response. While the server stalls, a closed loop sends no requests, so few delays are measured.

use std::cell::RefCell;
use std::error::Error;
use std::time::Duration;

use futures_util::future::{try_join, try_join_all};
use hdrhistogram::Histogram;
use quanta::Instant;
use tokio::sync::{Mutex, mpsc};
use tokio::task::yield_now;

/// The maximum delay in the histogram. Longer delays are recorded as this delay.
const MAX_HISTOGRAM_DELAY: Duration = Duration::from_secs(60);

/// The number of significant decimal digits of the delays in the histogram.
const HISTOGRAM_SIGNIFICANT_DIGITS: u8 = 3;

/// A clock that shows the time since the start of a measurement.
pub trait LoadClock {
    /// Returns the time since the start of the measurement.
    fn now(&self) -> Duration;

    /// Waits until the time `due` after the start of the measurement.
    async fn wait_until(&self, due: Duration);
}

/// The real clock of this machine, which shows the time since the start of a measurement. Waiting keeps the core busy,
/// because timers are less exact than the delays to measure, and because an idle core takes long to wake up.
pub struct WallLoadClock {
    start: Instant,
}

impl WallLoadClock {
    /// Creates a clock that starts now.
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }
}

impl LoadClock for WallLoadClock {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    async fn wait_until(&self, due: Duration) {
        while self.now() < due {
            yield_now().await;
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

/// Sends each request at its due time on a connection without a request in flight. If all connections have one, sends
/// the request as soon as a connection is free. Returns the delays between the due times and the responses, in
/// nanoseconds.
///
/// # Errors
/// If a request fails.
pub async fn measure_delays<C>(
    due: impl Iterator<Item = Duration>,
    clock: &impl LoadClock,
    connections: &mut [C],
    send: impl AsyncFn(&mut C) -> Result<(), Box<dyn Error>>,
) -> Result<Histogram<u64>, Box<dyn Error>> {
    let delays = RefCell::new(empty_histogram()?);
    let (due_requests, queue) = mpsc::unbounded_channel();
    let queue = Mutex::new(queue);
    let dispatch = async move {
        for due in due {
            clock.wait_until(due).await;
            due_requests.send(due)?;
        }
        Ok(())
    };
    let serve_connection = async |connection: &mut C| {
        loop {
            // The connection that has been free for the longest time receives the next request.
            let next = queue.lock().await.recv().await;
            let Some(due) = next else { return Ok::<(), Box<dyn Error>>(()) };
            send(connection).await?;
            let delay = clock.now().saturating_sub(due).as_nanos();
            delays.borrow_mut().saturating_record(u64::try_from(delay).unwrap_or(u64::MAX));
        }
    };
    try_join(dispatch, try_join_all(connections.iter_mut().map(serve_connection))).await?;
    Ok(delays.into_inner())
}

/// Creates an empty histogram for delays in nanoseconds.
fn empty_histogram() -> Result<Histogram<u64>, Box<dyn Error>> {
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

        async fn wait_until(&self, due: Duration) {
            // The requests that are already due are sent first.
            yield_now().await;
            self.0.set(self.0.get().max(due));
        }
    }

    const ONE_MS: Duration = Duration::from_millis(1);

    #[tokio::test]
    async fn slow_response_increases_delays_of_later_requests() -> Result<(), Box<dyn Error>> {
        let clock = ManualLoadClock::default();
        // A thousand requests at intervals of 10 ms; the 500th response takes a second, all others 1 ms.
        let due = (1..=1000).map(|nth| 10 * ONE_MS * nth);
        let delays = measure_delays(due, &clock, &mut [0], async |sent| {
            *sent += 1;
            let latency = if *sent == 500 { 1000 * ONE_MS } else { ONE_MS };
            clock.0.set(clock.0.get() + latency);
            Ok(())
        })
        .await?;
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

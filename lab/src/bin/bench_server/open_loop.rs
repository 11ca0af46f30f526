//! Asks at times that were set before, whether or not the answers keep up: how late each answer is counts from when
//! its question was due. A closed loop would ask nothing while it waits, and so leave out most of what a stall delays.

use std::error::Error;
use std::time::Duration;
use std::{fs, thread};

use hdrhistogram::Histogram;
use quanta::Instant;

/// Answers are told apart to three digits, up to a minute.
const LONGEST: Duration = Duration::from_secs(60);
const DIGITS: u8 = 3;

/// Tells the time since the questions began, and waits for some time of it.
pub trait Clock {
    fn now(&self) -> Duration;
    fn wait_until(&self, due: Duration);
}

/// The time of this machine.
pub struct WallClock {
    begun: Instant,
}

impl WallClock {
    /// Begins then. For this thread alone.
    pub fn new(begun: Instant) -> Self {
        // By default Linux may wake a thread 50 µs late, to wake several at once. Where it cannot be told, it stays so.
        if let Ok(thread) = fs::read_link("/proc/thread-self")
            && let Some(id) = thread.file_name()
        {
            let _ = fs::write(format!("/proc/{}/timerslack_ns", id.display()), "1");
        }
        Self { begun }
    }
}

impl Clock for WallClock {
    fn now(&self) -> Duration {
        Instant::now().saturating_duration_since(self.begun)
    }

    fn wait_until(&self, due: Duration) {
        // The beginning may be yet to come.
        let early = (self.begun + due).saturating_duration_since(Instant::now());
        if !early.is_zero() {
            thread::sleep(early);
        }
    }
}

/// When questions are due: at random, as those of many clients who do not know of each other.
pub struct Poisson {
    random: fastrand::Rng,
    mean: Duration,
    next: Duration,
    end: Duration,
}

impl Poisson {
    /// So many a second, until then.
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

/// Asks when it is due, or as soon as the answer before is there; how long after they were due the answers were.
///
/// # Errors
/// If it cannot be asked.
pub fn delays(
    due: impl Iterator<Item = Duration>,
    clock: &impl Clock,
    mut ask: impl FnMut() -> Result<(), Box<dyn Error>>,
) -> Result<Histogram<u64>, Box<dyn Error>> {
    let mut delays = empty()?;
    for due in due {
        clock.wait_until(due);
        ask()?;
        let delay = clock.now().saturating_sub(due);
        delays.saturating_record(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX));
    }
    Ok(delays)
}

/// No delays yet, in nanoseconds.
pub fn empty() -> Result<Histogram<u64>, Box<dyn Error>> {
    Ok(Histogram::new_with_max(LONGEST.as_nanos() as u64, DIGITS)?)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Goes on when somebody waits, or is answered.
    #[derive(Default)]
    struct Hands(Cell<Duration>);

    impl Clock for Hands {
        fn now(&self) -> Duration {
            self.0.get()
        }

        fn wait_until(&self, due: Duration) {
            self.0.set(self.0.get().max(due));
        }
    }

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_stall_delays_every_answer_that_was_due_meanwhile() -> Result<(), Box<dyn Error>> {
        let clock = Hands::default();
        let mut asked = 0;
        // A thousand questions, each 10 ms after the last; the 500th answer takes a second, all others 1 ms.
        let due = (1..=1000).map(|nth| 10 * MS * nth);
        let delays = delays(due, &clock, || {
            asked += 1;
            let takes = if asked == 500 { 1000 * MS } else { MS };
            clock.0.set(clock.0.get() + takes);
            Ok(())
        })?;
        let ms = |quantile| delays.value_at_quantile(quantile) as f64 / 1e6;
        assert_eq!(delays.len(), 1000);
        // The next was due 990 ms before the stall ended; each makes up for 9 ms: 110 are late.
        assert!((1.0..1.01).contains(&ms(0.88)), "{}", ms(0.88));
        assert!(ms(0.90) > 80.0, "{}", ms(0.90));
        assert!((880.0..920.0).contains(&ms(0.99)), "{}", ms(0.99));
        assert!((980.0..1001.0).contains(&ms(0.999)), "{}", ms(0.999));
        // A closed loop would have shown one late answer of a thousand.
        Ok(())
    }

    #[test]
    fn questions_are_due_as_often_as_said_and_never_all_at_once() {
        let due: Vec<Duration> = Poisson::new(1000.0, Duration::from_secs(20), 7).collect();
        assert!((19_000..21_000).contains(&due.len()), "{}", due.len());
        assert!(due.is_sorted());
        let early = due.windows(2).filter(|two| two[1] - two[0] < MS).count() as f64;
        let share = early / due.len() as f64;
        // Of such gaps 1 - 1/e are shorter than their mean.
        assert!((0.61..0.65).contains(&share), "{share}");
    }
}

//! Jitter: a random extension of retry delays, so that denied clients do not all retry at the same time.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

/// A bound for the random extension of retry delays, so that denied clients do not all retry at the same time.
///
/// ```
/// use std::time::Duration;
/// use slidegate::Jitter;
///
/// let jitter: Jitter = "10%".parse()?;
/// let delay = jitter.draw().extend(Duration::from_secs(60));
/// assert!((60..=66).contains(&delay.as_secs()));
/// # Ok::<(), slidegate::wait::JitterError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jitter(MaxDelayExtension);

/// The largest extension of a delay: a fixed duration, or a percentage of the delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MaxDelayExtension {
    Fixed(Duration),
    Percent(u8),
}

/// An invalid jitter.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum JitterError {
    /// The text is not a whole number with a percent sign.
    #[error("`{0}` is not a percentage; write a whole number and %, for example 10%")]
    Malformed(String),
    /// The percentage is over 100.
    #[error("a jitter of {0} is too large; the maximum is 100%")]
    TooLarge(String),
}

impl Jitter {
    /// A jitter that never extends a delay.
    pub const NONE: Self = Self(MaxDelayExtension::Fixed(Duration::ZERO));

    /// Creates a jitter that extends delays by at most `max`.
    pub const fn up_to(max: Duration) -> Self {
        Self(MaxDelayExtension::Fixed(max))
    }

    /// Creates a jitter that extends delays by at most this percentage of the delay; values over 100 count as 100.
    pub const fn up_to_percent(percent: u8) -> Self {
        Self(MaxDelayExtension::Percent(if percent < 100 { percent } else { 100 }))
    }

    /// Draws a random sample, which extends each delay by the same random fraction of the largest extension.
    pub fn draw(self) -> JitterSample {
        self.sample(fastrand::u32(..))
    }

    /// Creates a sample from a random number. The extension is proportional to the number: 0 is no extension,
    /// `u32::MAX` is the largest extension.
    pub const fn sample(self, random: u32) -> JitterSample {
        JitterSample { jitter: self, random }
    }

    fn max_delay_extension(self, delay: Duration) -> Duration {
        match self.0 {
            MaxDelayExtension::Fixed(max) => max,
            MaxDelayExtension::Percent(percent) => {
                Duration::from_nanos_u128(delay.as_nanos() * u128::from(percent) / 100)
            }
        }
    }
}

impl Default for Jitter {
    fn default() -> Self {
        Self::NONE
    }
}

/// Parses a percentage of the delay, for example `10%`.
impl FromStr for Jitter {
    type Err = JitterError;

    fn from_str(text: &str) -> Result<Self, JitterError> {
        let malformed = || JitterError::Malformed(text.to_owned());
        let number = text.strip_suffix('%').ok_or_else(malformed)?;
        // The digits are checked first, because `parse` also accepts a plus sign.
        if number.is_empty() || !number.bytes().all(|b| b.is_ascii_digit()) {
            return Err(malformed());
        }
        match number.parse() {
            Ok(percent @ 0..=100) => Ok(Self(MaxDelayExtension::Percent(percent))),
            _ => Err(JitterError::TooLarge(text.to_owned())),
        }
    }
}

impl fmt::Display for Jitter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            MaxDelayExtension::Fixed(max) => write!(f, "{max:?}"),
            MaxDelayExtension::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// A random sample of a [`Jitter`]. All delays in a response are extended with the same sample, so that the delays in
/// different headers are consistent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JitterSample {
    jitter: Jitter,
    random: u32,
}

impl JitterSample {
    /// A sample that never extends a delay.
    pub const NONE: Self = Jitter::NONE.sample(0);

    /// Returns the extended delay, which is never shorter than `delay`.
    pub fn extend(self, delay: Duration) -> Duration {
        let max_nanos = self.jitter.max_delay_extension(delay).as_nanos();
        let extension = max_nanos * u128::from(self.random) / u128::from(u32::MAX);
        delay.saturating_add(Duration::from_nanos_u128(extension))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    #[test]
    fn delay_extension_is_proportional_to_random_number() {
        let delay = Duration::from_secs(60);
        for jitter in ["10%".parse().unwrap(), Jitter::up_to(Duration::from_secs(6))] {
            let extended =
                [0, u32::MAX / 3, u32::MAX].map(|random| jitter.sample(random).extend(delay));
            assert_eq!(extended, [60, 62, 66].map(Duration::from_secs));
        }
        assert_eq!(Jitter::NONE.sample(u32::MAX).extend(delay), delay);
    }

    #[test]
    fn random_jitter_samples_differ() {
        let samples = [(); 32].map(|()| Jitter::up_to_percent(100).draw());
        assert!(samples.iter().any(|sample| *sample != samples[0]));
    }

    #[test]
    fn jitter_percentage_round_trips_through_text() {
        for text in ["0%", "1%", "10%", "100%"] {
            assert_eq!(text.parse::<Jitter>().unwrap().to_string(), text);
        }
        assert_eq!("100%".parse(), Ok(Jitter::up_to_percent(200)));
    }

    #[test]
    fn invalid_jitter_is_rejected() {
        for text in ["", "%", "10", "-1%", "+1%", "1.5%", "10 %", "10%%", "ten%"] {
            assert_eq!(text.parse::<Jitter>(), Err(JitterError::Malformed(text.to_owned())));
        }
        for text in ["101%", "110%", "99999999999999999999%"] {
            assert_eq!(text.parse::<Jitter>(), Err(JitterError::TooLarge(text.to_owned())));
        }
    }

    proptest! {
        #[test]
        fn delay_extension_is_at_most_jitter_percentage(
            seconds: u64, nanos in 0..1_000_000_000_u32, percent in 0..=100_u8, random: u32,
        ) {
            let delay = Duration::new(seconds, nanos);
            let extended = Jitter::up_to_percent(percent).sample(random).extend(delay);
            prop_assert!(extended >= delay);
            let extension = (extended - delay).as_nanos();
            prop_assert!(extension * 100 <= delay.as_nanos() * u128::from(percent));
        }
    }
}

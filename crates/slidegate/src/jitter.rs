//! Jitter: waits are lengthened by chance, so that those who wait do not all come back at once.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

/// What a wait may be lengthened by, so that those who wait do not all come back at once.
///
/// ```
/// use std::time::Duration;
/// use slidegate::Jitter;
///
/// let jitter: Jitter = "10%".parse()?;
/// let lengthened = jitter.draw().of(Duration::from_secs(60));
/// assert!((60..=66).contains(&lengthened.as_secs()));
/// # Ok::<(), slidegate::JitterError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jitter(Most);

/// The most that a wait may be lengthened by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Most {
    Span(Duration),
    Percent(u8),
}

/// Why text is no jitter.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum JitterError {
    /// It is no whole number with a percent sign.
    #[error("`{0}` is not a share of the wait: write a whole percentage, for example 10%")]
    Form(String),
    /// It is over 100 %.
    #[error("a jitter of {0} is too large: at most 100%")]
    TooLarge(String),
}

impl Jitter {
    /// None.
    pub const NONE: Self = Self(Most::Span(Duration::ZERO));

    /// Anything from nothing up to `most`.
    pub const fn up_to(most: Duration) -> Self {
        Self(Most::Span(most))
    }

    /// Anything from nothing up to this share of the wait; over 100 counts as 100.
    pub const fn up_to_percent(percent: u8) -> Self {
        Self(Most::Percent(if percent < 100 { percent } else { 100 }))
    }

    /// Draws by chance.
    pub fn draw(self) -> JitterSample {
        self.drawn(fastrand::u32(..))
    }

    /// What the draw of this number says: 0 lengthens by nothing, `u32::MAX` by all that there is, the
    /// numbers between in proportion.
    pub const fn drawn(self, lot: u32) -> JitterSample {
        JitterSample { jitter: self, lot }
    }

    fn most(self, wait: Duration) -> Duration {
        match self.0 {
            Most::Span(most) => most,
            Most::Percent(percent) => {
                Duration::from_nanos_u128(wait.as_nanos() * u128::from(percent) / 100)
            }
        }
    }
}

impl Default for Jitter {
    fn default() -> Self {
        Self::NONE
    }
}

/// A share of the wait: `10%`.
impl FromStr for Jitter {
    type Err = JitterError;

    fn from_str(text: &str) -> Result<Self, JitterError> {
        let form = || JitterError::Form(text.to_owned());
        let number = text.strip_suffix('%').ok_or_else(form)?;
        // `parse` would also take a plus sign.
        if number.is_empty() || !number.bytes().all(|b| b.is_ascii_digit()) {
            return Err(form());
        }
        match number.parse() {
            Ok(percent @ 0..=100) => Ok(Self(Most::Percent(percent))),
            _ => Err(JitterError::TooLarge(text.to_owned())),
        }
    }
}

impl fmt::Display for Jitter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Most::Span(most) => write!(f, "{most:?}"),
            Most::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// A [`Jitter`] that has been drawn. It lengthens all waits of one answer alike, so that they agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JitterSample {
    jitter: Jitter,
    lot: u32,
}

impl JitterSample {
    /// By nothing.
    pub const NONE: Self = Jitter::NONE.drawn(0);

    /// The wait, never shorter than it was.
    pub fn of(self, wait: Duration) -> Duration {
        let more = self.jitter.most(wait).as_nanos() * u128::from(self.lot) / u128::from(u32::MAX);
        wait.saturating_add(Duration::from_nanos_u128(more))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    #[test]
    fn the_draw_lengthens_in_proportion_from_nothing_to_all() {
        let wait = Duration::from_secs(60);
        for jitter in ["10%".parse().unwrap(), Jitter::up_to(Duration::from_secs(6))] {
            let lengthened = [0, u32::MAX / 3, u32::MAX].map(|lot| jitter.drawn(lot).of(wait));
            assert_eq!(lengthened, [60, 62, 66].map(Duration::from_secs));
        }
        assert_eq!(Jitter::NONE.drawn(u32::MAX).of(wait), wait);
    }

    #[test]
    fn draws_by_chance_differ() {
        let drawn = [(); 32].map(|()| Jitter::up_to_percent(100).draw());
        assert!(drawn.iter().any(|draw| *draw != drawn[0]));
    }

    #[test]
    fn reads_whole_percentages_and_prints_what_it_reads() {
        for text in ["0%", "1%", "10%", "100%"] {
            assert_eq!(text.parse::<Jitter>().unwrap().to_string(), text);
        }
        assert_eq!("100%".parse(), Ok(Jitter::up_to_percent(200)));
    }

    #[test]
    fn says_what_is_wrong() {
        for text in ["", "%", "10", "-1%", "+1%", "1.5%", "10 %", "10%%", "ten%"] {
            assert_eq!(text.parse::<Jitter>(), Err(JitterError::Form(text.to_owned())));
        }
        for text in ["101%", "110%", "99999999999999999999%"] {
            assert_eq!(text.parse::<Jitter>(), Err(JitterError::TooLarge(text.to_owned())));
        }
    }

    proptest! {
        #[test]
        fn a_wait_only_grows_and_by_no_more_than_its_share(
            seconds: u64, nanos in 0..1_000_000_000_u32, percent in 0..=100_u8, lot: u32,
        ) {
            let wait = Duration::new(seconds, nanos);
            let lengthened = Jitter::up_to_percent(percent).drawn(lot).of(wait);
            prop_assert!(lengthened >= wait);
            let grown = (lengthened - wait).as_nanos();
            prop_assert!(grown * 100 <= wait.as_nanos() * u128::from(percent));
        }
    }
}

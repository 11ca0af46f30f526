//! What a rule does with what it finds.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use thiserror::Error;

use crate::hit::Veto;
use crate::key::Key;

/// What a rule does with what it finds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It denies what does not fit.
    #[default]
    Enforce,
    /// Denies a request if none of the limits in this mode fits.
    Jointly,
    /// It decides and counts, and never denies.
    Observe,
    /// It does not apply.
    Off,
    /// It enforces for a share of the keys, always the same ones, and observes the rest.
    EnforceFor(Share),
}

/// A share of all keys, in hundredths of a percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share(u16);

/// Why a text is no share.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum ShareError {
    /// It does not end with `%`.
    #[error("`{0}` is not a share: did you mean `{0}%`?")]
    NoPercent(String),
    /// It is no number from 0 to 100 with at most two decimals.
    #[error(
        "`{0}` is not a share: write a number from 0% to 100%, with two decimals at most, for example 5% or 0.25%"
    )]
    Form(String),
}

impl Share {
    /// A share of one.
    const WHOLE: u64 = 10_000;

    /// One in how many it is, from 2 to so many, with its decimals rounded; else the nearest that is.
    pub(crate) fn one_in(self, most: u32) -> Result<u32, (Self, u32)> {
        let of_one_in = |many: u32| Self(((Self::WHOLE as u32 + many / 2) / many) as u16);
        let nearest = (2..=most).min_by_key(|&many| of_one_in(many).0.abs_diff(self.0));
        let nearest = nearest.unwrap_or(2);
        match of_one_in(nearest) {
            share if share == self => Ok(nearest),
            share => Err((share, nearest)),
        }
    }

    /// Whether it has no key at all.
    pub(crate) fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Whether it has every key.
    pub(crate) fn is_whole(self) -> bool {
        u64::from(self.0) == Self::WHOLE
    }

    /// Whether a key is of the share: its stable hash, modulo 10,000, is below the share's hundredths of
    /// a percent. A larger share has all the keys of a smaller one.
    fn has(self, key: &Key<'_>) -> bool {
        key.stable_hash() % Self::WHOLE < u64::from(self.0)
    }
}

impl FromStr for Share {
    type Err = ShareError;

    fn from_str(text: &str) -> Result<Self, ShareError> {
        let wrong = || ShareError::Form(text.to_owned());
        let Some(number) = text.strip_suffix('%').map(str::trim_end) else {
            let number = text.parse::<f64>().is_ok_and(|number| (0.0..=100.0).contains(&number));
            return Err(if number { ShareError::NoPercent(text.to_owned()) } else { wrong() });
        };
        let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !digits(whole) || !digits(decimals) || whole.len() > 3 || decimals.len() > 2 {
            return Err(wrong());
        }
        let hundredths = format!("{whole}{decimals:0<2}").parse().map_err(|_| wrong())?;
        if u64::from(hundredths) > Self::WHOLE {
            return Err(wrong());
        }
        Ok(Self(hundredths))
    }
}

/// `5%`, `0.25%`
impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 / 100, self.0 % 100) {
            (whole, 0) => write!(f, "{whole}%"),
            (whole, decimals) if decimals % 10 == 0 => write!(f, "{whole}.{}%", decimals / 10),
            (whole, decimals) => write!(f, "{whole}.{decimals:02}%"),
        }
    }
}

impl Mode {
    /// The same without denials.
    pub(crate) fn observing(self) -> Self {
        match self {
            Self::Off => Self::Off,
            Self::Enforce | Self::Jointly | Self::Observe | Self::EnforceFor(_) => Self::Observe,
        }
    }

    /// Returns the veto of the hits of a key; `None` if there are no hits.
    pub(crate) fn veto(self, key: &Key<'_>) -> Option<Veto> {
        match self {
            Self::Enforce => Some(Veto::Alone),
            Self::EnforceFor(share) if share.has(key) => Some(Veto::Alone),
            Self::Jointly => Some(Veto::Jointly),
            Self::Observe | Self::EnforceFor(_) => Some(Veto::Never),
            Self::Off => None,
        }
    }
}

/// What becomes of a request that lacks an attribute that a rule counts per.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum WhenMissing {
    /// The rule does not apply.
    #[default]
    Skip,
    /// The rule denies it.
    Deny,
}

/// What a rule wants while the store does not answer; from the laxest to the strictest, which wins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnStoreError {
    /// Its limits are not asked.
    Allow,
    /// Its limits are enforced in memory meanwhile, by each instance with max(1, max / expected instances),
    /// so that in any window across an outage at most 2*max pass.
    #[default]
    Local,
    /// The request is denied.
    Deny,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Scope, Value};

    /// How many of 10,000 tenants are of a share.
    fn of_10_000(share: &str) -> Vec<String> {
        let share: Share = share.parse().unwrap();
        let scope = Scope::new("default", "canary", "", &["tenant"]);
        let tenants = (0..10_000).map(|nth| format!("tenant-{nth}"));
        tenants.filter(|name| share.has(&Key::new(&scope, &[Value::Text(name)]))).collect()
    }

    #[test]
    fn a_share_has_about_its_part_of_the_keys_and_a_larger_one_has_them_too() {
        let (few, more) = (of_10_000("5%"), of_10_000("50%"));
        assert!((430..570).contains(&few.len()), "{}", few.len());
        assert!((4_850..5_150).contains(&more.len()), "{}", more.len());
        assert!(few.iter().all(|tenant| more.contains(tenant)));
        assert_eq!((of_10_000("0%").len(), of_10_000("100%").len()), (0, 10_000));
    }

    #[test]
    fn a_share_is_one_in_a_whole_number_or_has_a_neighbour_that_is() {
        let one_in = |text: &str| text.parse::<Share>().unwrap().one_in(100);
        for (text, many) in
            [("50%", 2), ("33.33%", 3), ("12.5%", 8), ("10%", 10), ("1.01%", 99), ("1%", 100)]
        {
            assert_eq!(one_in(text), Ok(many), "{text}");
        }
        for (text, nearest, many) in [
            ("100%", "50%", 2),
            ("41%", "33.33%", 3),
            ("30%", "33.33%", 3),
            ("11%", "11.11%", 9),
            ("1.5%", "1.49%", 67),
            ("0.5%", "1%", 100),
            ("0%", "1%", 100),
        ] {
            assert_eq!(one_in(text), Err((nearest.parse().unwrap(), many)), "{text}");
            assert_eq!(one_in(nearest), Ok(many), "{nearest}");
        }
    }

    #[test]
    fn a_share_is_written_as_it_is_read() {
        for text in ["0%", "5%", "0.25%", "0.05%", "99.9%", "100%"] {
            assert_eq!(text.parse::<Share>().unwrap().to_string(), text);
        }
        assert_eq!("12.50 %".parse::<Share>().unwrap().to_string(), "12.5%");
        for text in
            ["", "%", "101%", "100.01%", "-1%", "+5%", "1.234%", ".5%", "5.%", "a%", "5 per cent"]
        {
            assert!(matches!(text.parse::<Share>(), Err(ShareError::Form(_))), "{text}");
        }
        let error = "5".parse::<Share>().unwrap_err();
        assert_eq!(error.to_string(), "`5` is not a share: did you mean `5%`?");
    }
}

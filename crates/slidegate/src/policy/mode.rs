//! Modes of a rule, percentages, and the treatment of missing attributes and store errors.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use thiserror::Error;

use crate::hit::Veto;
use crate::key::Key;

/// The effect of a rule on a request that exceeds its limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Denies each request that exceeds a limit of the rule.
    #[default]
    Enforce,
    /// Denies a request only if the request exceeds all limits that have this mode, in all rules that apply to the
    /// request.
    Jointly,
    /// Counts requests and records which of them exceed a limit, but never denies a request.
    Observe,
    /// Disables the rule: it neither counts nor denies requests.
    Off,
    /// Enforces the limits for a percentage of the keys, which are always the same keys. The other keys are treated as
    /// in mode `observe`.
    EnforceFor(Percentage),
}

/// A percentage from 0% to 100% with two decimals, stored as hundredths of a percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Percentage(u16);

/// The reason why a text cannot be parsed as a percentage.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum PercentageError {
    /// The text does not end with `%`.
    #[error("`{0}` is not a percentage; did you mean `{0}%`?")]
    NoPercent(String),
    /// The text is not a number from 0 to 100 with at most two decimals.
    #[error(
        "`{0}` is not a percentage; write a number from 0% to 100% with at most two decimals, for example 5% or 0.25%"
    )]
    Form(String),
}

impl Percentage {
    /// The value of 100%, in hundredths of a percent.
    const HUNDRED_PERCENT_IN_HUNDREDTHS: u64 = 10_000;

    /// Converts the percentage to a ratio of one in `n`, for an integer `n` from 2 to `max_ratio`. Returns `n` if 1/n,
    /// rounded to two decimals of a percent, equals the percentage. Otherwise returns an error with the nearest
    /// percentage of this form and its `n`.
    pub(crate) fn to_one_in_n(self, max_ratio: u32) -> Result<u32, (Self, u32)> {
        let percentage_of = |ratio: u32| {
            Self(((Self::HUNDRED_PERCENT_IN_HUNDREDTHS as u32 + ratio / 2) / ratio) as u16)
        };
        let nearest = (2..=max_ratio).min_by_key(|&ratio| percentage_of(ratio).0.abs_diff(self.0));
        let nearest = nearest.unwrap_or(2);
        match percentage_of(nearest) {
            percentage if percentage == self => Ok(nearest),
            percentage => Err((percentage, nearest)),
        }
    }

    /// Returns `true` if the percentage is 0%.
    pub(crate) fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Returns `true` if the percentage is 100%.
    pub(crate) fn is_hundred_percent(self) -> bool {
        u64::from(self.0) == Self::HUNDRED_PERCENT_IN_HUNDREDTHS
    }

    /// Returns `true` if a key is selected by this percentage: the stable hash of the key modulo 10,000 is less than
    /// the percentage in hundredths of a percent. A larger percentage selects all keys that a smaller percentage
    /// selects.
    fn includes_key(self, key: &Key<'_>) -> bool {
        key.stable_hash() % Self::HUNDRED_PERCENT_IN_HUNDREDTHS < u64::from(self.0)
    }
}

impl FromStr for Percentage {
    type Err = PercentageError;

    fn from_str(text: &str) -> Result<Self, PercentageError> {
        let invalid = || PercentageError::Form(text.to_owned());
        let Some(number) = text.strip_suffix('%').map(str::trim_end) else {
            let number = text.parse::<f64>().is_ok_and(|number| (0.0..=100.0).contains(&number));
            return Err(if number {
                PercentageError::NoPercent(text.to_owned())
            } else {
                invalid()
            });
        };
        let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !digits(whole) || !digits(decimals) || whole.len() > 3 || decimals.len() > 2 {
            return Err(invalid());
        }
        let hundredths = format!("{whole}{decimals:0<2}").parse().map_err(|_| invalid())?;
        if u64::from(hundredths) > Self::HUNDRED_PERCENT_IN_HUNDREDTHS {
            return Err(invalid());
        }
        Ok(Self(hundredths))
    }
}

/// Formats the percentage without trailing zeros, such as `5%` or `0.25%`.
impl fmt::Display for Percentage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 / 100, self.0 % 100) {
            (whole, 0) => write!(f, "{whole}%"),
            (whole, decimals) if decimals % 10 == 0 => write!(f, "{whole}.{}%", decimals / 10),
            (whole, decimals) => write!(f, "{whole}.{decimals:02}%"),
        }
    }
}

impl Mode {
    /// Returns the mode for a policy that must not deny requests: `Off` if this mode is `Off`, otherwise `Observe`.
    pub(crate) fn observing(self) -> Self {
        match self {
            Self::Off => Self::Off,
            Self::Enforce | Self::Jointly | Self::Observe | Self::EnforceFor(_) => Self::Observe,
        }
    }

    /// Returns the veto of hits on a key: whether a hit that does not fit denies the request. Returns `None` if the
    /// rule is off, so that it has no hits. `key` is called only if the veto depends on the key.
    pub(crate) fn veto_for_key<'k>(self, key: impl FnOnce() -> Key<'k>) -> Option<Veto> {
        match self {
            Self::Enforce => Some(Veto::Alone),
            Self::EnforceFor(percentage) if percentage.includes_key(&key()) => Some(Veto::Alone),
            Self::Jointly => Some(Veto::Jointly),
            Self::Observe | Self::EnforceFor(_) => Some(Veto::Never),
            Self::Off => None,
        }
    }
}

/// The treatment of a request that lacks an attribute listed in the `per` of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum WhenMissing {
    /// The rule does not apply to the request.
    #[default]
    Skip,
    /// The rule denies the request.
    Deny,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Scope, Value};

    /// Returns the names of the tenants, out of 10,000, whose keys are selected by a percentage.
    fn tenants_selected_by_percentage(percentage: &str) -> Vec<String> {
        let percentage: Percentage = percentage.parse().unwrap();
        let scope = Scope::new("default", "canary", "", &["tenant"]);
        let tenants = (0..10_000).map(|index| format!("tenant-{index}"));
        tenants
            .filter(|name| percentage.includes_key(&Key::new(&scope, &[Value::Text(name)])))
            .collect()
    }

    #[test]
    fn percentage_includes_keys_of_smaller_percentage() {
        let (small, large) =
            (tenants_selected_by_percentage("5%"), tenants_selected_by_percentage("50%"));
        assert!((430..570).contains(&small.len()), "{}", small.len());
        assert!((4_850..5_150).contains(&large.len()), "{}", large.len());
        assert!(small.iter().all(|tenant| large.contains(tenant)));
        assert_eq!(
            (
                tenants_selected_by_percentage("0%").len(),
                tenants_selected_by_percentage("100%").len()
            ),
            (0, 10_000)
        );
    }

    #[test]
    fn percentage_converts_to_nearest_one_in_n() {
        let one_in = |text: &str| text.parse::<Percentage>().unwrap().to_one_in_n(100);
        for (text, ratio) in
            [("50%", 2), ("33.33%", 3), ("12.5%", 8), ("10%", 10), ("1.01%", 99), ("1%", 100)]
        {
            assert_eq!(one_in(text), Ok(ratio), "{text}");
        }
        for (text, nearest, ratio) in [
            ("100%", "50%", 2),
            ("41%", "33.33%", 3),
            ("30%", "33.33%", 3),
            ("11%", "11.11%", 9),
            ("1.5%", "1.49%", 67),
            ("0.5%", "1%", 100),
            ("0%", "1%", 100),
        ] {
            assert_eq!(one_in(text), Err((nearest.parse().unwrap(), ratio)), "{text}");
            assert_eq!(one_in(nearest), Ok(ratio), "{nearest}");
        }
    }

    #[test]
    fn percentage_display_round_trips() {
        for text in ["0%", "5%", "0.25%", "0.05%", "99.9%", "100%"] {
            assert_eq!(text.parse::<Percentage>().unwrap().to_string(), text);
        }
        assert_eq!("12.50 %".parse::<Percentage>().unwrap().to_string(), "12.5%");
        for text in
            ["", "%", "101%", "100.01%", "-1%", "+5%", "1.234%", ".5%", "5.%", "a%", "5 per cent"]
        {
            assert!(matches!(text.parse::<Percentage>(), Err(PercentageError::Form(_))), "{text}");
        }
        let error = "5".parse::<Percentage>().unwrap_err();
        assert_eq!(error.to_string(), "`5` is not a percentage; did you mean `5%`?");
    }
}

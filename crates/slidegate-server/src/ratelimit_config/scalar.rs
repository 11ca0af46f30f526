//! What a scalar is to the reference server, whose YAML is that of Go's yaml.v2: nearly YAML 1.1.

/// A scalar, as the reference server takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    Null,
    Bool(bool),
    Int(i64),
    /// A number that is none of its integers.
    Odd,
    Text,
}

const TRUE: [&str; 11] = ["y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"];
const FALSE: [&str; 11] =
    ["n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"];
const NULL: [&str; 5] = ["", "~", "null", "Null", "NULL"];

impl Scalar {
    /// Of what stands in a file without quotes.
    pub fn of(text: &str) -> Self {
        match text {
            _ if NULL.contains(&text) => Self::Null,
            _ if TRUE.contains(&text) => Self::Bool(true),
            _ if FALSE.contains(&text) => Self::Bool(false),
            _ => Self::number(&text.replace('_', "")).unwrap_or(Self::Text),
        }
    }

    fn number(text: &str) -> Option<Self> {
        let (negative, digits) = match text.strip_prefix(['+', '-']) {
            Some(digits) => (text.starts_with('-'), digits),
            None => (false, text),
        };
        if [".inf", ".Inf", ".INF", ".nan", ".NaN", ".NAN"].contains(&digits) {
            return Some(Self::Odd);
        }
        if let Some(size) = whole(digits) {
            let value = i128::from(size) * if negative { -1 } else { 1 };
            return Some(i64::try_from(value).map_or(Self::Odd, Self::Int));
        }
        // Whole numbers that are too large are numbers with a fraction to it, and so is `08`.
        is_decimal(digits).then_some(Self::Odd)
    }
}

/// A whole number by its digits: `0x` is hexadecimal, `0b` binary, and `0` or `0o` octal.
fn whole(digits: &str) -> Option<u64> {
    let (radix, digits) = match digits.get(..2) {
        Some("0x" | "0X") => (16, &digits[2..]),
        Some("0b" | "0B") => (2, &digits[2..]),
        Some("0o" | "0O") => (8, &digits[2..]),
        Some(_) if digits.starts_with('0') => (8, &digits[1..]),
        _ => (10, digits),
    };
    // `from_str_radix` would take another sign.
    let plain = digits.bytes().all(|byte| byte.is_ascii_alphanumeric());
    plain.then(|| u64::from_str_radix(digits, radix).ok()).flatten()
}

/// `1.5`, `.5`, `1.`, `1e3`, `08`
fn is_decimal(text: &str) -> bool {
    let (number, exponent) = match text.split_once(['e', 'E']) {
        Some((number, exponent)) => (number, Some(exponent)),
        None => (text, None),
    };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let (before, behind) = number.split_once('.').unwrap_or((number, ""));
    let has_digits = !(before.is_empty() && behind.is_empty());
    let fine_exponent = exponent.is_none_or(|exponent| {
        let size = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        !size.is_empty() && digits(size)
    });
    has_digits && digits(before) && digits(behind) && fine_exponent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scalar_is_what_the_reference_server_takes_it_for() {
        for (text, scalar) in [
            ("~", Scalar::Null),
            ("", Scalar::Null),
            ("yes", Scalar::Bool(true)),
            ("Off", Scalar::Bool(false)),
            ("oFF", Scalar::Text),
            ("10", Scalar::Int(10)),
            ("+10", Scalar::Int(10)),
            ("-1", Scalar::Int(-1)),
            ("1_000", Scalar::Int(1000)),
            ("010", Scalar::Int(8)),
            ("0o10", Scalar::Int(8)),
            ("0x1F", Scalar::Int(31)),
            ("0b11", Scalar::Int(3)),
            ("0", Scalar::Int(0)),
            ("9223372036854775807", Scalar::Int(i64::MAX)),
            ("9223372036854775808", Scalar::Odd),
            ("-9223372036854775808", Scalar::Int(i64::MIN)),
            ("99999999999999999999999", Scalar::Odd),
            ("08", Scalar::Odd),
            ("1.5", Scalar::Odd),
            (".5", Scalar::Odd),
            ("1e3", Scalar::Odd),
            (".inf", Scalar::Odd),
            (".", Scalar::Text),
            ("e3", Scalar::Text),
            ("1e", Scalar::Text),
            ("0x", Scalar::Text),
            ("--1", Scalar::Text),
            ("10.0.0.1", Scalar::Text),
            ("2001-01-01", Scalar::Text),
        ] {
            assert_eq!(Scalar::of(text), scalar, "{text}");
        }
    }
}

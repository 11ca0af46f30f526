//! The types of YAML scalars without quotes, as Envoy's reference rate limit server reads them. The reference server
//! uses Go's yaml.v2, which follows YAML 1.1 with few exceptions.

/// The type of a YAML scalar, with the value of a boolean or integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    Null,
    Bool(bool),
    Int(i64),
    /// A number that is not an `i64`, such as a fraction or an integer out of range.
    OtherNumber,
    Text,
}

const YAML_TRUE_WORDS: [&str; 11] =
    ["y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"];
const YAML_FALSE_WORDS: [&str; 11] =
    ["n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"];
const YAML_NULL_WORDS: [&str; 5] = ["", "~", "null", "Null", "NULL"];

impl Scalar {
    /// Determines the type of a scalar that is written without quotes. A scalar in quotes is text. `010` is a text of
    /// three characters if the field needs text, and the number 8 if the field needs a number.
    pub fn from_plain(text: &str) -> Self {
        match text {
            _ if YAML_NULL_WORDS.contains(&text) => Self::Null,
            _ if YAML_TRUE_WORDS.contains(&text) => Self::Bool(true),
            _ if YAML_FALSE_WORDS.contains(&text) => Self::Bool(false),
            _ => Self::parse_number(&text.replace('_', "")).unwrap_or(Self::Text),
        }
    }

    fn parse_number(text: &str) -> Option<Self> {
        let (is_negative, digits) = match text.strip_prefix(['+', '-']) {
            Some(digits) => (text.starts_with('-'), digits),
            None => (false, text),
        };
        if [".inf", ".Inf", ".INF", ".nan", ".NaN", ".NAN"].contains(&digits) {
            return Some(Self::OtherNumber);
        }
        if let Some(magnitude) = parse_integer(digits) {
            let value = i128::from(magnitude) * if is_negative { -1 } else { 1 };
            return Some(i64::try_from(value).map_or(Self::OtherNumber, Self::Int));
        }
        // yaml.v2 reads integers that are too large as floats, and `08` too.
        is_decimal_number(digits).then_some(Self::OtherNumber)
    }
}

/// Parses an unsigned integer. The prefix `0x` means hexadecimal, `0b` binary, and `0` or `0o` octal. Returns `None` if
/// the text is not an integer, or is too large for `u64`.
fn parse_integer(digits: &str) -> Option<u64> {
    let (radix, digits) = match digits.get(..2) {
        Some("0x" | "0X") => (16, &digits[2..]),
        Some("0b" | "0B") => (2, &digits[2..]),
        Some("0o" | "0O") => (8, &digits[2..]),
        Some(_) if digits.starts_with('0') => (8, &digits[1..]),
        _ => (10, digits),
    };
    // The caller has removed a sign, and `from_str_radix` would accept a second one.
    let has_no_sign = digits.bytes().all(|byte| byte.is_ascii_alphanumeric());
    has_no_sign.then(|| u64::from_str_radix(digits, radix).ok()).flatten()
}

/// Returns `true` if the text is a decimal number, such as `1.5`, `.5`, `1.`, `1e3` or `08`.
fn is_decimal_number(text: &str) -> bool {
    let (number, exponent) = match text.split_once(['e', 'E']) {
        Some((number, exponent)) => (number, Some(exponent)),
        None => (text, None),
    };
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let (integer, fraction) = number.split_once('.').unwrap_or((number, ""));
    let has_digits = !(integer.is_empty() && fraction.is_empty());
    let is_exponent_valid = exponent.is_none_or(|exponent| {
        let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        !digits.is_empty() && is_digits(digits)
    });
    has_digits && is_digits(integer) && is_digits(fraction) && is_exponent_valid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unquoted_yaml_scalar_type_matches_reference_server() {
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
            ("9223372036854775808", Scalar::OtherNumber),
            ("-9223372036854775808", Scalar::Int(i64::MIN)),
            ("99999999999999999999999", Scalar::OtherNumber),
            ("08", Scalar::OtherNumber),
            ("1.5", Scalar::OtherNumber),
            (".5", Scalar::OtherNumber),
            ("1e3", Scalar::OtherNumber),
            (".inf", Scalar::OtherNumber),
            (".", Scalar::Text),
            ("e3", Scalar::Text),
            ("1e", Scalar::Text),
            ("0x", Scalar::Text),
            ("--1", Scalar::Text),
            ("10.0.0.1", Scalar::Text),
            ("2001-01-01", Scalar::Text),
        ] {
            assert_eq!(Scalar::from_plain(text), scalar, "{text}");
        }
    }
}

//! Parses a line of an access log in the common or combined format:
//!
//! `ip ident user [17/May/2015:10:05:03 +0000] "METHOD target HTTP/1.1" status size "referer" "user-agent"`
//!
//! A host may precede the IP address. Fields after the user agent are ignored. A line must be complete up to the
//! status, and may be cut anywhere after the status.

mod client;
#[cfg(test)]
mod tests;

use jiff::civil::DateTime;
use jiff::tz::Offset;
use slidegate::Timestamp;
use thiserror::Error;

pub use self::client::strip_port;
use self::client::{ClientFields, parse_client_fields};

/// The values of one line of an access log. Escape sequences are not decoded: a quote in a value remains `\"`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// The time of the request.
    pub time: Timestamp,
    /// The values in the order of [`ATTRIBUTE_NAMES`], `None` for missing values.
    values: [Option<&'a str>; ATTRIBUTE_COUNT],
    /// The names and values of further attributes, which only lines in JSON have.
    other_attributes: Vec<(&'a str, &'a str)>,
}

/// The attribute names for the values of a line. `/v1/auth` uses the same names.
pub const ATTRIBUTE_NAMES: [&str; 7] =
    ["method", "path", "ip", "host", "header.referer", "header.user-agent", "user"];

/// The name by which Envoy's descriptors call the attribute `ip`.
pub const ENVOY_CLIENT_ADDRESS_NAME: &str = "remote_address";

/// Returns the index of an attribute in [`ATTRIBUTE_NAMES`].
pub fn attribute_index(name: &str) -> Option<usize> {
    let name = if name == ENVOY_CLIENT_ADDRESS_NAME { "ip" } else { name };
    ATTRIBUTE_NAMES.iter().position(|known| *known == name)
}

/// Returns `true` if lines can have a value for this attribute: one of [`ATTRIBUTE_NAMES`], or Envoy's name for `ip`.
pub fn is_attribute_name(name: &str) -> bool {
    attribute_index(name).is_some()
}

/// The character that some tools write at the start of a file in UTF-8.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// The number of values that are read from a line.
pub const ATTRIBUTE_COUNT: usize = ATTRIBUTE_NAMES.len();

/// The method, host and path of a logged request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LoggedRequestLine<'a> {
    method: &'a str,
    /// The host, or `None` if the request target is not an absolute URL.
    host: Option<&'a str>,
    path: &'a str,
}

/// The error if a line of an access log cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "the message of each variant describes it")]
pub enum LineError {
    #[error("line does not begin with `ip ident user [time] \"`")]
    Start,
    #[error("line does not begin with an IP address, a host and an IP address, or `-`")]
    Client,
    #[error("invalid time; expected a time such as [17/May/2015:10:05:03 +0000]")]
    Time,
    #[error("missing quote after the request")]
    Quote,
    #[error("invalid request; expected a request such as \"GET /path HTTP/1.1\"")]
    Request,
    #[error("missing status after the request")]
    Status,
}

/// Parses one line of an access log. `text` does not include the line end.
pub fn parse(text: &str) -> Result<Line<'_>, LineError> {
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    let (client, time, rest) = split_log_line_at_request(text).ok_or(LineError::Start)?;
    let ClientFields { host: virtual_host, ip, user } = parse_client_fields(client)?;
    let time = parse_timestamp(time).ok_or(LineError::Time)?;
    let (request, rest) = split_at_closing_quote(rest).ok_or(LineError::Quote)?;
    let target = parse_logged_request(request).ok_or(LineError::Request)?;
    let rest = skip_status_code(rest).ok_or(LineError::Status)?;
    let (referer, user_agent) = parse_referer_and_user_agent(rest);
    let LoggedRequestLine { method, host, path } = target;
    Ok(Line {
        time,
        values: [Some(method), Some(path), ip, host.or(virtual_host), referer, user_agent, user],
        other_attributes: Vec::new(),
    })
}

impl<'a> Line<'a> {
    /// Creates a line from its time, its values, which are in the order of the attribute names, and further attributes.
    pub fn from_values(
        time: Timestamp,
        values: [Option<&'a str>; ATTRIBUTE_COUNT],
        other_attributes: Vec<(&'a str, &'a str)>,
    ) -> Self {
        Self { time, values, other_attributes }
    }

    /// Returns all values in the order of the attribute names, `None` for missing values.
    pub fn values(&self) -> [Option<&'a str>; ATTRIBUTE_COUNT] {
        self.values
    }

    /// Returns the value of an attribute, or `None` if the line lacks it.
    pub fn value(&self, name: &str) -> Option<&'a str> {
        match attribute_index(name) {
            Some(index) => self.values[index],
            None => {
                self.other_attributes.iter().find(|(own, _)| *own == name).map(|(_, value)| *value)
            }
        }
    }

    /// Returns the names and values of the attributes of the request. Missing values are omitted.
    pub fn attributes(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        ATTRIBUTE_NAMES
            .into_iter()
            .zip(self.values)
            .filter_map(|(name, value)| Some((name, value?)))
            .chain(self.other_attributes.iter().copied())
    }
}

/// Splits a line into the fields before the time, the time, and the rest after the opening quote of the request.
/// Returns `None` if one of these parts is missing.
fn split_log_line_at_request(text: &str) -> Option<(&str, &str, &str)> {
    let time_starts = memchr::memchr_iter(b'[', text.as_bytes())
        .find_map(|at| at.checked_sub(1).filter(|&before| text.as_bytes()[before] == b' '))?;
    let (time, rest) = split_at_byte(&text[time_starts + 2..], b']')?;
    Some((&text[..time_starts], time, rest.strip_prefix(" \"")?))
}

/// Splits a text at the first occurrence of the ASCII character `at`. Returns `None` if the text does not contain it.
/// Much faster than `split_once`.
fn split_at_byte(text: &str, at: u8) -> Option<(&str, &str)> {
    let at = memchr::memchr(at, text.as_bytes())?;
    Some((&text[..at], &text[at + 1..]))
}

/// Parses a time such as `17/May/2015:10:05:03 +0000`. Returns `None` if the time is malformed or before 1970.
pub fn parse_timestamp(text: &str) -> Option<Timestamp> {
    #[rustfmt::skip]
    let &[
        d, dd, b'/', m, mo, mon, b'/', y, yy, yyy, yyyy,
        b':', h, hh, b':', mi, min, b':', s, ss, b' ', zone @ ..
    ] = <&[u8; 26]>::try_from(text.as_bytes()).ok()? else { return None };
    let year = i16::from(parse_two_digits(y, yy)?) * 100 + i16::from(parse_two_digits(yyy, yyyy)?);
    let (month, day) = (parse_month([m, mo, mon])?, parse_two_digits(d, dd)?);
    let local = DateTime::new(
        year,
        month,
        day,
        parse_two_digits(h, hh)?,
        parse_two_digits(mi, min)?,
        parse_two_digits(s, ss)?,
        0,
    )
    .ok()?;
    let utc = parse_utc_offset(zone)?.to_timestamp(local).ok()?;
    u64::try_from(utc.as_microsecond()).ok().map(Timestamp::from_micros)
}

/// Parses a number of two decimal digits. Returns `None` if one of the bytes is not a digit.
fn parse_two_digits(tens: u8, ones: u8) -> Option<i8> {
    let digit = |byte: u8| byte.is_ascii_digit().then(|| (byte - b'0') as i8);
    Some(digit(tens)? * 10 + digit(ones)?)
}

fn parse_month(name: [u8; 3]) -> Option<i8> {
    const MONTH_NAMES: [&[u8; 3]; 12] = [
        b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov",
        b"Dec",
    ];
    (1..).zip(MONTH_NAMES).find(|(_, month_name)| **month_name == name).map(|(month, _)| month)
}

/// Parses a UTC offset such as `+0200`. Returns `None` if it is malformed or out of range.
fn parse_utc_offset([sign, h, hh, m, mm]: [u8; 5]) -> Option<Offset> {
    let seconds =
        i32::from(parse_two_digits(h, hh)?) * 3600 + i32::from(parse_two_digits(m, mm)?) * 60;
    match sign {
        b'+' => Offset::from_seconds(seconds).ok(),
        b'-' => Offset::from_seconds(-seconds).ok(),
        _ => None,
    }
}

/// Splits a text at the first quote that is not escaped. Returns the text before and the text after the quote, or
/// `None` if there is no such quote.
fn split_at_closing_quote(text: &str) -> Option<(&str, &str)> {
    let mut from = 0;
    loop {
        let at = from + memchr::memchr(b'"', &text.as_bytes()[from..])?;
        let escapes = text.as_bytes()[..at].iter().rev().take_while(|&&byte| byte == b'\\').count();
        if escapes.is_multiple_of(2) {
            return Some((&text[..at], &text[at + 1..]));
        }
        from = at + 1;
    }
}

/// Parses a logged request such as `GET /path?query HTTP/1.1`. A request target may contain spaces, and a request in
/// HTTP/0.9 has no version. Returns `None` if the request is malformed.
fn parse_logged_request(request: &str) -> Option<LoggedRequestLine<'_>> {
    let (method, rest) = split_at_byte(request, b' ')?;
    if method.is_empty() || !method.bytes().all(is_http_method_byte) {
        return None;
    }
    let version = memchr::memrchr(b' ', rest.as_bytes());
    let version = version.filter(|&at| rest[at + 1..].starts_with("HTTP/"));
    let target = version.map_or(rest, |at| &rest[..at]);
    if target.starts_with('/') {
        return Some(LoggedRequestLine { method, host: None, path: remove_query_string(target) });
    }
    let (host, path) = match target.split_once("://") {
        Some((_scheme, rest)) => split_url_host_and_path(rest),
        // OPTIONS for the whole server, or CONNECT, whose target is a host and a port.
        None if target == "*" || method == "CONNECT" => (None, target),
        None => return None,
    };
    Some(LoggedRequestLine { method, host, path: remove_query_string(path) })
}

pub fn remove_query_string(path: &str) -> &str {
    split_at_byte(path, b'?').map_or(path, |(path, _query)| path)
}

/// Splits the part of a URL after `://`, such as `host:port/path?query`, into the host with its port, and the path with
/// its query. Removes the user name and password.
fn split_url_host_and_path(rest: &str) -> (Option<&str>, &str) {
    let at = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(at);
    let host = authority.rsplit_once('@').map_or(authority, |(_user, host)| host);
    let path = if path.starts_with('/') { path } else { "/" };
    (Some(host).filter(|host| !host.is_empty()), path)
}

/// Returns `true` if a byte may be part of an HTTP method (RFC 9110, section 5.6.2).
fn is_http_method_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Returns the rest of a line after its status code. Returns `None` if the status code is missing or not three digits.
fn skip_status_code(rest: &str) -> Option<&str> {
    let (status, rest) = rest.strip_prefix(' ')?.split_at_checked(3)?;
    let is_complete = rest.is_empty() || rest.starts_with(' ');
    (is_complete && status.bytes().all(|byte| byte.is_ascii_digit())).then_some(rest)
}

/// Extracts the referer and the user agent from the end of a line: ` size "referer" "user-agent"`. A value without a
/// closing quote extends to the end of the line, because servers cut values that are too long.
fn parse_referer_and_user_agent(rest: &str) -> (Option<&str>, Option<&str>) {
    let behind_size = rest.get(1..).and_then(|rest| split_at_byte(rest, b' '));
    let Some(rest) = behind_size.and_then(|(_size, rest)| rest.strip_prefix('"')) else {
        return (None, None);
    };
    let (referer, rest) = split_at_closing_quote(rest).unwrap_or((rest, ""));
    let user_agent = rest.strip_prefix(" \"");
    let user_agent = user_agent
        .map(|rest| split_at_closing_quote(rest).map_or(rest, |(user_agent, _)| user_agent));
    (none_if_empty_or_dash(referer), user_agent.and_then(none_if_empty_or_dash))
}

/// Returns the value, or `None` if it is empty or `-`. Access logs contain `-` in place of a missing value.
fn none_if_empty_or_dash(value: &str) -> Option<&str> {
    Some(value).filter(|value| *value != "-" && !value.is_empty())
}

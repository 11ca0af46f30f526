//! Parsers for the headers of a denial, which state the wait before a retry. The functions are pure: the current time
//! is a parameter.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderMap;
use http::header::{DATE, HeaderName, HeaderValue, RETRY_AFTER};
use sfv::{BareItem, Item, List, ListEntry, Parameters, Parser};
use slidegate::Timestamp;

const RATE_LIMIT_HEADER: HeaderName = HeaderName::from_static("ratelimit");

/// Returns the wait that is stated in the headers of a denial; `None` if no header states a wait.
///
/// `now` is the wall time ([`slidegate::clock::WallClock`]). The function uses `now` only if the wait is a date and the
/// response has no `Date` header; in all other cases, an error of the client's clock does not matter.
///
/// `Retry-After` (seconds, or a date) takes precedence. Without this header, the function uses the `RateLimit` field as
/// in draft-ietf-httpapi-ratelimit-headers-11: the parameter `t` of the limits with nothing remaining. If there are
/// several values, the longest wait applies. Malformed values are ignored. A date in the past is a wait of zero.
///
/// [`RetryLayer`](super::RetryLayer) uses this function. Clients that are not tower services can call it directly.
///
/// ```
/// use std::time::Duration;
///
/// use http::{HeaderMap, HeaderValue};
/// use slidegate::clock::{Clock, WallClock};
/// use slidegate_tower::client::parse_retry_delay;
///
/// let mut headers = HeaderMap::new();
/// assert_eq!(parse_retry_delay(&headers, WallClock.now()), None);
/// headers.insert("ratelimit", HeaderValue::from_static(r#""burst";r=0;t=1, "daily";r=0;t=60"#));
/// assert_eq!(parse_retry_delay(&headers, WallClock.now()), Some(Duration::from_secs(60)));
/// headers.insert("retry-after", HeaderValue::from_static("90"));
/// assert_eq!(parse_retry_delay(&headers, WallClock.now()), Some(Duration::from_secs(90)));
/// ```
pub fn parse_retry_delay(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    parse_retry_after(headers, now).or_else(|| parse_longest_rate_limit_wait(headers))
}

/// Returns the longest wait of all `Retry-After` headers. Proxies may have added headers of their own, and the longest
/// wait is long enough for all of them.
fn parse_retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let values = headers.get_all(RETRY_AFTER).iter();
    values
        .filter_map(|value| {
            parse_wait_seconds(value).or_else(|| parse_wait_until_date(value, headers, now))
        })
        .max()
}

/// Parses a number of seconds, as in `Retry-After: 120`. A number above `u64::MAX` becomes `u64::MAX`. Returns `None`
/// if the value is not a number.
fn parse_wait_seconds(value: &HeaderValue) -> Option<Duration> {
    let text = trimmed_header_text(value)?;
    // `str::parse` would also accept a plus sign, which `Retry-After` does not allow.
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| Duration::from_secs(text.parse().unwrap_or(u64::MAX)))
}

/// Parses a date, as in `Retry-After: Fri, 31 Dec 1999 23:59:59 GMT`, and returns the wait until that date. The wait
/// begins at the `Date` of the response, or at `now` if the response has no valid `Date`.
fn parse_wait_until_date(
    value: &HeaderValue,
    headers: &HeaderMap,
    now: Timestamp,
) -> Option<Duration> {
    let until = parse_http_date_header(value)?;
    let sent = headers
        .get(DATE)
        .and_then(parse_http_date_header)
        .or_else(|| timestamp_to_system_time(now))?;
    Some(until.duration_since(sent).unwrap_or_default())
}

fn parse_http_date_header(value: &HeaderValue) -> Option<SystemTime> {
    httpdate::parse_http_date(trimmed_header_text(value)?).ok()
}

fn timestamp_to_system_time(now: Timestamp) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_micros(now.as_micros()))
}

fn trimmed_header_text(value: &HeaderValue) -> Option<&str> {
    value.to_str().ok().map(str::trim)
}

/// Returns the longest wait in the `RateLimit` headers: the maximum of the parameter `t` over all limits with nothing
/// remaining. Several `RateLimit` header lines form one list.
fn parse_longest_rate_limit_wait(headers: &HeaderMap) -> Option<Duration> {
    let lines: Vec<&[u8]> =
        headers.get_all(RATE_LIMIT_HEADER).iter().map(HeaderValue::as_bytes).collect();
    let list: List = Parser::new(&lines.join(&b", "[..])).parse().ok()?;
    // One malformed item invalidates the whole field: the rest cannot be trusted either.
    let items: Option<Vec<LimitInRateLimitHeader>> =
        list.iter().map(LimitInRateLimitHeader::from_list_entry).collect();
    items?.into_iter().filter(|item| item.remaining == 0).filter_map(|item| item.reset).max()
}

/// The state of one limit, as reported in the `RateLimit` header.
struct LimitInRateLimitHeader {
    remaining: u64,
    reset: Option<Duration>,
}

impl LimitInRateLimitHeader {
    /// Parses one entry of the list in the `RateLimit` header. Returns `None` if the entry is not a quoted string with
    /// the parameter `r`, or if a parameter is malformed.
    fn from_list_entry(entry: &ListEntry) -> Option<Self> {
        let ListEntry::Item(Item { bare_item: BareItem::String(_), params }) = entry else {
            return None;
        };
        let reset = match params.get("t") {
            Some(_) => Some(Duration::from_secs(parse_unsigned_parameter(params, "t")?)),
            None => None,
        };
        Some(Self { remaining: parse_unsigned_parameter(params, "r")?, reset })
    }
}

/// Returns the value of a parameter; `None` if the parameter is not an Integer of at least 0.
fn parse_unsigned_parameter(params: &Parameters, name: &str) -> Option<u64> {
    let BareItem::Integer(value) = params.get(name)? else { return None };
    u64::try_from(i64::from(*value)).ok()
}

//! How long an answer tells to wait.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderMap;
use http::header::{DATE, HeaderName, HeaderValue, RETRY_AFTER};
use sfv::{BareItem, Item, List, ListEntry, Parameters, Parser};
use slidegate::Timestamp;

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// How long the headers of a denial tell to wait; none if they do not tell.
///
/// `now` is the wall time ([`slidegate::WallClock`]). It matters only if a date is told and the answer has
/// no `Date` of its own: otherwise the client's clock may be as wrong as it likes.
///
/// `Retry-After` (seconds, or a date) goes first. Without it, the `t` of a `RateLimit` field as in
/// draft-ietf-httpapi-ratelimit-headers-10, of the limits with nothing remaining. Of several values the
/// longest holds; what is malformed is ignored, as if it were not there. A date that has passed is no time
/// at all.
///
/// [`RetryLayer`](super::RetryLayer) waits by this. It is also for clients that are no tower services.
///
/// ```
/// use std::time::Duration;
///
/// use http::{HeaderMap, HeaderValue};
/// use slidegate::{Clock, WallClock};
/// use slidegate_tower::client::told_wait;
///
/// let mut headers = HeaderMap::new();
/// assert_eq!(told_wait(&headers, WallClock.now()), None);
/// headers.insert("ratelimit", HeaderValue::from_static(r#""burst";r=0;t=1, "daily";r=0;t=60"#));
/// assert_eq!(told_wait(&headers, WallClock.now()), Some(Duration::from_secs(60)));
/// headers.insert("retry-after", HeaderValue::from_static("90"));
/// assert_eq!(told_wait(&headers, WallClock.now()), Some(Duration::from_secs(90)));
/// ```
pub fn told_wait(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    retry_after(headers, now).or_else(|| rate_limit(headers))
}

/// Proxies may have added one of their own: whoever waits for the longest comes too early for nobody.
fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let values = headers.get_all(RETRY_AFTER).iter();
    values.filter_map(|value| delay(value).or_else(|| until(value, headers, now))).max()
}

/// `Retry-After: 120`. More than fits into 64 bits is the most that does.
fn delay(value: &HeaderValue) -> Option<Duration> {
    let text = text(value)?;
    // `parse` would also take a plus sign.
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| Duration::from_secs(text.parse().unwrap_or(u64::MAX)))
}

/// `Retry-After: Fri, 31 Dec 1999 23:59:59 GMT`.
fn until(value: &HeaderValue, headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let until = date(value)?;
    let sent = headers.get(DATE).and_then(date).or_else(|| wall_time(now))?;
    Some(until.duration_since(sent).unwrap_or_default())
}

fn date(value: &HeaderValue) -> Option<SystemTime> {
    httpdate::parse_http_date(text(value)?).ok()
}

fn wall_time(now: Timestamp) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_micros(now.as_micros()))
}

fn text(value: &HeaderValue) -> Option<&str> {
    value.to_str().ok().map(str::trim)
}

/// The longest `t` of what has nothing left. A field may stand in several lines, which are one list.
fn rate_limit(headers: &HeaderMap) -> Option<Duration> {
    let lines: Vec<&[u8]> = headers.get_all(RATE_LIMIT).iter().map(HeaderValue::as_bytes).collect();
    let list: List = Parser::new(&lines.join(&b", "[..])).parse().ok()?;
    // One item that is malformed spoils the field: who wrote it may have meant anything.
    let standings: Option<Vec<Standing>> = list.iter().map(Standing::of).collect();
    standings?.into_iter().filter(|standing| standing.remaining == 0).filter_map(|s| s.reset).max()
}

/// One item of `RateLimit`.
struct Standing {
    remaining: u64,
    reset: Option<Duration>,
}

impl Standing {
    /// None if it is no String with an `r`, or a parameter is not what it should be.
    fn of(entry: &ListEntry) -> Option<Self> {
        let ListEntry::Item(Item { bare_item: BareItem::String(_), params }) = entry else {
            return None;
        };
        let reset = match params.get("t") {
            Some(_) => Some(Duration::from_secs(integer(params, "t")?)),
            None => None,
        };
        Some(Self { remaining: integer(params, "r")?, reset })
    }
}

/// A parameter that is an Integer of at least 0.
fn integer(params: &Parameters, name: &str) -> Option<u64> {
    let BareItem::Integer(value) = params.get(name)? else { return None };
    u64::try_from(i64::from(*value)).ok()
}

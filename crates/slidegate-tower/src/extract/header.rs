//! What stands in headers.

use std::borrow::Cow;
use std::fmt;

use http::header::{AUTHORIZATION, HOST};
use http::{HeaderMap, HeaderName};
use slidegate::normal_host;

use super::from_fn::text_from_fn;
use super::{Extract, ExtractedText, from_fn};

static X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The first header of this name, a text or a [`HeaderName`]. An empty one is none.
///
/// Its value is as the client wrote it. For the host take [`host`], or each client has as many counts as there are
/// spellings.
///
/// # Panics
///
/// If it is no name of a header: a mistake in the program, found as soon as it starts.
///
/// ```
/// use http::Request;
/// use slidegate_tower::extract::{Extract, header};
///
/// let request = Request::get("/").header("x-tenant", "acme").body(()).unwrap();
/// assert_eq!(header("X-Tenant").extract((&request).into()).as_deref(), Some("acme"));
/// ```
#[track_caller]
pub fn header<N>(name: N) -> impl Extract + Clone + fmt::Debug
where
    N: TryInto<HeaderName, Error: fmt::Display>,
{
    let name = parse_name(name);
    text_from_fn(move |head| first_value(head.headers, &name))
}

/// The header of this name, if all values that the request has for it are the same; otherwise the request has none.
///
/// Of a header that is repeated, [`header`] takes the first value, while the service behind may use the last one or join
/// them. Where that matters, this extractor treats a conflict as a missing value.
///
/// # Panics
///
/// If it is no name of a header.
///
/// ```
/// use http::Request;
/// use slidegate_tower::extract::{Extract, unique_header};
///
/// let request = Request::get("/").header("x-tenant", "acme").header("x-tenant", "umbrella").body(()).unwrap();
/// assert_eq!(unique_header("x-tenant").extract((&request).into()), None);
/// ```
#[track_caller]
pub fn unique_header<N>(name: N) -> impl Extract + Clone + fmt::Debug
where
    N: TryInto<HeaderName, Error: fmt::Display>,
{
    let name = parse_name(name);
    text_from_fn(move |head| {
        let value = head.headers.get(&name)?;
        let is_unique = head.headers.get_all(&name).iter().all(|other| other == value);
        if is_unique { non_empty_text(value.as_bytes()) } else { None }
    })
}

#[track_caller]
fn parse_name<N: TryInto<HeaderName, Error: fmt::Display>>(name: N) -> HeaderName {
    match name.try_into() {
        Ok(name) => name,
        Err(error) => panic!("the header of an extractor: {error}"),
    }
}

/// The host that the request is for, [written in one way only](normal_host): the authority of the URI, else the header
/// `Host`. A request that names none, or only a port, has no value.
///
/// Clients choose it: count by it only where a rule names the hosts, or a proxy has seen that there is such a host.
///
/// ```
/// use http::Request;
/// use slidegate_tower::extract::{Extract, host};
///
/// let request = Request::get("/").header("host", "API.example.com:443").body(()).unwrap();
/// assert_eq!(host().extract((&request).into()).as_deref(), Some("api.example.com"));
/// ```
pub fn host() -> impl Extract + Copy + fmt::Debug {
    from_fn(|head| {
        let host = match head.uri.authority() {
            Some(authority) => Cow::Borrowed(authority.host()),
            None => String::from_utf8_lossy(head.headers.get(&HOST)?.as_bytes()),
        };
        let host = match host {
            Cow::Borrowed(host) => normal_host(host),
            Cow::Owned(host) => Cow::Owned(normal_host(&host).into_owned()),
        };
        Some(host).filter(|host| !host.is_empty())
    })
}

/// The key of `Authorization: Bearer …`, or else of `X-Api-Key`.
///
/// It is what the client claims: whether there is such a key, authentication has to see. Where it has not yet, count
/// per address as well, since a made-up key has a count of its own. The key stands as it is in the keys of a store
/// and in reports; [`map`](Extract::map) can shorten or hash it.
///
/// ```
/// use http::Request;
/// use slidegate_tower::extract::{Extract, api_key};
///
/// let request = Request::get("/").header("authorization", "Bearer k1").body(()).unwrap();
/// assert_eq!(api_key().extract((&request).into()).as_deref(), Some("k1"));
/// ```
pub fn api_key() -> impl Extract + Copy + fmt::Debug {
    text_from_fn(|head| bearer(head.headers).or_else(|| first_value(head.headers, &X_API_KEY)))
}

fn bearer(headers: &HeaderMap) -> Option<ExtractedText<'_>> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked("Bearer ".len())?;
    if scheme.eq_ignore_ascii_case(b"Bearer ") { non_empty_text(token.trim_ascii()) } else { None }
}

fn first_value<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<ExtractedText<'h>> {
    non_empty_text(headers.get(name)?.as_bytes())
}

fn non_empty_text(value: &[u8]) -> Option<ExtractedText<'_>> {
    if value.is_empty() { None } else { Some(ExtractedText::from_bytes(value)) }
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, Request};

    use super::*;

    fn request(headers: &[(&'static str, &[u8])]) -> Request<()> {
        let mut request = Request::new(());
        for (name, value) in headers {
            request.headers_mut().append(*name, HeaderValue::from_bytes(value).unwrap());
        }
        request
    }

    fn told(by: impl Extract, headers: &[(&'static str, &[u8])]) -> Option<String> {
        by.extract((&request(headers)).into()).map(ExtractedText::into_owned)
    }

    #[test]
    fn a_header_is_told_by_its_first_value() {
        assert_eq!(
            told(header("x-tenant"), &[("x-tenant", b"a"), ("x-tenant", b"b")]).unwrap(),
            "a"
        );
        assert_eq!(told(header(AUTHORIZATION), &[("authorization", b"a")]).unwrap(), "a");
    }

    #[test]
    fn an_empty_header_is_none() {
        assert_eq!(told(header("x-tenant"), &[]), None);
        assert_eq!(told(header("x-tenant"), &[("x-tenant", b"")]), None);
        assert_eq!(told(header("x-tenant"), &[("x-tenant", b""), ("x-tenant", b"b")]), None);
    }

    #[test]
    fn unique_header_with_conflicting_values_is_none() {
        let unique = |values: [&'static [u8]; 2]| {
            told(unique_header("x-tenant"), &values.map(|value| ("x-tenant", value)))
        };
        assert_eq!(unique([b"a", b"b"]), None);
        assert_eq!(unique([b"", b"b"]), None);
        assert_eq!(unique([b"a", b"a"]).unwrap(), "a");
        assert_eq!(told(unique_header("x-tenant"), &[]), None);
    }

    #[test]
    fn what_is_no_text_is_still_there() {
        assert_eq!(told(header("x"), &[("x", b"a\xffb")]).unwrap(), "a\u{fffd}b");
        assert_eq!(told(header("x"), &[("x", "ä".as_bytes())]).unwrap(), "ä");
        assert_eq!(told(api_key(), &[("authorization", b"Bearer \xff")]).unwrap(), "\u{fffd}");
    }

    #[test]
    fn host_is_canonical_and_authority_goes_first() {
        for host_header in ["api.example.com", "API.Example.com:80", "api.example.com.:443"] {
            let headers: &[(_, &[u8])] = &[("host", host_header.as_bytes())];
            assert_eq!(told(host(), headers).unwrap(), "api.example.com", "{host_header}");
        }
        let mut request = request(&[("host", b"other.example")]);
        *request.uri_mut() = "http://me@[2001:DB8::1]:80/".parse().unwrap();
        assert_eq!(host().extract((&request).into()).unwrap(), "2001:db8::1");
    }

    #[test]
    fn host_without_name_is_none() {
        for lacking in ["", ":80", ".", " "] {
            assert_eq!(told(host(), &[("host", lacking.as_bytes())]), None, "{lacking:?}");
        }
        assert_eq!(told(host(), &[]), None);
    }

    #[test]
    #[should_panic = "the header of an extractor"]
    fn a_name_that_no_header_can_have_is_found_at_once() {
        let _ = header("x tenant");
    }

    #[test]
    fn a_key_is_the_bearers_however_the_scheme_is_written() {
        for bearer in ["Bearer k1", "bearer k1", "BEARER  k1"] {
            let headers: &[(_, &[u8])] =
                &[("x-api-key", b"k2"), ("authorization", bearer.as_bytes())];
            assert_eq!(told(api_key(), headers).unwrap(), "k1", "{bearer}");
        }
    }

    #[test]
    fn any_other_authorization_leaves_it_to_the_other_header() {
        for other in ["Basic YTpi", "Bearer", "Bearer ", "Bearerk1", "k1", ""] {
            let headers: &[(_, &[u8])] =
                &[("authorization", other.as_bytes()), ("x-api-key", b"k2")];
            assert_eq!(told(api_key(), headers).unwrap(), "k2", "{other}");
            assert_eq!(told(api_key(), &headers[..1]), None, "{other}");
        }
        assert_eq!(told(api_key(), &[("x-api-key", b"")]), None);
    }
}

//! Extractors of header values: any header, the host, and the API key.

use std::borrow::Cow;
use std::fmt;

use http::header::{AUTHORIZATION, HOST};
use http::{HeaderMap, HeaderName};
use slidegate::policy::normalize_host;

use super::from_fn::text_extractor_from_fn;
use super::{Extract, ExtractedText, from_fn};

static X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Creates an extractor of the first header with this name. An empty value counts as missing.
///
/// The value is not normalized. For the host use [`host`]: otherwise each spelling of the host has a separate counter.
///
/// # Panics
///
/// Panics if `name` is not a valid header name. Such a name is an error in the program, which becomes visible at
/// startup.
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
    let name = parse_header_name(name);
    text_extractor_from_fn(move |head| first_header_value(head.headers, &name))
}

/// Creates an extractor of the header with this name. If the request repeats the header with different values, the
/// value counts as missing.
///
/// For a repeated header, the extractor [`header`] uses the first value, while the service behind the layer may use the
/// last value or join the values. Use this extractor if such a conflict must not be resolved by order.
///
/// # Panics
///
/// Panics if `name` is not a valid header name.
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
    let name = parse_header_name(name);
    text_extractor_from_fn(move |head| {
        let value = head.headers.get(&name)?;
        let is_unique = head.headers.get_all(&name).iter().all(|other| other == value);
        if is_unique { non_empty_text(value.as_bytes()) } else { None }
    })
}

#[track_caller]
fn parse_header_name<N: TryInto<HeaderName, Error: fmt::Display>>(name: N) -> HeaderName {
    match name.try_into() {
        Ok(name) => name,
        Err(error) => panic!("invalid header name of an extractor: {error}"),
    }
}

/// Creates an extractor of the requested host, [normalized](normalize_host): the authority of the URI, or else the
/// header `Host`.
///
/// A request without a host, or with only a port, has no value.
///
/// Clients choose the host, so use the host as a key only in rules that match specific hosts, or behind a proxy that
/// rejects unknown hosts.
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
            Cow::Borrowed(host) => normalize_host(host),
            Cow::Owned(host) => Cow::Owned(normalize_host(&host).into_owned()),
        };
        Some(host).filter(|host| !host.is_empty())
    })
}

/// Creates an extractor of the API key in `Authorization: Bearer …`, or else in `X-Api-Key`.
///
/// The value is unverified: authentication must check that the key exists. Each invented key has a separate counter, so
/// also limit requests per address before authentication. The key appears in plain text in store keys and reports;
/// [`map`](Extract::map) can shorten or hash the key.
///
/// ```
/// use http::Request;
/// use slidegate_tower::extract::{Extract, api_key};
///
/// let request = Request::get("/").header("authorization", "Bearer k1").body(()).unwrap();
/// assert_eq!(api_key().extract((&request).into()).as_deref(), Some("k1"));
/// ```
pub fn api_key() -> impl Extract + Copy + fmt::Debug {
    text_extractor_from_fn(|head| {
        bearer_token(head.headers).or_else(|| first_header_value(head.headers, &X_API_KEY))
    })
}

fn bearer_token(headers: &HeaderMap) -> Option<ExtractedText<'_>> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked("Bearer ".len())?;
    if scheme.eq_ignore_ascii_case(b"Bearer ") { non_empty_text(token.trim_ascii()) } else { None }
}

fn first_header_value<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<ExtractedText<'h>> {
    non_empty_text(headers.get(name)?.as_bytes())
}

fn non_empty_text(value: &[u8]) -> Option<ExtractedText<'_>> {
    if value.is_empty() { None } else { Some(ExtractedText::from_bytes(value)) }
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, Request};

    use super::*;

    fn request_with_headers(headers: &[(&'static str, &[u8])]) -> Request<()> {
        let mut request = Request::new(());
        for (name, value) in headers {
            request.headers_mut().append(*name, HeaderValue::from_bytes(value).unwrap());
        }
        request
    }

    fn extract_value(extractor: impl Extract, headers: &[(&'static str, &[u8])]) -> Option<String> {
        extractor.extract((&request_with_headers(headers)).into()).map(ExtractedText::into_owned)
    }

    #[test]
    fn first_header_value_is_used() {
        assert_eq!(
            extract_value(header("x-tenant"), &[("x-tenant", b"a"), ("x-tenant", b"b")]).unwrap(),
            "a"
        );
        assert_eq!(extract_value(header(AUTHORIZATION), &[("authorization", b"a")]).unwrap(), "a");
    }

    #[test]
    fn empty_header_counts_as_missing() {
        assert_eq!(extract_value(header("x-tenant"), &[]), None);
        assert_eq!(extract_value(header("x-tenant"), &[("x-tenant", b"")]), None);
        assert_eq!(
            extract_value(header("x-tenant"), &[("x-tenant", b""), ("x-tenant", b"b")]),
            None
        );
    }

    #[test]
    fn unique_header_with_conflicting_values_counts_as_missing() {
        let unique = |values: [&'static [u8]; 2]| {
            extract_value(unique_header("x-tenant"), &values.map(|value| ("x-tenant", value)))
        };
        assert_eq!(unique([b"a", b"b"]), None);
        assert_eq!(unique([b"", b"b"]), None);
        assert_eq!(unique([b"a", b"a"]).unwrap(), "a");
        assert_eq!(extract_value(unique_header("x-tenant"), &[]), None);
    }

    #[test]
    fn non_utf8_header_counts_as_present() {
        assert_eq!(extract_value(header("x"), &[("x", b"a\xffb")]).unwrap(), "a\u{fffd}b");
        assert_eq!(extract_value(header("x"), &[("x", "ä".as_bytes())]).unwrap(), "ä");
        assert_eq!(
            extract_value(api_key(), &[("authorization", b"Bearer \xff")]).unwrap(),
            "\u{fffd}"
        );
    }

    #[test]
    fn host_is_normalized_and_uri_authority_overrides_header() {
        for host_header in ["api.example.com", "API.Example.com:80", "api.example.com.:443"] {
            let headers: &[(_, &[u8])] = &[("host", host_header.as_bytes())];
            assert_eq!(extract_value(host(), headers).unwrap(), "api.example.com", "{host_header}");
        }
        let mut request = request_with_headers(&[("host", b"other.example")]);
        *request.uri_mut() = "http://me@[2001:DB8::1]:80/".parse().unwrap();
        assert_eq!(host().extract((&request).into()).unwrap(), "2001:db8::1");
    }

    #[test]
    fn host_header_without_name_counts_as_missing() {
        for empty in ["", ":80", ".", " "] {
            assert_eq!(extract_value(host(), &[("host", empty.as_bytes())]), None, "{empty:?}");
        }
        assert_eq!(extract_value(host(), &[]), None);
    }

    #[test]
    #[should_panic = "invalid header name of an extractor"]
    fn invalid_header_name_panics() {
        let _ = header("x tenant");
    }

    #[test]
    fn bearer_scheme_is_case_insensitive() {
        for bearer in ["Bearer k1", "bearer k1", "BEARER  k1"] {
            let headers: &[(_, &[u8])] =
                &[("x-api-key", b"k2"), ("authorization", bearer.as_bytes())];
            assert_eq!(extract_value(api_key(), headers).unwrap(), "k1", "{bearer}");
        }
    }

    #[test]
    fn non_bearer_authorization_falls_back_to_x_api_key() {
        for other in ["Basic YTpi", "Bearer", "Bearer ", "Bearerk1", "k1", ""] {
            let headers: &[(_, &[u8])] =
                &[("authorization", other.as_bytes()), ("x-api-key", b"k2")];
            assert_eq!(extract_value(api_key(), headers).unwrap(), "k2", "{other}");
            assert_eq!(extract_value(api_key(), &headers[..1]), None, "{other}");
        }
        assert_eq!(extract_value(api_key(), &[("x-api-key", b"")]), None);
    }
}

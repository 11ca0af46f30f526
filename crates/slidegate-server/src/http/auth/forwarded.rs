//! The request that a proxy describes in headers, as attributes.

use std::borrow::Cow;
use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderName};
use clap::ValueEnum;
use slidegate::{Descriptor, Request};
use slidegate_tower::extract::normalize_path;

use crate::service::NamedHeaders;

const FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// What a client's header counts as if the client repeats it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RepeatedHeaders {
    /// Its first value.
    First,
    /// Absent, unless all its values are the same.
    Absent,
}

/// The request that a proxy describes.
pub struct Forwarded<'h> {
    attributes: Vec<Attribute<'h>>,
}

struct Attribute<'h> {
    name: &'h str,
    /// With a replacement for each sequence that is not UTF-8.
    text: Cow<'h, str>,
    /// The bytes of a value that is not UTF-8.
    bytes: Option<&'h [u8]>,
}

impl<'h> Forwarded<'h> {
    /// Reads the headers of a trusted proxy for a client at `ip`: those that describe the request, and of the client's
    /// own those that the policy names. A header that is missing or empty yields no attribute.
    pub fn read(
        headers: &'h HeaderMap,
        ip: IpAddr,
        named: &'h NamedHeaders,
        repeated: RepeatedHeaders,
    ) -> Self {
        // The last value is the proxy's own, if it adds to those of its client.
        let last = |name: HeaderName| {
            headers.get_all(name).iter().next_back().map(|value| value.as_bytes())
        };
        let described = [
            ("method", last(FORWARDED_METHOD)),
            ("path", last(FORWARDED_URI)),
            ("host", last(FORWARDED_HOST)),
        ];
        let named = named
            .iter()
            .map(|(attribute, name)| (&**attribute, client_value(headers, name, repeated)));
        let mut attributes = Vec::with_capacity(1 + described.len() + named.len());
        attributes.push(Attribute { name: "ip", text: ip.to_string().into(), bytes: None });
        let present =
            described.into_iter().chain(named).filter_map(|(name, bytes)| Some((name, bytes?)));
        let present = present.filter(|(_, bytes)| !bytes.is_empty());
        attributes.extend(present.map(|(name, bytes)| Attribute::new(name, bytes)));
        Self { attributes }
    }

    /// One unit for it.
    pub fn request<'r>(&'r self, domain: &'r str) -> Request<'r> {
        let pairs = self.attributes.iter().map(|attribute| (attribute.name, &*attribute.text));
        let mut descriptor = Descriptor::new(pairs);
        for Attribute { name, bytes, .. } in &self.attributes {
            if let Some(bytes) = bytes {
                descriptor = descriptor.with_bytes(name, bytes);
            }
        }
        Request::new(domain, descriptor)
    }
}

impl<'h> Attribute<'h> {
    fn new(name: &'h str, bytes: &'h [u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let bytes = matches!(text, Cow::Owned(_)).then_some(bytes);
        let text = match (name, text) {
            ("path", Cow::Borrowed(uri)) => normalize_path(uri),
            ("path", Cow::Owned(uri)) => Cow::Owned(normalize_path(&uri).into_owned()),
            (_, text) => text,
        };
        Self { name, text, bytes }
    }
}

/// Returns the value of a header that the client wrote.
fn client_value<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
    repeated: RepeatedHeaders,
) -> Option<&'h [u8]> {
    let first = headers.get(name)?;
    let is_conflicting = || headers.get_all(name).iter().any(|other| other != first);
    match repeated == RepeatedHeaders::Absent && is_conflicting() {
        true => None,
        false => Some(first.as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    const NAMED: [&str; 2] = ["x-api-key", "x-forwarded-proto"];

    /// The attributes of a client at 192.0.2.7 whose proxy sends these headers.
    fn attributes_by(repeated: RepeatedHeaders, lines: &[(&str, &[u8])]) -> Vec<(String, String)> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.append(name, HeaderValue::from_bytes(value).unwrap());
        }
        let named =
            NAMED.map(|name| (format!("header.{name}").into(), HeaderName::from_static(name)));
        let named: NamedHeaders = named.into();
        let forwarded = Forwarded::read(&headers, [192, 0, 2, 7].into(), &named, repeated);
        let request = forwarded.request("default");
        let pairs = request.descriptors()[0].iter();
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    fn attributes(lines: &[(&str, &[u8])]) -> Vec<(String, String)> {
        attributes_by(RepeatedHeaders::First, lines)
    }

    /// The address, and these.
    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        let expected = [("ip", "192.0.2.7")].iter().chain(expected);
        expected.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn forwarded_headers_become_attributes() {
        let found = attributes(&[
            ("X-Forwarded-Method", b"POST"),
            ("X-Forwarded-Uri", b"/login?x"),
            ("X-Forwarded-Host", b"shop.example"),
            ("X-Forwarded-For", b"192.0.2.7"),
            ("X-Api-Key", b"k1"),
            ("X-Forwarded-Proto", b"https"),
        ]);
        let expected = [
            ("method", "POST"),
            ("path", "/login"),
            ("host", "shop.example"),
            ("header.x-api-key", "k1"),
            ("header.x-forwarded-proto", "https"),
        ];
        assert_eq!(found, pairs(&expected));
    }

    #[test]
    fn header_unnamed_by_policy_is_not_read() {
        assert_eq!(attributes(&[("Cookie", b"a=b"), ("X-Other", b"c")]), pairs(&[]));
    }

    #[test]
    fn missing_or_empty_header_is_absent() {
        assert_eq!(attributes(&[]), pairs(&[]));
        let empty: [(&str, &[u8]); 3] =
            [("X-Api-Key", b""), ("X-Forwarded-Host", b""), ("X-Forwarded-Method", b"")];
        assert_eq!(attributes(&empty), pairs(&[]));
    }

    #[test]
    fn repeated_header_counts_as_first_proxy_header_as_last() {
        let found = attributes(&[
            ("X-Forwarded-Uri", b"/forged"),
            ("X-Forwarded-Uri", b"/real"),
            ("X-Api-Key", b"k1"),
            ("X-Api-Key", b"k2"),
        ]);
        assert_eq!(found, pairs(&[("path", "/real"), ("header.x-api-key", "k1")]));
    }

    #[test]
    fn strict_mode_ignores_conflicting_repeats_only() {
        let strict = |keys: [&[u8]; 2]| {
            attributes_by(RepeatedHeaders::Absent, &keys.map(|key| ("X-Api-Key", key)))
        };
        assert_eq!(strict([b"k1", b"k2"]), pairs(&[]));
        assert_eq!(strict([b"k1", b"k1"]), pairs(&[("header.x-api-key", "k1")]));
    }

    #[test]
    fn value_not_utf8_keeps_text_and_bytes() {
        let found = attributes(&[("X-Api-Key", b"k\xff1")]);
        assert_eq!(found, pairs(&[("header.x-api-key", "k\u{fffd}1")]));
    }
}

//! Attributes of the request that a proxy describes in headers.

use std::borrow::Cow;
use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderName};
use clap::ValueEnum;
use slidegate::{Descriptor, Request};
use slidegate_tower::extract::normalize_path;

use crate::service::PolicyHeaders;

const FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// The treatment of client headers that occur more than once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RepeatedHeaders {
    /// Use the first value.
    First,
    /// Treat the header as absent, unless all values are equal.
    Absent,
}

/// The request that a proxy describes.
pub struct ForwardedRequest<'h> {
    attributes: Vec<ForwardedAttribute<'h>>,
}

struct ForwardedAttribute<'h> {
    name: &'h str,
    /// The value, with a replacement character for each sequence that is not UTF-8.
    text: Cow<'h, str>,
    /// The original bytes of a value that is not UTF-8.
    bytes: Option<&'h [u8]>,
}

impl<'h> ForwardedRequest<'h> {
    /// Reads the headers of a trusted proxy for a client at `ip`: the headers that describe the request, and the client
    /// headers that the policy names. A header that is missing or empty yields no attribute.
    pub fn from_headers(
        headers: &'h HeaderMap,
        ip: IpAddr,
        policy_headers: &'h PolicyHeaders,
        repeated: RepeatedHeaders,
    ) -> Self {
        // A proxy that appends to headers of its client writes the last value.
        let last_value = |name: HeaderName| {
            headers.get_all(name).iter().next_back().map(|value| value.as_bytes())
        };
        let request_headers = [
            ("method", last_value(FORWARDED_METHOD)),
            ("path", last_value(FORWARDED_URI)),
            ("host", last_value(FORWARDED_HOST)),
        ];
        let client_headers = policy_headers
            .iter()
            .map(|(attribute, name)| (&**attribute, client_value(headers, name, repeated)));
        let mut attributes = Vec::with_capacity(1 + request_headers.len() + client_headers.len());
        attributes.push(ForwardedAttribute {
            name: "ip",
            text: ip.to_string().into(),
            bytes: None,
        });
        let present = request_headers
            .into_iter()
            .chain(client_headers)
            .filter_map(|(name, bytes)| Some((name, bytes?)));
        let present = present.filter(|(_, bytes)| !bytes.is_empty());
        attributes.extend(present.map(|(name, bytes)| ForwardedAttribute::new(name, bytes)));
        Self { attributes }
    }

    /// Returns the request for the gate, with a cost of one unit.
    pub fn to_gate_request<'r>(&'r self, domain: &'r str) -> Request<'r> {
        let pairs = self.attributes.iter().map(|attribute| (attribute.name, &*attribute.text));
        let mut descriptor = Descriptor::new(pairs);
        for ForwardedAttribute { name, bytes, .. } in &self.attributes {
            if let Some(bytes) = bytes {
                descriptor = descriptor.with_bytes(name, bytes);
            }
        }
        Request::new(domain, descriptor)
    }
}

impl<'h> ForwardedAttribute<'h> {
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

    const POLICY_HEADERS: [&str; 2] = ["x-api-key", "x-forwarded-proto"];

    /// Returns the attributes for a client at 192.0.2.7 whose proxy sends these headers.
    fn attributes_by(repeated: RepeatedHeaders, lines: &[(&str, &[u8])]) -> Vec<(String, String)> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.append(name, HeaderValue::from_bytes(value).unwrap());
        }
        let named = POLICY_HEADERS
            .map(|name| (format!("header.{name}").into(), HeaderName::from_static(name)));
        let named: PolicyHeaders = named.into();
        let forwarded =
            ForwardedRequest::from_headers(&headers, [192, 0, 2, 7].into(), &named, repeated);
        let request = forwarded.to_gate_request("default");
        let pairs = request.descriptors()[0].iter();
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    fn attributes(lines: &[(&str, &[u8])]) -> Vec<(String, String)> {
        attributes_by(RepeatedHeaders::First, lines)
    }

    /// Returns the expected attributes: the client address, followed by `expected`.
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
    fn header_not_in_policy_is_ignored() {
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
    fn repeated_client_header_first_proxy_header_last() {
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

//! Reads the attributes of a client's request from the headers in which a proxy describes the request.

use std::borrow::Cow;
use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderName};
use clap::ValueEnum;
use slidegate::{Descriptor, Request};
use slidegate_tower::extract::{has_ambiguous_dot_segments, normalize_path};

const X_FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const X_FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// The treatment of a client's headers that occur more than once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RepeatedHeaders {
    /// Use the first value.
    First,
    /// Treat the header as absent, unless all values are equal.
    Absent,
}

/// The attributes of a client's request that a proxy describes in headers.
pub struct ForwardedRequest<'h> {
    attributes: Vec<ForwardedAttribute<'h>>,
}

struct ForwardedAttribute<'h> {
    name: &'h str,
    /// The value, with a replacement character for each sequence that is not UTF-8.
    text: Cow<'h, str>,
    /// The original bytes of a value that is not UTF-8, which distinguish the counters of such values. `None` for all
    /// other values, and for `path`: its bytes have the query and other spellings, which a client could vary.
    bytes: Option<&'h [u8]>,
}

/// Returns the last value of a header: a proxy that appends to the headers of its client writes the last one.
fn last_header_value(headers: &HeaderMap, name: HeaderName) -> Option<&[u8]> {
    headers.get_all(name).iter().next_back().map(|value| value.as_bytes())
}

/// Returns whether the path of the client's request means different routes to different servers.
pub fn has_ambiguous_path(headers: &HeaderMap) -> bool {
    let uri = last_header_value(headers, X_FORWARDED_URI).unwrap_or_default();
    has_ambiguous_dot_segments(&String::from_utf8_lossy(uri))
}

impl<'h> ForwardedRequest<'h> {
    /// Reads the headers that a trusted proxy sends for a client at `ip`: the headers that describe the request, and
    /// the client's headers that `header_attributes` names. A header that is missing or empty yields no attribute.
    pub fn from_headers(
        headers: &'h HeaderMap,
        ip: IpAddr,
        header_attributes: &'h [Box<str>],
        repeated: RepeatedHeaders,
    ) -> Self {
        let request_headers = [
            ("method", last_header_value(headers, X_FORWARDED_METHOD)),
            ("path", last_header_value(headers, X_FORWARDED_URI)),
            ("host", last_header_value(headers, X_FORWARDED_HOST)),
        ];
        let client_headers = header_attributes.iter().map(|attribute| {
            let name = attribute.strip_prefix("header.").unwrap_or(attribute);
            (&**attribute, client_header_value(headers, name, repeated))
        });
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

    /// Converts this request to the type that the gate evaluates, with a cost of one unit.
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
        let bytes = (name != "path" && matches!(text, Cow::Owned(_))).then_some(bytes);
        let text = match (name, text) {
            ("path", Cow::Borrowed(uri)) => normalize_path(uri),
            ("path", Cow::Owned(uri)) => Cow::Owned(normalize_path(&uri).into_owned()),
            (_, text) => text,
        };
        Self { name, text, bytes }
    }
}

/// Returns the value of a header of the client. Returns `None` if the header is missing, or if it has different values
/// and `repeated` is [`RepeatedHeaders::Absent`].
fn client_header_value<'h>(
    headers: &'h HeaderMap,
    name: &str,
    repeated: RepeatedHeaders,
) -> Option<&'h [u8]> {
    let first = headers.get(name)?;
    let is_conflicting = || headers.get_all(name).iter().any(|other| other != first);
    let is_absent = repeated == RepeatedHeaders::Absent && is_conflicting();
    (!is_absent).then_some(first.as_bytes())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    /// Names of the headers that the policy of each test uses.
    const HEADERS_IN_POLICY: [&str; 2] = ["x-api-key", "x-forwarded-proto"];

    /// Reads the attributes from the headers `lines`, which a proxy sends for a client at 192.0.2.7.
    fn read_attributes_with_repeated_headers(
        repeated: RepeatedHeaders,
        lines: &[(&str, &[u8])],
    ) -> Vec<(String, String)> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.append(name, HeaderValue::from_bytes(value).unwrap());
        }
        let named = HEADERS_IN_POLICY.map(|name| format!("header.{name}").into());
        let forwarded =
            ForwardedRequest::from_headers(&headers, [192, 0, 2, 7].into(), &named, repeated);
        let request = forwarded.to_gate_request("default");
        let pairs = request.descriptors()[0].iter();
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    fn read_attributes(lines: &[(&str, &[u8])]) -> Vec<(String, String)> {
        read_attributes_with_repeated_headers(RepeatedHeaders::First, lines)
    }

    /// Returns the attribute of the client address, followed by the attributes in `expected`.
    fn attributes_with_client_ip(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        let expected = [("ip", "192.0.2.7")].iter().chain(expected);
        expected.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn forwarded_headers_become_attributes() {
        let found = read_attributes(&[
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
        assert_eq!(found, attributes_with_client_ip(&expected));
    }

    #[test]
    fn header_not_in_policy_is_ignored() {
        assert_eq!(
            read_attributes(&[("Cookie", b"a=b"), ("X-Other", b"c")]),
            attributes_with_client_ip(&[])
        );
    }

    #[test]
    fn missing_or_empty_header_yields_no_attribute() {
        assert_eq!(read_attributes(&[]), attributes_with_client_ip(&[]));
        let empty: [(&str, &[u8]); 3] =
            [("X-Api-Key", b""), ("X-Forwarded-Host", b""), ("X-Forwarded-Method", b"")];
        assert_eq!(read_attributes(&empty), attributes_with_client_ip(&[]));
    }

    #[test]
    fn repeated_header_uses_first_client_or_last_proxy_value() {
        let found = read_attributes(&[
            ("X-Forwarded-Uri", b"/forged"),
            ("X-Forwarded-Uri", b"/real"),
            ("X-Api-Key", b"k1"),
            ("X-Api-Key", b"k2"),
        ]);
        assert_eq!(
            found,
            attributes_with_client_ip(&[("path", "/real"), ("header.x-api-key", "k1")])
        );
    }

    #[test]
    fn absent_mode_ignores_repeated_header_with_different_values() {
        let strict = |keys: [&[u8]; 2]| {
            read_attributes_with_repeated_headers(
                RepeatedHeaders::Absent,
                &keys.map(|key| ("X-Api-Key", key)),
            )
        };
        assert_eq!(strict([b"k1", b"k2"]), attributes_with_client_ip(&[]));
        assert_eq!(
            strict([b"k1", b"k1"]),
            attributes_with_client_ip(&[("header.x-api-key", "k1")])
        );
    }

    #[test]
    fn invalid_utf8_value_gets_replacement_character() {
        let found = read_attributes(&[("X-Api-Key", b"k\xff1")]);
        assert_eq!(found, attributes_with_client_ip(&[("header.x-api-key", "k\u{fffd}1")]));
    }
}

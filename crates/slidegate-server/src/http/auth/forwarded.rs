//! What a proxy says of the request that it asks about, as attributes.

use std::borrow::Cow;
use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderValue};
use slidegate::{Descriptor, Request};
use slidegate_tower::TrustedProxies;
use slidegate_tower::extract::{client_address, normal_path};

const FORWARDED_FOR: &str = "x-forwarded-for";
const FORWARDED_METHOD: &str = "x-forwarded-method";
const FORWARDED_URI: &str = "x-forwarded-uri";
const FORWARDED_HOST: &str = "x-forwarded-host";

/// Headers that are told as other attributes.
const TOLD: [&str; 4] = [FORWARDED_FOR, FORWARDED_METHOD, FORWARDED_URI, FORWARDED_HOST];

/// The request that a proxy asks about.
pub struct Forwarded<'h> {
    attributes: Vec<(Cow<'static, str>, Cow<'h, str>)>,
}

impl<'h> Forwarded<'h> {
    /// What the headers of a believed peer say. What they do not say is absent.
    pub fn read(headers: &'h HeaderMap, peer: IpAddr, trusted: &TrustedProxies) -> Self {
        let ip = client_address(headers, peer, trusted).to_string();
        let method = last(headers, FORWARDED_METHOD);
        let path = last(headers, FORWARDED_URI).map(normal);
        let host = last(headers, FORWARDED_HOST);
        let named = [("method", method), ("path", path), ("host", host), ("ip", Some(ip.into()))];
        let named = named.into_iter().filter_map(|(name, value)| Some((name.into(), value?)));
        let attributes = named.chain(of_headers(headers)).collect();
        Self { attributes }
    }

    /// One unit for it.
    pub fn request<'r>(&'r self, domain: &'r str) -> Request<'r> {
        let attributes = self.attributes.iter().map(|(name, value)| (&**name, &**value));
        Request::new(domain, Descriptor::new(attributes))
    }
}

fn normal(uri: Cow<'_, str>) -> Cow<'_, str> {
    match uri {
        Cow::Borrowed(uri) => normal_path(uri),
        Cow::Owned(uri) => Cow::Owned(normal_path(&uri).into_owned()),
    }
}

/// All others, by the first of each name.
fn of_headers(headers: &HeaderMap) -> impl Iterator<Item = (Cow<'static, str>, Cow<'_, str>)> {
    headers.keys().filter(|name| !TOLD.contains(&name.as_str())).filter_map(|name| {
        let value = headers.get(name)?;
        Some((Cow::Owned(["header.", name.as_str()].concat()), text(value)))
    })
}

/// The last: a proxy that adds its own to what the client sent adds it behind.
fn last<'h>(headers: &'h HeaderMap, name: &str) -> Option<Cow<'h, str>> {
    headers.get_all(name).iter().next_back().map(text)
}

/// What is no UTF-8 is shown by a replacement: without its attribute a request would not be counted at all.
fn text(value: &HeaderValue) -> Cow<'_, str> {
    String::from_utf8_lossy(value.as_bytes())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderName;

    use super::*;

    /// The attributes that become of headers, of a peer that is trusted.
    fn attributes(lines: &[(&str, &[u8])]) -> Vec<(String, String)> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.append(name, HeaderValue::from_bytes(value).unwrap());
        }
        let forwarded =
            Forwarded::read(&headers, [127, 0, 0, 1].into(), &"127.0.0.1".parse().unwrap());
        let request = forwarded.request("default");
        let pairs = request.descriptors()[0].iter();
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn what_the_proxy_says_becomes_attributes() {
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
            ("ip", "192.0.2.7"),
            ("header.x-api-key", "k1"),
            ("header.x-forwarded-proto", "https"),
        ];
        assert_eq!(found, pairs(&expected));
    }

    #[test]
    fn what_it_does_not_say_is_absent_but_for_the_address() {
        assert_eq!(attributes(&[]), pairs(&[("ip", "127.0.0.1")]));
    }

    #[test]
    fn of_repeated_headers_the_proxys_own_is_the_last_and_the_clients_the_first() {
        let found = attributes(&[
            ("X-Forwarded-Uri", b"/forged"),
            ("X-Forwarded-Uri", b"/real"),
            ("X-Api-Key", b"k1"),
            ("X-Api-Key", b"k2"),
        ]);
        let expected = [("path", "/real"), ("ip", "127.0.0.1"), ("header.x-api-key", "k1")];
        assert_eq!(found, pairs(&expected));
    }

    #[test]
    fn a_value_that_is_no_text_is_still_there() {
        let found = attributes(&[("X-Api-Key", b"k\xff1")]);
        assert_eq!(found, pairs(&[("ip", "127.0.0.1"), ("header.x-api-key", "k\u{fffd}1")]));
    }
}

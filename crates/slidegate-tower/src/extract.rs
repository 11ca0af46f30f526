//! Extractors: functions that read values from requests, for use as attributes and keys.
//!
//! Each function here creates an extractor of one value. [`Extract::or`] and [`Extract::map`] combine extractors,
//! [`from_fn`] creates one from a function, and [`Attributes`] maps them to the attribute names of a policy.
//!
//! A missing value is never an error. An empty header or parameter counts as missing: otherwise all clients that send
//! it empty would share one counter. Bytes that are not UTF-8 are displayed as `U+FFFD` and counted by a digest of the
//! bytes, as are values of more than [`MAX_VALUE_BYTES`](slidegate::MAX_VALUE_BYTES): no value evades a limit or makes
//! a key longer than that. The server bounds the size of the request head.

mod attributes;
mod client_address;
mod client_ip;
mod combine;
mod from_fn;
mod header;
mod normalize_path;
mod peer;
mod query;
mod text;

pub(crate) use self::attributes::AttributeRef;
pub use self::attributes::Attributes;
pub use self::client_address::client_address;
pub use self::client_ip::{ClientIp, client_ip};
pub use self::combine::{Map, Or};
#[cfg(feature = "axum")]
pub use self::from_fn::matched_route;
pub use self::from_fn::{FromFn, extension, from_fn, method, path, value};
pub use self::header::{api_key, header, host, unique_header};
pub use self::normalize_path::normalize_path;
pub use self::peer::Peer;
pub use self::query::query;
pub use self::text::ExtractedText;

use http::{Extensions, HeaderMap, Method, Request, Uri, request};

/// The head of a request: everything except the body.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'r> {
    /// The method.
    pub method: &'r Method,
    /// The request target.
    pub uri: &'r Uri,
    /// The headers.
    pub headers: &'r HeaderMap,
    /// Values that layers and servers have added.
    pub extensions: &'r Extensions,
}

impl<'r, B> From<&'r Request<B>> for RequestHead<'r> {
    fn from(request: &'r Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }
}

impl<'r> From<&'r request::Parts> for RequestHead<'r> {
    fn from(parts: &'r request::Parts) -> Self {
        let request::Parts { method, uri, headers, extensions, .. } = parts;
        Self { method, uri, headers, extensions }
    }
}

/// An extractor: reads one value from a request.
pub trait Extract: Send + Sync + 'static {
    /// Returns the value; `None` if the request has none.
    fn extract<'r>(&self, head: RequestHead<'r>) -> Option<ExtractedText<'r>>;

    /// Returns the value as an attribute of a policy. It differs from [`extract`](Self::extract) only for addresses,
    /// because a policy aggregates IPv6 addresses by itself.
    fn attribute<'r>(&self, head: RequestHead<'r>) -> Option<ExtractedText<'r>> {
        self.extract(head)
    }

    /// Creates an extractor of this value or, if it is missing, of the other one.
    ///
    /// Both share one set of counters: an API key `192.0.2.7` is counted together with the address 192.0.2.7. A policy
    /// separates them, by `per: [api_key|ip]`.
    ///
    /// ```
    /// use http::Request;
    /// use slidegate_tower::extract::{Extract, api_key, query};
    ///
    /// let key = api_key().or(query("key"));
    /// let request = Request::get("/search?key=k1").body(()).unwrap();
    /// assert_eq!(key.extract((&request).into()).as_deref(), Some("k1"));
    /// ```
    fn or<O: Extract>(self, other: O) -> Or<Self, O>
    where
        Self: Sized,
    {
        Or(self, other)
    }

    /// Creates an extractor that converts the value by a function; `None` makes the value missing.
    ///
    /// ```
    /// use http::Request;
    /// use slidegate_tower::extract::{Extract, host};
    ///
    /// let tenant = host().map(|host| Some(host.split_once('.')?.0.to_owned()));
    /// let request = Request::get("/").header("host", "Acme.shop.example").body(()).unwrap();
    /// assert_eq!(tenant.extract((&request).into()).as_deref(), Some("acme"));
    /// ```
    fn map<F>(self, convert: F) -> Map<Self, F>
    where
        Self: Sized,
        F: Fn(&str) -> Option<String> + Send + Sync + 'static,
    {
        Map(self, convert)
    }
}

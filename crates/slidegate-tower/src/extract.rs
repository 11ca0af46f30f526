//! Extractors, which read values from requests, for use as attributes of a policy and as keys of a limiter.
//!
//! Each function in this module creates an extractor of one value. [`Extract::or`] and [`Extract::map`] combine
//! extractors, [`from_fn`] creates an extractor from a function, and [`Attributes`] assigns extractors to the attribute
//! names of a policy.
//!
//! A missing value is never an error. An empty header or parameter counts as missing, because otherwise all clients
//! that send it empty would have the same counter. A value that is not UTF-8 is displayed with `U+FFFD` in place of
//! each invalid sequence, and is counted by a digest of its bytes. Values of more than
//! [`MAX_VALUE_BYTES`](slidegate::store::MAX_VALUE_BYTES) are also counted by a digest. Therefore no value evades a limit or
//! makes a key longer than that maximum. The HTTP server must bound the size of the request head.

mod attributes;
mod client_address;
mod client_ip;
mod combine;
mod extension;
mod from_fn;
mod header;
mod normalize_path;
mod peer;
mod query;
mod text;

pub use self::attributes::Attributes;
pub(crate) use self::attributes::{AttributeRef, AttributeValues};
pub use self::client_address::client_address;
pub use self::client_ip::{ClientIp, client_ip};
pub use self::combine::{Map, Or};
pub use self::extension::{extension, extension_value};
#[cfg(feature = "axum")]
pub use self::from_fn::matched_route;
pub use self::from_fn::{FromFn, from_fn, method, path, value};
pub use self::header::{api_key, header, host, unique_header};
pub use self::normalize_path::{has_ambiguous_dot_segments, normalize_path};
pub use self::peer::Peer;
pub use self::query::query;
pub use self::text::ExtractedText;

use http::{Extensions, HeaderMap, Method, Request, Uri, request};

/// The head of a request: everything except the body.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'r> {
    /// The method of the request.
    pub method: &'r Method,
    /// The target of the request.
    pub uri: &'r Uri,
    /// The headers of the request.
    pub headers: &'r HeaderMap,
    /// Values that layers and servers have added to the request.
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

/// An extractor, which reads one value from a request.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not read a value from a request",
    note = "use an extractor such as `extract::api_key()`; `extract::from_fn(|head| …)` makes one of a function"
)]
pub trait Extract: Send + Sync + 'static {
    /// Returns the extracted value; `None` if the request does not have this value.
    fn extract<'r>(&self, head: RequestHead<'r>) -> Option<ExtractedText<'r>>;

    /// Returns the extracted value as an attribute of a policy. This value differs from [`extract`](Self::extract) only
    /// for IPv6 addresses, because a policy needs the complete address: each of its rules shortens the address to a
    /// network itself.
    fn attribute<'r>(&self, head: RequestHead<'r>) -> Option<ExtractedText<'r>> {
        self.extract(head)
    }

    /// Returns the name of an extension without which a value is missing, and which the server should have added to the
    /// request: a missing value is then an error of the server, and not of the client. The layer logs it once. `None` by
    /// default.
    fn missing_extension(&self, extensions: &Extensions) -> Option<&'static str> {
        let _ = extensions;
        None
    }

    /// Creates an extractor that returns the value of this extractor or, if that value is missing, the value of
    /// `other`.
    ///
    /// A limiter does not distinguish between the two extractors: an API key `192.0.2.7` has the same counter as the
    /// address 192.0.2.7. A policy can separate them with `per: [api_key|ip]`.
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

    /// Creates an extractor that converts the value with a function. If the function returns `None`, the value counts
    /// as missing.
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

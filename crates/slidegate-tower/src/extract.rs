//! What a request says of itself: values that rules count by.
//!
//! Each function here makes an extractor of one value. [`Extract::or`] and [`Extract::map`] put them together,
//! [`from_fn`] makes one of a function, and [`Attributes`] gives them the names that a policy knows them by.
//!
//! A request may lack a value, and that is never an error. A header or a parameter that is empty is lacking, too:
//! otherwise all who send nothing in it would share one count. Bytes that are not UTF-8 are shown as `U+FFFD` and
//! counted by a digest of the bytes, as are values of more than [`MAX_VALUE_BYTES`](slidegate::MAX_VALUE_BYTES): no
//! value gets around a limit or makes a key longer than that. The server bounds the head of a request.

mod attributes;
mod client_address;
mod client_ip;
mod combine;
mod from_fn;
mod header;
mod normal_path;
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
pub use self::normal_path::normal_path;
pub use self::peer::Peer;
pub use self::query::query;
pub use self::text::ExtractedText;

use http::{Extensions, HeaderMap, Method, Request, Uri, request};

/// The head of a request: all but its body.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'r> {
    /// The method.
    pub method: &'r Method,
    /// Where it goes.
    pub uri: &'r Uri,
    /// The headers.
    pub headers: &'r HeaderMap,
    /// What layers and servers have added to it.
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

/// Reads one value of a request.
pub trait Extract: Send + Sync + 'static {
    /// The value; none if the request has none.
    fn extract<'r>(&self, head: RequestHead<'r>) -> Option<ExtractedText<'r>>;

    /// The value as a policy wants it, which has means of its own to put addresses together. All others
    /// are what [`extract`](Self::extract) says.
    fn attribute<'r>(&self, head: RequestHead<'r>) -> Option<ExtractedText<'r>> {
        self.extract(head)
    }

    /// This value; where there is none, the other.
    ///
    /// The two share counts: a key `192.0.2.7` is counted with the address 192.0.2.7. A policy keeps them apart,
    /// by `per: [api_key|ip]`.
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

    /// What the function makes of the value; none if it makes nothing of it.
    ///
    /// ```
    /// use http::Request;
    /// use slidegate_tower::extract::{Extract, host};
    ///
    /// let tenant = host().map(|host| Some(host.split_once('.')?.0.to_owned()));
    /// let request = Request::get("/").header("host", "Acme.shop.example").body(()).unwrap();
    /// assert_eq!(tenant.extract((&request).into()).as_deref(), Some("acme"));
    /// ```
    fn map<F>(self, change: F) -> Map<Self, F>
    where
        Self: Sized,
        F: Fn(&str) -> Option<String> + Send + Sync + 'static,
    {
        Map(self, change)
    }
}

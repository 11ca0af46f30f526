//! Extractors that are functions of the request head: method, path, matched route, extensions and constants.

use std::borrow::Cow;
use std::fmt;

use super::{Extract, ExtractedText, RequestHead, normalize_path};

/// Creates an extractor from a function of the request head.
///
/// ```
/// use http::{Request, Version};
/// use slidegate_tower::extract::{Extract, from_fn};
///
/// let scheme = from_fn(|head| head.uri.scheme_str().map(Into::into));
/// let request = Request::get("https://shop.example/").body(()).unwrap();
/// assert_eq!(scheme.extract((&request).into()).as_deref(), Some("https"));
/// ```
pub fn from_fn<F>(read: F) -> FromFn<F>
where
    F: for<'r> Fn(RequestHead<'r>) -> Option<Cow<'r, str>> + Send + Sync + 'static,
{
    FromFn(read)
}

/// An extractor that calls a function of the request head, created by [`from_fn`].
#[derive(Clone, Copy)]
pub struct FromFn<F>(F);

impl<F> Extract for FromFn<F>
where
    F: for<'r> Fn(RequestHead<'r>) -> Option<Cow<'r, str>> + Send + Sync + 'static,
{
    fn extract<'r>(&self, head: RequestHead<'r>) -> Option<ExtractedText<'r>> {
        self.0(head).map(ExtractedText::from)
    }
}

impl<F> fmt::Debug for FromFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FromFn").finish_non_exhaustive()
    }
}

/// An extractor like [`FromFn`] that also preserves bytes that are not UTF-8.
#[derive(Clone, Copy)]
pub(super) struct TextExtractorFromFn<F>(F);

/// Creates an extractor from a function that returns [`ExtractedText`].
pub(super) fn text_extractor_from_fn<F>(read: F) -> TextExtractorFromFn<F>
where
    F: for<'r> Fn(RequestHead<'r>) -> Option<ExtractedText<'r>> + Send + Sync + 'static,
{
    TextExtractorFromFn(read)
}

impl<F> Extract for TextExtractorFromFn<F>
where
    F: for<'r> Fn(RequestHead<'r>) -> Option<ExtractedText<'r>> + Send + Sync + 'static,
{
    fn extract<'r>(&self, head: RequestHead<'r>) -> Option<ExtractedText<'r>> {
        self.0(head)
    }
}

impl<F> fmt::Debug for TextExtractorFromFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReadBy").finish_non_exhaustive()
    }
}

/// Creates an extractor of a constant value.
///
/// ```
/// use http::Request;
/// use slidegate_tower::extract::{Extract, api_key, value};
///
/// let client = api_key().or(value("anonymous"));
/// let request = Request::get("/").body(()).unwrap();
/// assert_eq!(client.extract((&request).into()).as_deref(), Some("anonymous"));
/// ```
pub fn value(text: &'static str) -> impl Extract + Copy + fmt::Debug {
    from_fn(move |_| Some(Cow::Borrowed(text)))
}

/// Creates an extractor of the request method, such as `GET`.
///
/// HTTP lets clients invent methods, so use the method as a key only in rules that match specific methods.
///
/// ```
/// use http::Request;
/// use slidegate_tower::extract::{Extract, method};
///
/// let request = Request::post("/login").body(()).unwrap();
/// assert_eq!(method().extract((&request).into()).as_deref(), Some("POST"));
/// ```
pub fn method() -> impl Extract + Copy + fmt::Debug {
    from_fn(|head| Some(head.method.as_str().into()))
}

/// Creates an extractor of the request path, for the `routes` of a policy.
///
/// The path has no query and is [normalized](normalize_path), so that `/%6Cogin` becomes `/login`. Count by the `route`
/// that the policy derives from the path, never by the path itself, because clients can invent any number of paths.
/// `CONNECT` requests have no value.
///
/// ```
/// use http::Request;
/// use slidegate_tower::extract::{Extract, path};
///
/// let request = Request::get("/a/../%6Cogin?next=/").body(()).unwrap();
/// assert_eq!(path().extract((&request).into()).as_deref(), Some("/login"));
/// ```
pub fn path() -> impl Extract + Copy + fmt::Debug {
    from_fn(|head| Some(normalize_path(head.uri.path())).filter(|path| !path.is_empty()))
}

/// Creates an extractor of the route that axum's router has matched, such as `/users/{id}`.
///
/// Requests without a route have no value. The layer must be added by `Router::layer` or `route_layer`: a layer around
/// the router runs before a route is matched.
///
/// ```
/// use slidegate_tower::{Attributes, extract};
///
/// let attributes = Attributes::new().with("route", extract::matched_route());
/// ```
#[cfg(feature = "axum")]
pub fn matched_route() -> impl Extract + fmt::Debug {
    super::extension(|route: &axum::extract::MatchedPath| Some(route.as_str()))
}

#[cfg(test)]
mod tests {
    use http::{Method, Request};

    use super::*;

    fn new_get_request(uri: &str) -> Request<()> {
        Request::get(uri).body(()).unwrap()
    }

    #[test]
    fn method_is_extracted_unchanged() {
        let purge = Request::builder().method("PURGE").uri("/").body(()).unwrap();
        for (request, expected) in [(new_get_request("/"), Method::GET.as_str()), (purge, "PURGE")]
        {
            assert_eq!(method().extract((&request).into()).unwrap(), expected);
        }
    }

    #[test]
    fn path_is_normalized_without_needless_copy() {
        for (uri, expected) in [
            ("/login", "/login"),
            ("/%6Cogin?a=/b", "/login"),
            ("/a/%2e%2E/login", "/login"),
            ("http://shop.example/./login", "/login"),
            ("http://shop.example", "/"),
            ("*", "*"),
            ("/http://shop.example/a", "/http://shop.example/a"),
        ] {
            assert_eq!(path().extract((&new_get_request(uri)).into()).unwrap(), expected, "{uri}");
        }
        assert!(matches!(
            normalize_path(new_get_request("/users/7?full").uri().path()),
            Cow::Borrowed("/users/7")
        ));
    }

    #[test]
    fn connect_request_has_no_path() {
        let connect = Request::connect("shop.example:443").body(()).unwrap();
        assert_eq!(path().extract((&connect).into()).as_deref(), None);
    }

    #[test]
    fn value_extractor_returns_constant() {
        assert_eq!(value("all").extract((&new_get_request("/")).into()).unwrap(), "all");
    }
}

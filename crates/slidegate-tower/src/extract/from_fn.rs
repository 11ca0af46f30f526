//! What needs no more than a look: the method, where it goes, and what others know of the request.

use std::borrow::Cow;
use std::fmt;

use super::{Extract, RequestHead, ExtractedText, normal_path};

/// The value that a function finds in the head of a request.
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

/// An extractor that is a function: [`from_fn`].
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

/// An extractor that is a function which keeps bytes that are not UTF-8.
#[derive(Clone, Copy)]
pub(super) struct TextFromFn<F>(F);

/// Returns an extractor that is this function.
pub(super) fn text_from_fn<F>(read: F) -> TextFromFn<F>
where
    F: for<'r> Fn(RequestHead<'r>) -> Option<ExtractedText<'r>> + Send + Sync + 'static,
{
    TextFromFn(read)
}

impl<F> Extract for TextFromFn<F>
where
    F: for<'r> Fn(RequestHead<'r>) -> Option<ExtractedText<'r>> + Send + Sync + 'static,
{
    fn extract<'r>(&self, head: RequestHead<'r>) -> Option<ExtractedText<'r>> {
        self.0(head)
    }
}

impl<F> fmt::Debug for TextFromFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReadBy").finish_non_exhaustive()
    }
}

/// The same for every request.
///
/// ```
/// use http::Request;
/// use slidegate_tower::extract::{Extract, api_key, value};
///
/// let who = api_key().or(value("anonymous"));
/// let request = Request::get("/").body(()).unwrap();
/// assert_eq!(who.extract((&request).into()).as_deref(), Some("anonymous"));
/// ```
pub fn value(text: &'static str) -> impl Extract + Copy + fmt::Debug {
    from_fn(move |_| Some(Cow::Borrowed(text)))
}

/// The method: `GET`. HTTP lets clients make up their own: count by it only where a rule names those that it is for.
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

/// The path as a policy's `routes` want it: without the query, and [written in one way only](normal_path), so that
/// `/%6Cogin` is `/login`. Count by the `route` that the policy makes of it, never by the path itself: clients
/// make up as many as they like. `CONNECT` has none.
///
/// ```
/// use http::Request;
/// use slidegate_tower::extract::{Extract, path};
///
/// let request = Request::get("/a/../%6Cogin?next=/").body(()).unwrap();
/// assert_eq!(path().extract((&request).into()).as_deref(), Some("/login"));
/// ```
pub fn path() -> impl Extract + Copy + fmt::Debug {
    from_fn(|head| Some(normal_path(head.uri.path())).filter(|path| !path.is_empty()))
}

/// The route as axum's router knows it: `/users/{id}`. There is none for what has no route, and outside of the
/// router: this is for layers that are put on by `Router::layer` or `route_layer`, not around the router.
///
/// ```
/// use slidegate_tower::{Attributes, extract};
///
/// let attributes = Attributes::new().with("route", extract::matched_route());
/// ```
#[cfg(feature = "axum")]
pub fn matched_route() -> impl Extract + Copy + fmt::Debug {
    from_fn(|head| Some(head.extensions.get::<axum::extract::MatchedPath>()?.as_str().into()))
}

/// What an earlier layer knows of the request, and has put into its extensions: such as the user, once he has shown
/// who he is.
///
/// ```
/// use http::Request;
/// use slidegate_tower::extract::{Extract, extension};
///
/// #[derive(Clone)]
/// struct User {
///     plan: String,
/// }
///
/// let plan = extension(|user: &User| Some(&user.plan));
/// let request = Request::get("/").extension(User { plan: "free".into() }).body(()).unwrap();
/// assert_eq!(plan.extract((&request).into()).as_deref(), Some("free"));
/// ```
pub fn extension<T, F>(read: F) -> impl Extract + fmt::Debug
where
    T: Send + Sync + 'static,
    F: for<'t> Fn(&'t T) -> Option<&'t str> + Send + Sync + 'static,
{
    from_fn(move |head| read(head.extensions.get()?).map(Cow::Borrowed))
}

#[cfg(test)]
mod tests {
    use http::{Method, Request};

    use super::*;

    fn get(uri: &str) -> Request<()> {
        Request::get(uri).body(()).unwrap()
    }

    #[test]
    fn a_method_is_told_as_it_is() {
        let purge = Request::builder().method("PURGE").uri("/").body(()).unwrap();
        for (request, expected) in [(get("/"), Method::GET.as_str()), (purge, "PURGE")] {
            assert_eq!(method().extract((&request).into()).unwrap(), expected);
        }
    }

    #[test]
    fn a_path_is_told_in_one_way_only_and_without_copying_if_it_stands_so() {
        for (uri, expected) in [
            ("/login", "/login"),
            ("/%6Cogin?a=/b", "/login"),
            ("/a/%2e%2E/login", "/login"),
            ("http://shop.example/./login", "/login"),
            ("http://shop.example", "/"),
            ("*", "*"),
            ("/http://shop.example/a", "/http://shop.example/a"),
        ] {
            assert_eq!(path().extract((&get(uri)).into()).unwrap(), expected, "{uri}");
        }
        assert!(matches!(
            normal_path(get("/users/7?full").uri().path()),
            Cow::Borrowed("/users/7")
        ));
    }

    #[test]
    fn connect_has_no_path() {
        let connect = Request::connect("shop.example:443").body(()).unwrap();
        assert_eq!(path().extract((&connect).into()).as_deref(), None);
    }

    #[test]
    fn an_extension_is_asked_if_it_is_there() {
        #[derive(Clone)]
        struct User(Option<&'static str>);

        let plan = extension(|user: &User| user.0);
        let of = |request: http::request::Builder| {
            let request = request.body(()).unwrap();
            plan.extract((&request).into()).map(ExtractedText::into_owned)
        };
        assert_eq!(of(Request::get("/").extension(User(Some("free")))).as_deref(), Some("free"));
        assert_eq!(of(Request::get("/").extension(User(None))), None);
        assert_eq!(of(Request::get("/")), None);
    }

    #[test]
    fn a_value_is_the_same_for_all() {
        assert_eq!(value("all").extract((&get("/")).into()).unwrap(), "all");
    }
}

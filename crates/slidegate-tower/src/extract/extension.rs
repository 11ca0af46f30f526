//! An extractor of a value in the extensions of a request.

use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};

use http::Extensions;

use super::{Extract, ExtractedText, RequestHead};

/// Creates an extractor of a text that an earlier layer has added to the request extensions, such as the authenticated
/// user. For another type, use [`extension_value`].
///
/// If a limit needs the value, and no request has had an extension of this type so far, the rate limit layer logs a warning
/// once: the layer that adds it is probably missing, or runs later.
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
    Extension {
        read: ReadTextFn(read),
        has_been_present: AtomicBool::new(false),
        extension: PhantomData,
    }
}

/// Creates an extractor of a value that an earlier layer has added to the request extensions: a number, an IP address or a
/// `String`. Otherwise the same as [`extension`].
///
/// ```
/// use http::Request;
/// use slidegate_tower::extract::{Extract, extension_value};
///
/// #[derive(Clone)]
/// struct User {
///     id: u64,
/// }
///
/// let id = extension_value(|user: &User| Some(user.id));
/// let request = Request::get("/").extension(User { id: 17 }).body(()).unwrap();
/// assert_eq!(id.extract((&request).into()).as_deref(), Some("17"));
/// ```
pub fn extension_value<T, V, F>(read: F) -> impl Extract + fmt::Debug
where
    T: Send + Sync + 'static,
    V: Into<ExtractedText<'static>> + 'static,
    F: Fn(&T) -> Option<V> + Send + Sync + 'static,
{
    let read = move |extension: &T| read(extension).map(Into::into);
    Extension {
        read: ReadValueFn(read),
        has_been_present: AtomicBool::new(false),
        extension: PhantomData,
    }
}

/// An extractor that calls a function of an extension.
struct Extension<T, F> {
    read: F,
    /// Whether a request has had the extension. Then the server adds it, and other requests may lack it for a good reason,
    /// such as clients that have not logged in.
    has_been_present: AtomicBool,
    extension: PhantomData<fn(&T)>,
}

/// A function that reads a value of an extension.
trait ReadExtension<T>: Send + Sync + 'static {
    fn read<'t>(&self, extension: &'t T) -> Option<ExtractedText<'t>>;
}

/// A function that returns a text that the extension owns.
struct ReadTextFn<F>(F);

/// A function that returns a new value.
struct ReadValueFn<F>(F);

impl<T, F> ReadExtension<T> for ReadTextFn<F>
where
    F: for<'t> Fn(&'t T) -> Option<&'t str> + Send + Sync + 'static,
{
    fn read<'t>(&self, extension: &'t T) -> Option<ExtractedText<'t>> {
        (self.0)(extension).map(ExtractedText::from)
    }
}

impl<T, F> ReadExtension<T> for ReadValueFn<F>
where
    F: Fn(&T) -> Option<ExtractedText<'static>> + Send + Sync + 'static,
{
    fn read<'t>(&self, extension: &'t T) -> Option<ExtractedText<'t>> {
        (self.0)(extension)
    }
}

impl<T: Send + Sync + 'static, F: ReadExtension<T>> Extract for Extension<T, F> {
    fn extract<'r>(&self, head: RequestHead<'r>) -> Option<ExtractedText<'r>> {
        let extension = head.extensions.get()?;
        if !self.has_been_present.load(Ordering::Relaxed) {
            self.has_been_present.store(true, Ordering::Relaxed);
        }
        self.read.read(extension)
    }

    fn missing_extension(&self, extensions: &Extensions) -> Option<&'static str> {
        let is_missing = extensions.get::<T>().is_none();
        let is_unknown = is_missing && !self.has_been_present.load(Ordering::Relaxed);
        is_unknown.then(type_name::<T>)
    }
}

impl<T, F> fmt::Debug for Extension<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Extension").field(&type_name::<T>()).finish()
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    #[derive(Clone)]
    struct User(Option<&'static str>);

    #[test]
    fn request_extension_is_extracted_if_present() {
        let plan = extension(|user: &User| user.0);
        let read = |request: http::request::Builder| {
            let request = request.body(()).unwrap();
            plan.extract((&request).into()).map(ExtractedText::into_owned)
        };
        assert_eq!(read(Request::get("/").extension(User(Some("free")))).as_deref(), Some("free"));
        assert_eq!(read(Request::get("/").extension(User(None))), None);
        assert_eq!(read(Request::get("/")), None);
    }

    #[test]
    fn extension_is_missing_until_request_has_it() {
        let plan = extension(|user: &User| user.0);
        let mut extensions = Extensions::new();
        assert!(plan.missing_extension(&extensions).is_some_and(|name| name.ends_with("::User")));
        let request = Request::get("/").extension(User(None)).body(()).unwrap();
        assert_eq!(plan.extract((&request).into()), None);
        assert_eq!(plan.missing_extension(&extensions), None);
        extensions.insert(User(None));
        assert_eq!(plan.missing_extension(&extensions), None);
    }
}

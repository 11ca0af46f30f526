//! Parameters of the query.

use std::fmt;

use super::{Extract, from_fn};

/// The first parameter of this name in the query, decoded as forms are: `+` is a space. An empty one is none.
///
/// ```
/// use http::Request;
/// use slidegate_tower::extract::{Extract, query};
///
/// let request = Request::get("/search?key=a%20b&key=c").body(()).unwrap();
/// assert_eq!(query("key").extract((&request).into()).as_deref(), Some("a b"));
/// ```
pub fn query(name: impl Into<Box<str>>) -> impl Extract + Clone + fmt::Debug {
    let name = name.into();
    from_fn(move |head| {
        let mut pairs = form_urlencoded::parse(head.uri.query()?.as_bytes());
        pairs
            .find(|(own, _)| **own == *name)
            .map(|(_, value)| value)
            .filter(|value| !value.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn key_of(uri: &str) -> Option<String> {
        let request = Request::get(uri).body(()).unwrap();
        query("key").extract((&request).into()).map(|value| value.into_owned())
    }

    #[test]
    fn the_first_of_its_name_counts_decoded() {
        for (uri, expected) in [
            ("/?key=k1", "k1"),
            ("/?a=b&key=k1&key=k2", "k1"),
            ("/?k%65y=k%31", "k1"),
            ("/?key=a+b%26c", "a b&c"),
            ("/?key=a=b", "a=b"),
            ("/?key=%ff", "\u{fffd}"),
            ("/?key=100%", "100%"),
        ] {
            assert_eq!(key_of(uri).as_deref(), Some(expected), "{uri}");
        }
    }

    #[test]
    fn without_a_value_there_is_none() {
        for uri in
            ["/", "/?", "/?key", "/?key=", "/?Key=k1", "/?keys=k1", "/?key=&key=k2", "/key=k1"]
        {
            assert_eq!(key_of(uri), None, "{uri}");
        }
    }
}

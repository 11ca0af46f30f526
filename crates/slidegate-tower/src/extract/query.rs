//! Parameters of the query.

use std::borrow::Cow;
use std::fmt;

use percent_encoding::percent_decode_str;

use super::from_fn::text_from_fn;
use super::{Extract, ExtractedText};

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
    text_from_fn(move |head| {
        let pairs =
            head.uri.query()?.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let value = pairs
            .filter(|(own, _)| *decode(own) == *name.as_bytes())
            .map(|(_, value)| value)
            .next();
        value.filter(|value| !value.is_empty()).map(|value| ExtractedText::from_bytes(decode(value)))
    })
}

/// Returns the bytes of a part of a query.
fn decode(part: &str) -> Cow<'_, [u8]> {
    match part.contains('+') {
        true => percent_decode_str(&part.replace('+', " ")).collect::<Vec<u8>>().into(),
        false => percent_decode_str(part).into(),
    }
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

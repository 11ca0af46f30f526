//! An extractor of query parameters.

use std::borrow::Cow;
use std::fmt;

use percent_encoding::percent_decode_str;

use super::from_fn::text_extractor_from_fn;
use super::{Extract, ExtractedText};

/// Creates an extractor of the first query parameter with this name.
///
/// The parameter is decoded like form data: `+` becomes a space. An empty value counts as missing.
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
    text_extractor_from_fn(move |head| {
        let pairs =
            head.uri.query()?.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let value = pairs
            .filter(|(key, _)| *decode_form_text(key) == *name.as_bytes())
            .map(|(_, value)| value)
            .next();
        value
            .filter(|value| !value.is_empty())
            .map(|value| ExtractedText::from_bytes(decode_form_text(value)))
    })
}

/// Decodes the name or the value of a query parameter to bytes.
fn decode_form_text(part: &str) -> Cow<'_, [u8]> {
    if part.contains('+') {
        percent_decode_str(&part.replace('+', " ")).collect::<Vec<u8>>().into()
    } else {
        percent_decode_str(part).into()
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn extract_key_parameter(uri: &str) -> Option<String> {
        let request = Request::get(uri).body(()).unwrap();
        query("key").extract((&request).into()).map(|value| value.into_owned())
    }

    #[test]
    fn first_query_parameter_is_decoded() {
        for (uri, expected) in [
            ("/?key=k1", "k1"),
            ("/?a=b&key=k1&key=k2", "k1"),
            ("/?k%65y=k%31", "k1"),
            ("/?key=a+b%26c", "a b&c"),
            ("/?key=a=b", "a=b"),
            ("/?key=%ff", "\u{fffd}"),
            ("/?key=100%", "100%"),
        ] {
            assert_eq!(extract_key_parameter(uri).as_deref(), Some(expected), "{uri}");
        }
    }

    #[test]
    fn empty_query_parameter_counts_as_missing() {
        for uri in
            ["/", "/?", "/?key", "/?key=", "/?Key=k1", "/?keys=k1", "/?key=&key=k2", "/key=k1"]
        {
            assert_eq!(extract_key_parameter(uri), None, "{uri}");
        }
    }
}

//! Extractors that are built from other extractors.

use http::Extensions;

use super::{Extract, ExtractedText, RequestHead};

/// An extractor with a second extractor as fallback, created by [`Extract::or`].
#[derive(Clone, Copy, Debug)]
pub struct Or<A, B>(pub(super) A, pub(super) B);

impl<A: Extract, B: Extract> Extract for Or<A, B> {
    fn extract<'r>(&self, head: RequestHead<'r>) -> Option<ExtractedText<'r>> {
        self.0.extract(head).or_else(|| self.1.extract(head))
    }

    fn attribute<'r>(&self, head: RequestHead<'r>) -> Option<ExtractedText<'r>> {
        self.0.attribute(head).or_else(|| self.1.attribute(head))
    }

    fn missing_extension(&self, extensions: &Extensions) -> Option<&'static str> {
        self.0.missing_extension(extensions).or_else(|| self.1.missing_extension(extensions))
    }
}

/// An extractor that converts the value of another extractor, created by [`Extract::map`].
#[derive(Clone, Copy, Debug)]
pub struct Map<E, F>(pub(super) E, pub(super) F);

impl<E, F> Extract for Map<E, F>
where
    E: Extract,
    F: Fn(&str) -> Option<String> + Send + Sync + 'static,
{
    fn extract<'r>(&self, head: RequestHead<'r>) -> Option<ExtractedText<'r>> {
        self.0.extract(head).and_then(|text| self.1(&text)).map(ExtractedText::from)
    }

    fn attribute<'r>(&self, head: RequestHead<'r>) -> Option<ExtractedText<'r>> {
        self.0.attribute(head).and_then(|text| self.1(&text)).map(ExtractedText::from)
    }

    fn missing_extension(&self, extensions: &Extensions) -> Option<&'static str> {
        self.0.missing_extension(extensions)
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::super::{api_key, client_ip, header, value};
    use super::*;
    use crate::{Peer, TrustedProxies};

    fn request_with_headers(headers: &[(&str, &str)]) -> Request<()> {
        let peer = Peer("[2001:db8::1]:4711".parse().unwrap());
        let request = Request::get("/").extension(peer);
        let request =
            headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        request.body(()).unwrap()
    }

    #[test]
    fn or_extractor_uses_first_present_value() {
        let value = header("a").or(header("b")).or(value("c"));
        let read = |headers: &[_]| {
            value.extract((&request_with_headers(headers)).into()).unwrap().into_owned()
        };
        assert_eq!(read(&[("a", "1"), ("b", "2")]), "1");
        assert_eq!(read(&[("b", "2")]), "2");
        assert_eq!(read(&[("a", ""), ("b", "2")]), "2");
        assert_eq!(read(&[]), "c");
        assert_eq!(header("a").or(header("b")).extract((&request_with_headers(&[])).into()), None);
    }

    #[test]
    fn map_extractor_converts_or_drops_value() {
        let digits =
            header("a").map(|text| text.parse::<u32>().ok().map(|number| number.to_string()));
        let read = |headers: &[_]| {
            digits.extract((&request_with_headers(headers)).into()).map(ExtractedText::into_owned)
        };
        assert_eq!(read(&[("a", "007")]).as_deref(), Some("7"));
        assert_eq!(read(&[("a", "seven")]), None);
        assert_eq!(read(&[]), None);
    }

    #[test]
    fn combined_extractor_names_missing_extension() {
        let peer = client_ip(TrustedProxies::none()).missing_extension(&Extensions::new());
        assert!(peer.is_some());
        let client = api_key().or(client_ip(TrustedProxies::none())).map(|ip| Some(ip.to_owned()));
        assert_eq!(client.missing_extension(&Extensions::new()), peer);
        assert_eq!(client.missing_extension(request_with_headers(&[]).extensions()), None);
        assert_eq!(api_key().or(value("a")).missing_extension(&Extensions::new()), None);
    }

    #[test]
    fn combined_extractor_keeps_full_ipv6_attribute() {
        let client =
            api_key().or(client_ip(TrustedProxies::none())).map(|text| Some(format!("by {text}")));
        let request = request_with_headers(&[]);
        assert_eq!(client.extract((&request).into()).unwrap(), "by 2001:db8::/64");
        assert_eq!(client.attribute((&request).into()).unwrap(), "by 2001:db8::1");
    }
}

//! Extractors of extractors.

use super::{Extract, RequestHead, ExtractedText};

/// The first of two values that there is: [`Extract::or`].
#[derive(Clone, Copy, Debug)]
pub struct Or<A, B>(pub(super) A, pub(super) B);

impl<A: Extract, B: Extract> Extract for Or<A, B> {
    fn extract<'r>(&self, head: RequestHead<'r>) -> Option<ExtractedText<'r>> {
        self.0.extract(head).or_else(|| self.1.extract(head))
    }

    fn attribute<'r>(&self, head: RequestHead<'r>) -> Option<ExtractedText<'r>> {
        self.0.attribute(head).or_else(|| self.1.attribute(head))
    }
}

/// What a function makes of a value: [`Extract::map`].
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
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::super::{api_key, client_ip, header, value};
    use super::*;
    use crate::{Peer, TrustedProxies};

    fn request(headers: &[(&str, &str)]) -> Request<()> {
        let peer = Peer("[2001:db8::1]:4711".parse().unwrap());
        let request = Request::get("/").extension(peer);
        let request =
            headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        request.body(()).unwrap()
    }

    #[test]
    fn the_first_that_is_present_counts() {
        let who = header("a").or(header("b")).or(value("c"));
        let of = |headers: &[_]| who.extract((&request(headers)).into()).unwrap().into_owned();
        assert_eq!(of(&[("a", "1"), ("b", "2")]), "1");
        assert_eq!(of(&[("b", "2")]), "2");
        assert_eq!(of(&[("a", ""), ("b", "2")]), "2");
        assert_eq!(of(&[]), "c");
        assert_eq!(header("a").or(header("b")).extract((&request(&[])).into()), None);
    }

    #[test]
    fn a_function_sees_what_is_present_and_may_drop_it() {
        let digits =
            header("a").map(|text| text.parse::<u32>().ok().map(|number| number.to_string()));
        let of = |headers: &[_]| digits.extract((&request(headers)).into()).map(ExtractedText::into_owned);
        assert_eq!(of(&[("a", "007")]).as_deref(), Some("7"));
        assert_eq!(of(&[("a", "seven")]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn an_address_within_is_still_whole_for_a_policy() {
        let who =
            api_key().or(client_ip(TrustedProxies::none())).map(|text| Some(format!("by {text}")));
        let request = request(&[]);
        assert_eq!(who.extract((&request).into()).unwrap(), "by 2001:db8::/64");
        assert_eq!(who.attribute((&request).into()).unwrap(), "by 2001:db8::1");
    }
}

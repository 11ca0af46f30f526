//! Values under the names that a policy knows them by.

use std::fmt;

use slidegate::Descriptor;
use smallvec::SmallVec;

use super::{Extract, RequestHead, ExtractedText};
use crate::request_options::RequestCosts;

/// What a policy is told of each request: names, and what reads their values.
///
/// A request that lacks a value lacks the attribute; what the rules make of that they say in `when_missing`. Of two
/// with one name the first that is present counts.
///
/// ```
/// use slidegate_tower::{Attributes, TrustedProxies, extract};
///
/// let attributes = Attributes::new()
///     .with("method", extract::method())
///     .with("path", extract::path())
///     .with("ip", extract::client_ip(TrustedProxies::none()));
/// ```
#[derive(Default)]
pub struct Attributes(Vec<(Box<str>, Box<dyn Extract>)>);

impl Attributes {
    /// None: a policy without `per` and `when` needs none.
    pub fn new() -> Self {
        Self::default()
    }

    /// These and one more.
    pub fn with(mut self, name: impl Into<Box<str>>, value: impl Extract) -> Self {
        self.0.push((name.into(), Box::new(value)));
        self
    }

    /// What this request says.
    pub(crate) fn read<'r>(&'r self, head: RequestHead<'r>) -> AttributeValues<'r> {
        let values = self.0.iter().map(|(name, value)| (&**name, value.attribute(head)));
        AttributeValues(values.filter_map(|(name, value)| Some((name, value?))).collect())
    }
}

/// The names alone: extractors are functions.
impl fmt::Debug for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Attributes")?;
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

/// Name, text and the bytes of a value that is not UTF-8.
pub(crate) type AttributeRef<'r> = (&'r str, &'r str, Option<&'r [u8]>);

/// What one request says: up to six attributes without allocating, as in a [`Descriptor`].
pub(crate) struct AttributeValues<'r>(SmallVec<[(&'r str, ExtractedText<'r>); 6]>);

impl AttributeValues<'_> {
    /// Returns each attribute.
    pub(crate) fn iter(&self) -> impl Iterator<Item = AttributeRef<'_>> {
        self.0.iter().map(|(name, value)| (*name, &**value, value.bytes()))
    }

    /// The same as the gate takes it.
    pub(crate) fn descriptor<'d>(&'d self, costs: &RequestCosts<'d>) -> Descriptor<'d> {
        let descriptor = Descriptor::new(self.0.iter().map(|(name, value)| (*name, &**value)));
        let bytes = self.0.iter().filter_map(|(name, value)| Some((*name, value.bytes()?)));
        let descriptor = bytes
            .fold(descriptor.cost(costs.plain), |all, (name, bytes)| all.with_bytes(name, bytes));
        costs.named.iter().fold(descriptor, |all, (name, units)| all.with_cost(name, *units))
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::super::{client_ip, header, method, value};
    use super::*;
    use crate::{Peer, TrustedProxies};

    fn read(attributes: &Attributes, request: &Request<()>) -> Vec<(String, String)> {
        let read = attributes.read(request.into());
        let costs = RequestCosts::default();
        let descriptor = read.descriptor(&costs);
        descriptor.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn what_is_present_is_told_by_its_name_in_order() {
        let attributes = Attributes::new()
            .with("method", method())
            .with("a", header("a"))
            .with("b", header("b"));
        let request = Request::get("/").header("b", "2").body(()).unwrap();
        assert_eq!(read(&attributes, &request), pairs(&[("method", "GET"), ("b", "2")]));
    }

    #[test]
    fn of_two_with_one_name_the_first_that_is_present_counts() {
        let attributes = Attributes::new().with("who", header("a")).with("who", value("anybody"));
        let who = |request: &Request<()>| {
            let read = attributes.read(request.into());
            read.descriptor(&RequestCosts::default()).get("who").map(str::to_owned)
        };
        let known = Request::get("/").header("a", "ann").body(()).unwrap();
        assert_eq!(who(&known).as_deref(), Some("ann"));
        assert_eq!(who(&Request::new(())).as_deref(), Some("anybody"));
    }

    #[test]
    fn an_address_is_told_whole() {
        let attributes = Attributes::new().with("ip", client_ip(TrustedProxies::none()));
        let peer = Peer("[2001:db8::1]:4711".parse().unwrap());
        let request = Request::get("/").extension(peer).body(()).unwrap();
        assert_eq!(read(&attributes, &request), pairs(&[("ip", "2001:db8::1")]));
    }

    #[test]
    fn six_are_read_without_allocating_and_more_are_read_too() {
        let many = |count: usize| {
            (0..count).fold(Attributes::new(), |all, nth| all.with(nth.to_string(), value("x")))
        };
        let request = Request::new(());
        let (six, seven) = (many(6), many(7));
        assert!(!six.read((&request).into()).0.spilled());
        assert_eq!(seven.read((&request).into()).descriptor(&RequestCosts::default()).iter().count(), 7);
    }

    #[test]
    fn its_names_can_be_seen() {
        let attributes = Attributes::new().with("a", value("x")).with("b", value("y"));
        assert_eq!(format!("{attributes:?}"), r#"Attributes["a", "b"]"#);
    }
}

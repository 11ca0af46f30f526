//! A set of extractors, each with the attribute name that a policy uses for its value.

use std::fmt;
use std::sync::Arc;

use http::Extensions;
use slidegate::Descriptor;
use slidegate::policy::DEFAULT_DOMAIN;
use smallvec::SmallVec;

use super::{Extract, ExtractedText, RequestHead};
use crate::costs::{NamedCost, RequestCosts};

/// The parts of each request that a policy uses: attributes, each with a name and an extractor of its value, a domain,
/// and named costs.
///
/// If a request lacks a value, it lacks the attribute; the `when_missing` of a rule then determines whether the rule is
/// skipped or denies the request. If two extractors have the same name, the first one with a value applies.
///
/// ```
/// use slidegate_tower::{Attributes, TrustedProxies, extract};
///
/// let attributes = Attributes::new()
///     .with("method", extract::method())
///     .with("path", extract::path())
///     .with("ip", extract::client_ip(TrustedProxies::none()));
/// ```
pub struct Attributes {
    extractors: Vec<(Box<str>, Box<dyn Extract>)>,
    domain: Box<str>,
    named_costs: Vec<NamedCost>,
}

impl Attributes {
    /// Creates an empty set of attributes, sufficient for a policy without `per` and `when`.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an attribute with the given name and the extractor of its value.
    pub fn with(mut self, name: impl Into<Box<str>>, value: impl Extract) -> Self {
        self.extractors.push((name.into(), Box::new(value)));
        self
    }

    /// Sets the policy domain of the requests. Only the rules of this domain apply. The default is `default`.
    pub fn domain(self, domain: impl Into<Box<str>>) -> Self {
        Self { domain: domain.into(), ..self }
    }

    /// Adds a named cost, which rules of the policy charge if they refer to it, for example with `cost: tokens`. If
    /// `units` returns `None`, the request does not have this cost: such rules then check the request, but charge
    /// nothing.
    ///
    /// ```
    /// use slidegate::{Gate, MemoryStore, Policy};
    /// use slidegate_tower::{Attributes, RateLimitLayer, Settlement, extract};
    ///
    /// /// Tokens that a response has used; the handler adds it to the response's extensions.
    /// #[derive(Clone)]
    /// struct Tokens(u64);
    ///
    /// let policy = Policy::from_yaml("
    /// rules: [{ name: tokens, per: [user], limits: [90000/h], cost: tokens }]
    /// ")?;
    /// let attributes = Attributes::new()
    ///     .with("user", extract::header("x-user"))
    ///     .named_cost("tokens", |head| head.headers.get("x-max-tokens")?.to_str().ok()?.parse().ok());
    /// let layer = RateLimitLayer::new(Gate::new(policy, MemoryStore::new()), attributes);
    /// // If it is known only afterwards: the request is checked, and the tokens are reported.
    /// let layer = layer.settle(|response| match response.extensions.get::<Tokens>() {
    ///     Some(Tokens(units)) => Settlement::Report { cost: "tokens", units: *units },
    ///     None => Settlement::Keep,
    /// });
    /// # let _ = layer;
    /// # Ok::<(), slidegate::PolicyErrors>(())
    /// ```
    pub fn named_cost(
        mut self,
        name: impl Into<Box<str>>,
        units: impl Fn(RequestHead<'_>) -> Option<u64> + Send + Sync + 'static,
    ) -> Self {
        self.named_costs.push(NamedCost { name: name.into(), units: Arc::new(units) });
        self
    }

    /// Returns the policy domain of the requests.
    pub(crate) fn policy_domain(&self) -> &str {
        &self.domain
    }

    /// Returns the names of the named costs.
    pub(crate) fn cost_names(&self) -> impl Iterator<Item = &str> {
        self.named_costs.iter().map(|cost| &*cost.name)
    }

    /// Returns the named costs of a request.
    pub(crate) fn named_costs(&self, head: RequestHead<'_>) -> Vec<(&str, u64)> {
        let costs = self.named_costs.iter();
        costs.filter_map(|NamedCost { name, units }| Some((&**name, units(head)?))).collect()
    }

    /// Returns the names of the attributes, in the order in which they were added.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.extractors.iter().map(|(name, _)| &**name)
    }

    /// Returns the bit of the attribute with this index in a set of attributes. All attributes from the 64th on share a
    /// bit.
    pub(crate) fn attribute_bit(index: u32) -> u64 {
        1 << index.min(u64::BITS - 1)
    }

    /// Reads the values of all attributes from a request, and appends them to `values`. Attributes without a value are
    /// left out; returns their [bits](Self::attribute_bit). The list is a parameter, because it is large and a returned
    /// list is copied.
    pub(crate) fn read_values<'r>(
        &'r self,
        head: RequestHead<'r>,
        values: &mut AttributeValues<'r>,
    ) -> u64 {
        let mut missing = 0;
        for (index, (name, extractor)) in (0..).zip(&self.extractors) {
            match extractor.attribute(head) {
                Some(value) => values.0.push((name, value)),
                None => missing |= Self::attribute_bit(index),
            }
        }
        missing
    }

    /// Returns the attributes among `missing` whose values are missing because the server has not added an extension to
    /// the request: the bit, the name, and the name of the extension.
    pub(crate) fn missing_extensions(
        &self,
        missing: u64,
        extensions: &Extensions,
    ) -> impl Iterator<Item = (u64, &str, &'static str)> {
        let attributes = (0..)
            .zip(&self.extractors)
            .map(|(index, attribute)| (Self::attribute_bit(index), attribute));
        let among_missing = attributes.filter(move |(bit, _)| missing & bit != 0);
        among_missing.filter_map(|(bit, (name, extractor))| {
            Some((bit, &**name, extractor.missing_extension(extensions)?))
        })
    }

    /// Returns the extension without which the request has none of the attributes with these names; `None` if it has
    /// one of them, or the server is not the reason.
    pub(crate) fn missing_extension_for_attributes<'n>(
        &self,
        names: impl Iterator<Item = &'n str> + Clone,
        head: RequestHead<'_>,
    ) -> Option<&'static str> {
        let mut own =
            self.extractors.iter().filter(|(own, _)| names.clone().any(|name| **own == *name));
        own.clone()
            .all(|(_, extractor)| extractor.attribute(head).is_none())
            .then(|| own.find_map(|(_, extractor)| extractor.missing_extension(head.extensions)))
            .flatten()
    }
}

impl Default for Attributes {
    fn default() -> Self {
        Self { extractors: Vec::new(), domain: DEFAULT_DOMAIN.into(), named_costs: Vec::new() }
    }
}

/// Shows only the names of the attributes, because extractors are functions.
impl fmt::Debug for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Attributes")?;
        f.debug_list().entries(self.names()).finish()
    }
}

/// The name and the text of an attribute. The third field contains the original bytes of the value if they are not
/// UTF-8.
pub(crate) type AttributeRef<'r> = (&'r str, &'r str, Option<&'r [u8]>);

/// The attributes of one request. Up to six attributes are stored without an allocation, as in a [`Descriptor`].
#[derive(Default)]
pub(crate) struct AttributeValues<'r>(SmallVec<[(&'r str, ExtractedText<'r>); 6]>);

impl AttributeValues<'_> {
    /// Returns an iterator over the attributes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = AttributeRef<'_>> {
        self.0.iter().map(|(name, value)| (*name, &**value, value.bytes()))
    }

    /// Adds these attributes and the given costs to the descriptor of the request.
    pub(crate) fn extend_descriptor<'d>(
        &'d self,
        descriptor: &mut Descriptor<'d>,
        costs: &RequestCosts<'d>,
    ) {
        descriptor.extend(self.iter(), costs.unnamed, &costs.named);
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::super::{client_ip, header, method, value};
    use super::*;
    use crate::{Peer, TrustedProxies};

    fn read_values<'r>(
        attributes: &'r Attributes,
        request: &'r Request<()>,
    ) -> AttributeValues<'r> {
        let mut values = AttributeValues::default();
        attributes.read_values(request.into(), &mut values);
        values
    }

    fn read_descriptor<'d>(values: &'d AttributeValues<'_>) -> Descriptor<'d> {
        let mut descriptor = Descriptor::new([]);
        values.extend_descriptor(&mut descriptor, &RequestCosts::default());
        descriptor
    }

    fn read_attribute_pairs(
        attributes: &Attributes,
        request: &Request<()>,
    ) -> Vec<(String, String)> {
        let read = read_values(attributes, request);
        read_descriptor(&read)
            .iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    fn to_owned_pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn present_attribute_values_are_read_in_order() {
        let attributes = Attributes::new()
            .with("method", method())
            .with("a", header("a"))
            .with("b", header("b"));
        let request = Request::get("/").header("b", "2").body(()).unwrap();
        assert_eq!(
            read_attribute_pairs(&attributes, &request),
            to_owned_pairs(&[("method", "GET"), ("b", "2")])
        );
    }

    #[test]
    fn first_extracted_value_of_each_attribute_is_used() {
        let attributes =
            Attributes::new().with("user", header("a")).with("user", value("anonymous"));
        let user = |request: &Request<()>| {
            let read = read_values(&attributes, request);
            read_descriptor(&read).get("user").map(str::to_owned)
        };
        let known = Request::get("/").header("a", "ann").body(()).unwrap();
        assert_eq!(user(&known).as_deref(), Some("ann"));
        assert_eq!(user(&Request::new(())).as_deref(), Some("anonymous"));
    }

    #[test]
    fn ip_attribute_contains_full_ipv6_address() {
        let attributes = Attributes::new().with("ip", client_ip(TrustedProxies::none()));
        let peer = Peer("[2001:db8::1]:4711".parse().unwrap());
        let request = Request::get("/").extension(peer).body(()).unwrap();
        assert_eq!(
            read_attribute_pairs(&attributes, &request),
            to_owned_pairs(&[("ip", "2001:db8::1")])
        );
    }

    #[test]
    fn six_attributes_are_read_without_allocation() {
        let attributes = |count: usize| {
            (0..count).fold(Attributes::new(), |attributes, nth| {
                attributes.with(nth.to_string(), value("x"))
            })
        };
        let request = Request::new(());
        let (six, seven) = (attributes(6), attributes(7));
        assert!(!read_values(&six, &request).0.spilled());
        let read = read_values(&seven, &request);
        assert_eq!(read_descriptor(&read).iter().count(), 7);
    }

    #[test]
    fn debug_output_shows_attribute_names() {
        let attributes = Attributes::new().with("a", value("x")).with("b", value("y"));
        assert_eq!(format!("{attributes:?}"), r#"Attributes["a", "b"]"#);
    }
}

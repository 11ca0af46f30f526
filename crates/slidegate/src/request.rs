//! What the caller asks about.

use smallvec::SmallVec;

use crate::quota::Quota;

/// A domain and one or more descriptors. HTTP sends one descriptor, Envoy several.
///
/// ```
/// use slidegate::{Descriptor, Request};
///
/// let request = Request::new("api", Descriptor::new([("tenant", "acme"), ("method", "GET")]));
/// let costly = Request::new("api", Descriptor::new([("tenant", "acme")]).cost(50));
/// ```
#[derive(Clone, Debug)]
pub struct Request<'a> {
    pub(crate) domain: &'a str,
    pub(crate) descriptors: SmallVec<[Descriptor<'a>; 1]>,
}

/// The domain of a request, and of a rule, that names none.
pub const DEFAULT_DOMAIN: &str = "default";

impl<'a> Request<'a> {
    /// A request of one descriptor.
    pub fn new(domain: &'a str, descriptor: Descriptor<'a>) -> Self {
        Self { domain, descriptors: SmallVec::from_iter([descriptor]) }
    }

    /// A request of several descriptors, which are decided as one.
    pub fn of_descriptors(
        domain: &'a str,
        descriptors: impl IntoIterator<Item = Descriptor<'a>>,
    ) -> Self {
        Self { domain, descriptors: descriptors.into_iter().collect() }
    }

    /// The same at another cost of each descriptor.
    pub(crate) fn costing(&self, cost: u64) -> Self {
        let mut request = self.clone();
        request.descriptors.iter_mut().for_each(|descriptor| descriptor.cost = cost);
        request
    }

    /// Its descriptors.
    pub fn descriptors(&self) -> &[Descriptor<'a>] {
        &self.descriptors
    }
}

/// A set of attributes, and what the request costs to those who are counted by them.
#[derive(Clone, Debug)]
pub struct Descriptor<'a> {
    attributes: SmallVec<[(&'a str, &'a str); 6]>,
    /// The bytes of values that are not UTF-8. Nearly always empty.
    bytes: Vec<(&'a str, &'a [u8])>,
    pub(crate) cost: u64,
    pub(crate) gives_back: bool,
    pub(crate) exact: bool,
    pub(crate) limit: Option<Quota>,
}

impl<'a> Descriptor<'a> {
    /// A descriptor of cost 1. Of two attributes with one name the first counts.
    pub fn new(attributes: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        Self {
            attributes: attributes.into_iter().collect(),
            bytes: Vec::new(),
            cost: 1,
            gives_back: false,
            exact: false,
            limit: None,
        }
    }

    /// Sets the bytes of an attribute whose value is not UTF-8. Its value in [`new`](Self::new) is those bytes with a
    /// replacement for each invalid sequence: conditions of the policy match that text, and keys contain a digest of
    /// the bytes, so that two values with the same text have counts of their own.
    ///
    /// ```
    /// use slidegate::Descriptor;
    ///
    /// let bytes = b"k\xff";
    /// let text = String::from_utf8_lossy(bytes);
    /// let descriptor = Descriptor::new([("header.x-api-key", &*text)]).with_bytes("header.x-api-key", bytes);
    /// ```
    pub fn with_bytes(mut self, name: &'a str, bytes: &'a [u8]) -> Self {
        self.bytes.push((name, bytes));
        self
    }

    /// The same with another cost. 0 asks whether one unit would fit, and takes nothing.
    pub fn cost(self, cost: u64) -> Self {
        Self { cost, ..self }
    }

    /// The same, giving its cost back: so many units are taken off the counts, the oldest first. It denies
    /// nothing, and is done also if the request is denied: what it gives back has not been spent.
    pub fn giving_back(self) -> Self {
        Self { gives_back: true, ..self }
    }

    /// The same, for rules only that name every one of its attributes, and of whose `when` and `per` it has
    /// all: a descriptor of Envoy is meant for the rules that are written for it.
    pub fn exact(self) -> Self {
        Self { exact: true, ..self }
    }

    /// The same, bringing along a limit that holds instead of those of the rules that apply.
    pub fn with_limit(self, limit: Quota) -> Self {
        Self { limit: Some(limit), ..self }
    }

    /// The value of an attribute.
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.attributes.iter().find(|(own, _)| *own == name).map(|(_, value)| *value)
    }

    /// Returns the bytes of an attribute whose value is not UTF-8.
    pub(crate) fn bytes_of(&self, name: &str) -> Option<&'a [u8]> {
        self.bytes.iter().find(|(own, _)| *own == name).map(|(_, bytes)| *bytes)
    }

    /// The attributes, in the order in which they were given.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.attributes.iter().copied()
    }
}

//! What the caller asks about.

use smallvec::SmallVec;

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

    /// Its descriptors.
    pub fn descriptors(&self) -> &[Descriptor<'a>] {
        &self.descriptors
    }
}

/// A set of attributes, and what the request costs to those who are counted by them.
#[derive(Clone, Debug)]
pub struct Descriptor<'a> {
    attributes: SmallVec<[(&'a str, &'a str); 6]>,
    pub(crate) cost: u64,
}

impl<'a> Descriptor<'a> {
    /// A descriptor of cost 1. Of two attributes with one name the first counts.
    pub fn new(attributes: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        Self { attributes: attributes.into_iter().collect(), cost: 1 }
    }

    /// The same with another cost. 0 asks whether one unit would fit, and takes nothing.
    pub fn cost(self, cost: u64) -> Self {
        Self { cost, ..self }
    }

    /// The value of an attribute.
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.attributes.iter().find(|(own, _)| *own == name).map(|(_, value)| *value)
    }

    /// The attributes, in the order in which they were given.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.attributes.iter().copied()
    }
}

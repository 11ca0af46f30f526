//! Options of a layer that apply to each decision.
//!
//! The module also contains the [`SettleContext`] of one request, which results from these options.

use slidegate::{Descriptor, Request};

use crate::checked_names::NameCheckState;
use crate::costs::CostSource;
use crate::extract::AttributeRef;

/// Options for the decisions of one layer.
#[derive(Clone)]
pub struct RequestOptions {
    pub cost: CostSource,
    /// Whether attributes are kept until the response, because the request's consumption may be reported.
    pub has_settle_context: bool,
    /// The comparison of the names of the layer with its policy.
    pub names: NameCheckState,
}

/// The name and the text of an attribute. The third field contains the original bytes of the value if they are not
/// UTF-8.
type OwnedAttribute = (Box<str>, Box<str>, Option<Box<[u8]>>);

/// Attributes of a request, kept until its response because its consumption may have to be reported.
#[derive(Debug)]
pub struct SettleContext {
    attributes: Box<[OwnedAttribute]>,
}

impl RequestOptions {
    /// Copies the attributes of a request for a later report of its consumption. Returns `None` if the layer has no
    /// settle function.
    pub fn settle_context<'v>(
        &self,
        attributes: impl IntoIterator<Item = AttributeRef<'v>>,
    ) -> Option<SettleContext> {
        self.has_settle_context.then(|| {
            let attributes = attributes.into_iter();
            let attributes = attributes
                .map(|(name, text, bytes)| (name.into(), text.into(), bytes.map(Into::into)));
            SettleContext { attributes: attributes.collect() }
        })
    }
}

impl SettleContext {
    /// Returns a request that reports consumed units. It has the attributes of the original request, and `units` as the
    /// named cost `cost`.
    pub fn report<'r>(&'r self, domain: &'r str, cost: &'r str, units: u64) -> Request<'r> {
        Request::new(domain, self.descriptor().with_cost(cost, units))
    }

    fn descriptor(&self) -> Descriptor<'_> {
        let texts = self.attributes.iter().map(|(name, text, _)| (&**name, &**text));
        let bytes = self.attributes.iter();
        let bytes = bytes.filter_map(|(name, _, bytes)| Some((name, bytes.as_ref()?)));
        bytes.fold(Descriptor::new(texts), |descriptor, (name, bytes)| {
            descriptor.with_bytes(name, bytes)
        })
    }

    /// Returns the limiter key of the request. With a limiter, the key is stored as the only attribute.
    pub fn key(&self) -> &str {
        self.attributes.first().map_or("", |(_, key, _)| key)
    }
}

impl Default for RequestOptions {
    fn default() -> Self {
        Self { cost: CostSource::One, has_settle_context: false, names: NameCheckState::default() }
    }
}

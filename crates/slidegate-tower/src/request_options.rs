//! Options of a layer that apply to each decision: domain, costs, and the behaviour while the store is unavailable.
//!
//! The module also contains the values of one request that result from these options: its costs, and its
//! [`SettleContext`].

use std::borrow::Cow;
use std::sync::Arc;

use http::HeaderName;
use slidegate::policy::OnStoreError;
use slidegate::{DEFAULT_DOMAIN, Descriptor, Request};

use crate::extract::{AttributeRef, RequestHead};
use crate::names::CheckedNames;

/// Options for the decisions of one layer.
#[derive(Clone)]
pub struct RequestOptions {
    pub domain: Box<str>,
    pub cost: CostSource,
    /// The named costs that the rules of a policy may charge.
    pub named_costs: Vec<NamedCost>,
    /// The behaviour of a limiter while its store is unavailable.
    pub on_store_error: OnStoreError,
    /// Whether attributes are kept until the response, because the request's consumption may be reported.
    pub has_settle_context: bool,
    /// The comparison of the names of the layer with its policy.
    pub names: CheckedNames,
}

/// The source from which a layer takes the cost of a request: always 1, a request header, or a function.
#[derive(Clone)]
pub enum CostSource {
    One,
    Header(HeaderName),
    Function(Arc<dyn Fn(RequestHead<'_>) -> u64 + Send + Sync>),
}

/// A named cost, such as `tokens`. The function `units` returns the cost of a request in units, or `None` if the
/// request does not have this cost.
#[derive(Clone)]
pub struct NamedCost {
    pub name: Box<str>,
    pub units: Arc<dyn Fn(RequestHead<'_>) -> Option<u64> + Send + Sync>,
}

/// The costs of one request, in units.
#[derive(Debug, Default)]
pub struct RequestCosts<'q> {
    pub unnamed: u64,
    pub named: Vec<(&'q str, u64)>,
}

/// The description of the error in a malformed request.
pub type MalformedDetail = Cow<'static, str>;

/// The name and the text of an attribute. The third field contains the original bytes of the value if they are not
/// UTF-8.
type OwnedAttribute = (Box<str>, Box<str>, Option<Box<[u8]>>);

/// Attributes of a request, kept until its response because its consumption may have to be reported.
#[derive(Debug)]
pub struct SettleContext {
    attributes: Box<[OwnedAttribute]>,
}

impl RequestOptions {
    /// Returns the unnamed cost of a request in units. If the layer reads the cost from a header and the header is
    /// missing, the cost is 1.
    #[inline]
    pub fn read_cost(&self, head: RequestHead<'_>) -> Result<u64, MalformedDetail> {
        match &self.cost {
            CostSource::One => Ok(1),
            CostSource::Function(cost) => Ok(cost(head)),
            CostSource::Header(name) => read_cost_header(name, head),
        }
    }

    /// Returns the unnamed cost and all named costs of a request.
    #[inline(always)]
    pub fn read_costs(&self, head: RequestHead<'_>) -> Result<RequestCosts<'_>, MalformedDetail> {
        let unnamed = self.read_cost(head)?;
        let mut named = Vec::new();
        for NamedCost { name, units } in &self.named_costs {
            named.extend(units(head).map(|units| (&**name, units)));
        }
        Ok(RequestCosts { unnamed, named })
    }

    /// Copies the attributes of a request for a later report of its consumption. Returns `None` if the layer has no
    /// settle function.
    #[inline]
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

/// Returns the cost in a header; 1 if the header is missing. Not inlined, because few layers read the cost from a header.
#[inline(never)]
fn read_cost_header(name: &HeaderName, head: RequestHead<'_>) -> Result<u64, MalformedDetail> {
    let Some(value) = head.headers.get(name) else { return Ok(1) };
    let text = String::from_utf8_lossy(value.as_bytes());
    parse_cost_units(text.trim()).ok_or_else(|| describe_invalid_cost(name, &text))
}

/// Parses a number of units that consists of digits only; returns `None` for any other text. The method `str::parse`
/// would also accept a plus sign. A number above `u64::MAX` becomes `u64::MAX`, a cost that exceeds every limit.
fn parse_cost_units(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

fn describe_invalid_cost(name: &HeaderName, text: &str) -> MalformedDetail {
    let truncated: String = text.chars().take(32).collect();
    format!("header {name}: `{truncated}` is not a cost; send a whole number of units").into()
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
        Self {
            domain: DEFAULT_DOMAIN.into(),
            cost: CostSource::One,
            named_costs: Vec::new(),
            on_store_error: OnStoreError::default(),
            has_settle_context: false,
            names: CheckedNames::default(),
        }
    }
}

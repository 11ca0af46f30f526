//! What is asked about each request, beside who it is from.

use std::borrow::Cow;
use std::sync::Arc;

use http::HeaderName;
use slidegate::policy::OnStoreError;
use slidegate::{DEFAULT_DOMAIN, Descriptor, Request};

use crate::extract::{Attribute, Head};

#[derive(Clone)]
pub struct Question {
    pub domain: Box<str>,
    pub cost: Cost,
    /// The named costs that a policy's rules may charge.
    pub named_costs: Vec<NamedCost>,
    /// What a limiter does while its store does not answer.
    pub on_store_error: OnStoreError,
    /// Whether who asked is kept until the answer is there.
    pub is_kept: bool,
}

/// Units that a request costs.
#[derive(Clone)]
pub enum Cost {
    One,
    Header(HeaderName),
    Of(Arc<dyn Fn(Head<'_>) -> u64 + Send + Sync>),
}

/// A named cost, which a request may not have.
#[derive(Clone)]
pub struct NamedCost {
    pub name: Box<str>,
    pub units: Arc<dyn Fn(Head<'_>) -> Option<u64> + Send + Sync>,
}

/// The costs of one request.
#[derive(Debug, Default)]
pub struct Costs<'q> {
    pub plain: u64,
    pub named: Vec<(&'q str, u64)>,
}

/// Why there is no decision.
pub type Malformed = Cow<'static, str>;

/// Name, text and the bytes of a value that is not UTF-8.
type KeptValue = (Box<str>, Box<str>, Option<Box<[u8]>>);

/// Who asked, for as long as the request is served: its charge may have to be settled.
#[derive(Debug)]
pub struct Kept {
    values: Box<[KeptValue]>,
    cost: u64,
    named_costs: Vec<(Box<str>, u64)>,
}

impl Question {
    #[inline]
    pub fn cost_of(&self, head: Head<'_>) -> Result<u64, Malformed> {
        match &self.cost {
            Cost::One => Ok(1),
            Cost::Of(cost) => Ok(cost(head)),
            Cost::Header(name) => match head.headers.get(name) {
                None => Ok(1),
                Some(value) => {
                    let text = String::from_utf8_lossy(value.as_bytes());
                    whole_number(text.trim()).ok_or_else(|| wrong(name, &text))
                }
            },
        }
    }

    /// Returns all costs of a request.
    pub fn costs_of(&self, head: Head<'_>) -> Result<Costs<'_>, Malformed> {
        let named = self.named_costs.iter();
        let named = named.filter_map(|cost| Some((&*cost.name, (cost.units)(head)?)));
        Ok(Costs { plain: self.cost_of(head)?, named: named.collect() })
    }

    /// Keeps who asked, if that may be needed.
    #[inline]
    pub fn keep<'v>(
        &self,
        costs: &Costs<'_>,
        values: impl IntoIterator<Item = Attribute<'v>>,
    ) -> Option<Kept> {
        self.is_kept.then(|| {
            let values = values.into_iter();
            let values =
                values.map(|(name, text, bytes)| (name.into(), text.into(), bytes.map(Into::into)));
            let named_costs = costs.named.iter().map(|(name, units)| ((*name).into(), *units));
            Kept { values: values.collect(), cost: costs.plain, named_costs: named_costs.collect() }
        })
    }
}

/// Digits alone: `parse` would also take a plus sign. A number that is too large never fits.
fn whole_number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

fn wrong(name: &HeaderName, text: &str) -> Malformed {
    let shown: String = text.chars().take(32).collect();
    format!("the header {name} is `{shown}`: a cost is a whole number of units").into()
}

impl Kept {
    /// Returns the request as it was decided.
    pub fn request<'r>(&'r self, domain: &'r str) -> Request<'r> {
        let named = self.named_costs.iter();
        let descriptor = named.fold(self.descriptor().cost(self.cost), |all, (name, units)| {
            all.with_cost(name, *units)
        });
        Request::new(domain, descriptor)
    }

    /// Returns the report of a named cost of the request.
    pub fn report<'r>(&'r self, domain: &'r str, cost: &'r str, units: u64) -> Request<'r> {
        Request::new(domain, self.descriptor().with_cost(cost, units))
    }

    fn descriptor(&self) -> Descriptor<'_> {
        let attributes = self.values.iter().map(|(name, text, _)| (&**name, &**text));
        let bytes = self.values.iter().filter_map(|(name, _, bytes)| Some((name, bytes.as_ref()?)));
        bytes.fold(Descriptor::new(attributes), |all, (name, bytes)| all.with_bytes(name, bytes))
    }

    /// The only value of a limiter's request.
    pub fn key(&self) -> &str {
        self.values.first().map_or("", |(_, key, _)| key)
    }
}

impl Default for Question {
    fn default() -> Self {
        Self {
            domain: DEFAULT_DOMAIN.into(),
            cost: Cost::One,
            named_costs: Vec::new(),
            on_store_error: OnStoreError::default(),
            is_kept: false,
        }
    }
}

//! The costs of a request, and the sources from which a layer takes them.

use std::borrow::Cow;
use std::sync::Arc;

use http::HeaderName;

use crate::extract::RequestHead;

/// The source from which a layer takes the cost of a request: always 1, a request header, or a function.
#[derive(Clone)]
pub enum CostSource {
    One,
    Header(HeaderName),
    Function(Arc<dyn Fn(RequestHead<'_>) -> u64 + Send + Sync>),
}

/// A named cost, such as `tokens`. The function `units` returns the cost of a request in units, or `None` if the
/// request does not have this cost.
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
pub type InvalidCostReason = Cow<'static, str>;

impl CostSource {
    /// Returns the unnamed cost of a request in units. If the layer reads the cost from a header and the header is
    /// missing, the cost is 1.
    pub fn read_cost(&self, head: RequestHead<'_>) -> Result<u64, InvalidCostReason> {
        match self {
            Self::One => Ok(1),
            Self::Function(cost) => Ok(cost(head)),
            Self::Header(name) => read_cost_header(name, head),
        }
    }
}

/// Returns the cost in a header; 1 if the header is missing.
fn read_cost_header(name: &HeaderName, head: RequestHead<'_>) -> Result<u64, InvalidCostReason> {
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

fn describe_invalid_cost(name: &HeaderName, text: &str) -> InvalidCostReason {
    let truncated: String = text.chars().take(32).collect();
    format!("header {name}: `{truncated}` is not a cost; send a whole number of units").into()
}

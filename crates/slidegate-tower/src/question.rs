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

/// Why there is no decision.
pub type Malformed = Cow<'static, str>;

/// Name, text and the bytes of a value that is not UTF-8.
type KeptValue = (Box<str>, Box<str>, Option<Box<[u8]>>);

/// Who asked, for as long as the request is served: its charge may have to be settled.
#[derive(Debug)]
pub struct Kept {
    values: Box<[KeptValue]>,
    pub cost: u64,
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

    /// Keeps who asked, if that may be needed.
    #[inline]
    pub fn keep<'v>(
        &self,
        cost: u64,
        values: impl IntoIterator<Item = Attribute<'v>>,
    ) -> Option<Kept> {
        self.is_kept.then(|| {
            let values = values.into_iter();
            let values =
                values.map(|(name, text, bytes)| (name.into(), text.into(), bytes.map(Into::into)));
            Kept { values: values.collect(), cost }
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
    /// The request again.
    pub fn request<'r>(&'r self, domain: &'r str) -> Request<'r> {
        let attributes = self.values.iter().map(|(name, text, _)| (&**name, &**text));
        let descriptor = Descriptor::new(attributes).cost(self.cost);
        let bytes = self.values.iter().filter_map(|(name, _, bytes)| Some((name, bytes.as_ref()?)));
        Request::new(
            domain,
            bytes.fold(descriptor, |all, (name, bytes)| all.with_bytes(name, bytes)),
        )
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
            on_store_error: OnStoreError::default(),
            is_kept: false,
        }
    }
}

//! The request in a message: descriptors that are decided as one.
//!
//! Envoy lets a request pass if the call fails, and clients choose what many entries contain. So no key, value, domain or
//! number of entries makes a call fail. What the caller configures, such as a unit, is checked.

use std::collections::HashMap;
use std::time::Duration;

use slidegate::{Descriptor, MAX_UNITS, MAX_VALUE_BYTES, Quota, Request, Value};

use super::messages::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use super::messages::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use super::messages::envoy::service::ratelimit::v3::RateLimitRequest;
use super::{Invalid, unit};

/// Descriptors that a request may have. Envoy makes one of each `actions` of a route, so clients have no influence.
pub const MAX_DESCRIPTORS: usize = 1024;

/// Entries up to which repeated names are looked for pair by pair.
const FEW_ENTRIES: usize = 16;

/// A message that makes sense.
pub struct Ask {
    domain: String,
    descriptors: Vec<AskedDescriptor>,
}

/// One descriptor of a message.
struct AskedDescriptor {
    /// Names and values, in their order. Each name occurs once.
    entries: Vec<(String, String)>,
    /// The bytes of values that are not UTF-8, with the positions of their entries.
    bytes: Vec<(usize, Vec<u8>)>,
    cost: DescriptorCost,
    is_refund: bool,
    /// The limit that it brings along.
    limit: Option<Quota>,
}

/// The cost of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DescriptorCost {
    /// The cost that the rule states, 1 by default.
    Default,
    /// The `hits_addend` of the message.
    OfMessage(u64),
    /// The `hits_addend` of the descriptor, which has been consumed already.
    Own(u64),
}

impl Ask {
    /// Reads a message.
    pub fn read(message: RateLimitRequest) -> Result<Self, Invalid> {
        let number = message.descriptors.len();
        if number == 0 {
            return Err(Invalid("there are no descriptors: nobody could be counted".into()));
        }
        if number > MAX_DESCRIPTORS {
            let wrong = format!("there are {number} descriptors: at most {MAX_DESCRIPTORS}");
            return Err(Invalid(wrong));
        }
        let cost = match message.hits_addend {
            0 => DescriptorCost::Default,
            units => DescriptorCost::OfMessage(units.into()),
        };
        let descriptors = message.descriptors.into_iter().enumerate();
        let descriptors = descriptors.map(|(nth, one)| AskedDescriptor::read(nth, one, cost));
        Ok(Self {
            domain: name(message.domain),
            descriptors: descriptors.collect::<Result<_, _>>()?,
        })
    }

    /// Whose rules apply.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// How many descriptors there are.
    pub fn descriptors(&self) -> usize {
        self.descriptors.len()
    }

    /// The message as the gate takes it.
    pub fn request(&self) -> Request<'_> {
        let descriptors = self.descriptors.iter().map(AskedDescriptor::descriptor);
        Request::with_descriptors(&self.domain, descriptors)
    }
}

impl AskedDescriptor {
    /// Reads the nth descriptor. `cost` is that of the whole request.
    fn read(
        nth: usize,
        descriptor: RateLimitDescriptor,
        cost: DescriptorCost,
    ) -> Result<Self, Invalid> {
        let mut bytes = Vec::new();
        let entries = descriptor.entries.into_iter().enumerate();
        let entries = entries.map(|(place, Entry { key, value })| {
            (
                name(key),
                String::from_utf8(value).unwrap_or_else(|error| {
                    let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
                    bytes.push((place, error.into_bytes()));
                    text
                }),
            )
        });
        let mut entries: Vec<_> = entries.collect();
        number_repetitions(&mut entries);
        Ok(Self {
            entries,
            bytes,
            cost: descriptor.hits_addend.map_or(cost, DescriptorCost::Own),
            is_refund: descriptor.is_negative_hits,
            limit: descriptor.limit.map(|limit| quota(nth, limit)).transpose()?,
        })
    }

    fn descriptor(&self) -> Descriptor<'_> {
        let attributes = self.entries.iter().map(|(name, value)| (&**name, &**value));
        let mut descriptor = Descriptor::new(attributes).exact();
        descriptor = match self.cost {
            DescriptorCost::Default => descriptor,
            DescriptorCost::OfMessage(units) => descriptor.with_hits_addend(units),
            DescriptorCost::Own(units) => descriptor.with_hits_addend(units).consumed(),
        };
        for (place, bytes) in &self.bytes {
            descriptor = descriptor.with_bytes(&self.entries[*place].0, bytes);
        }
        if self.is_refund {
            descriptor = descriptor.as_refund();
        }
        match self.limit {
            Some(limit) => descriptor.with_limit(limit),
            None => descriptor,
        }
    }
}

/// Returns the text of a key or a domain. One that is too long or not UTF-8 is shortened as a value is; no policy can
/// name it.
fn name(bytes: Vec<u8>) -> String {
    match String::from_utf8(bytes) {
        Ok(text) if text.len() <= MAX_VALUE_BYTES => text,
        Ok(text) => shortened(&text, text.as_bytes()),
        Err(error) => shortened(&String::from_utf8_lossy(error.as_bytes()), error.as_bytes()),
    }
}

fn shortened(text: &str, bytes: &[u8]) -> String {
    match Value::from_bytes(text, bytes) {
        Value::Shortened(value) => format!("{}({})", value.prefix(), value.digest()),
        other => other.to_string(),
    }
}

/// Renames the second entry of a name to `name#2`, and so on, since attributes have each name once. Skips numbers for which
/// the new name is the key of another entry.
fn number_repetitions(entries: &mut [(String, String)]) {
    let is_repeated = |(nth, (key, _)): (usize, &(String, String))| {
        entries[..nth].iter().any(|(other, _)| other == key)
    };
    if entries.len() <= FEW_ENTRIES && !entries.iter().enumerate().any(is_repeated) {
        return;
    }
    // The last number of each key; 0 until the key occurs.
    let keys = entries.iter().map(|(key, _)| (key.clone(), 0));
    let mut last: HashMap<String, usize> = keys.collect();
    for (key, _) in entries {
        let mut number = last.get(key).copied().unwrap_or_default() + 1;
        let mut numbered = key.clone();
        while number > 1 {
            numbered = format!("{key}#{number}");
            if !last.contains_key(&numbered) {
                break;
            }
            number += 1;
        }
        last.insert(std::mem::replace(key, numbered), number);
    }
}

/// The limit that the nth descriptor brings along.
fn quota(nth: usize, limit: RateLimitOverride) -> Result<Quota, Invalid> {
    let RateLimitOverride { requests_per_unit, unit, unit_multiplier } = limit;
    let wrong = |what: &str| Invalid(format!("descriptors[{nth}].limit {what}"));
    let Some(window) = unit::window(unit) else {
        return Err(wrong(&format!("has unit {unit}: SECOND to WEEK are 1 to 7")));
    };
    let units = unit_multiplier.unwrap_or(1);
    if units == 0 {
        return Err(wrong("has unit_multiplier 0: at least 1"));
    }
    let max = u64::from(requests_per_unit).min(MAX_UNITS);
    let window = window.checked_mul(units).unwrap_or(Duration::MAX);
    Quota::new(max, window).map_err(|error| wrong(&format!("cannot be: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(entries: &[(&str, &str)]) -> Vec<String> {
        let entry = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let mut entries: Vec<_> = entries.iter().map(entry).collect();
        number_repetitions(&mut entries);
        entries.into_iter().map(|(key, _)| key).collect()
    }

    #[test]
    fn the_nth_entry_of_a_name_has_its_number() {
        assert_eq!(keys(&[("a", "1"), ("b", "2")]), ["a", "b"]);
        assert_eq!(
            keys(&[("a", "1"), ("b", "1"), ("a", "2"), ("a", "2"), ("b", "1")]),
            ["a", "b", "a#2", "a#3", "b#2"]
        );
        assert_eq!(
            keys(&[("a#2", "1"), ("a", "1"), ("a", "2"), ("a", "3"), ("a#2", "2")]),
            ["a#2", "a", "a#3", "a#4", "a#2#2"]
        );
        assert_eq!(keys(&[("a", "1"), ("a", "2"), ("a#2", "1")]), ["a", "a#3", "a#2"]);
        let many = vec![("a", ""); 100_000];
        assert_eq!(keys(&many).last().unwrap(), "a#100000");
    }

    fn message(descriptor: RateLimitDescriptor) -> RateLimitRequest {
        RateLimitRequest { domain: "d".into(), descriptors: vec![descriptor], hits_addend: 0 }
    }

    #[test]
    fn a_limit_that_is_too_large_is_the_largest_and_every_unit_has_a_window() {
        let limit = |requests_per_unit, unit| {
            let limit = RateLimitOverride { requests_per_unit, unit, unit_multiplier: None };
            let limit = Some(limit);
            Ask::read(message(RateLimitDescriptor { limit, ..Default::default() }))
                .map(|ask| ask.descriptors[0].limit)
        };
        let quota = |text: &str| Some(text.parse::<Quota>().unwrap());
        assert_eq!(limit(u32::MAX, 1).unwrap(), quota("536870912/s"));
        assert_eq!(limit(7, 5).unwrap(), quota("7/30d"));
        assert_eq!(limit(7, 6).unwrap(), quota("7/365d"));
        assert_eq!(limit(0, 7).unwrap(), quota("0/w"));
        for unknown in [0, 8, -1] {
            let wrong = limit(1, unknown).err().unwrap().to_string();
            assert!(wrong.starts_with("descriptors[0].limit has unit"), "{wrong}");
        }
    }

    #[test]
    fn unit_multiplier_multiplies_the_window() {
        let limit = |unit, unit_multiplier| {
            let limit = RateLimitOverride { requests_per_unit: 10, unit, unit_multiplier };
            let descriptor = RateLimitDescriptor { limit: Some(limit), ..Default::default() };
            Ask::read(message(descriptor)).map(|ask| ask.descriptors[0].limit)
        };
        let quota = |text: &str| Some(text.parse::<Quota>().unwrap());
        assert_eq!(limit(1, Some(30)).unwrap(), quota("10/30s"));
        assert_eq!(limit(3, Some(1)).unwrap(), quota("10/h"));
        for (unit, units, expected) in [(1, 0, "has unit_multiplier 0"), (6, u32::MAX, "cannot be")]
        {
            let wrong = limit(unit, Some(units)).err().unwrap().to_string();
            assert!(wrong.contains(expected), "{wrong}");
        }
    }

    #[test]
    fn hits_addend_of_descriptor_replaces_that_of_message() {
        let cost = |request: u32, descriptor: Option<u64>| {
            let descriptor = RateLimitDescriptor { hits_addend: descriptor, ..Default::default() };
            let message = RateLimitRequest { hits_addend: request, ..message(descriptor) };
            Ask::read(message).unwrap().descriptors[0].cost
        };
        use DescriptorCost::{Default as NoCost, OfMessage, Own};
        assert_eq!(cost(0, None), NoCost);
        assert_eq!(cost(5, None), OfMessage(5));
        assert_eq!(cost(5, Some(0)), Own(0));
        assert_eq!(cost(0, Some(7)), Own(7));
    }
}

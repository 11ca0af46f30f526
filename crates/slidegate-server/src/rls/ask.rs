//! What a message asks: a request of descriptors that are decided as one.

use slidegate::{Descriptor, MAX_UNITS, Quota, Request};

use super::messages::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use super::messages::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use super::messages::envoy::service::ratelimit::v3::RateLimitRequest;
use super::{Invalid, unit};
use crate::http::{MAX_ATTRIBUTES, MAX_NAME, MAX_VALUE};

/// Descriptors that a request may have. Envoy makes one of each `actions` of a route.
pub const MAX_DESCRIPTORS: usize = 64;

/// A message that makes sense.
pub struct Ask {
    message: RateLimitRequest,
    /// What the descriptors bring along, in their order.
    limits: Vec<Option<Quota>>,
}

impl Ask {
    /// Reads a message.
    pub fn read(mut message: RateLimitRequest) -> Result<Self, Invalid> {
        if message.domain.is_empty() {
            return Err(Invalid("domain is empty: whose rules apply?".into()));
        }
        bound(|| "domain".into(), message.domain.len(), MAX_NAME)?;
        let number = message.descriptors.len();
        if number == 0 {
            return Err(Invalid("there are no descriptors: nobody could be counted".into()));
        }
        if number > MAX_DESCRIPTORS {
            let wrong = format!("there are {number} descriptors: at most {MAX_DESCRIPTORS}");
            return Err(Invalid(wrong));
        }
        let mut limits = Vec::with_capacity(number);
        for (nth, descriptor) in message.descriptors.iter_mut().enumerate() {
            check_entries(nth, &descriptor.entries)?;
            number_repetitions(&mut descriptor.entries);
            limits.push(descriptor.limit.map(|limit| quota(nth, limit)).transpose()?);
        }
        Ok(Self { message, limits })
    }

    /// Whose rules apply.
    pub fn domain(&self) -> &str {
        &self.message.domain
    }

    /// How many descriptors there are.
    pub fn descriptors(&self) -> usize {
        self.limits.len()
    }

    /// The message as the gate takes it.
    pub fn request(&self) -> Request<'_> {
        let cost = u64::from(self.message.hits_addend.max(1));
        let descriptors = self.message.descriptors.iter().zip(&self.limits);
        let descriptors = descriptors.map(|(descriptor, limit)| read(descriptor, *limit, cost));
        Request::of_descriptors(&self.message.domain, descriptors)
    }
}

/// `cost` is what the request says.
fn read(descriptor: &RateLimitDescriptor, limit: Option<Quota>, cost: u64) -> Descriptor<'_> {
    let attributes = descriptor.entries.iter().map(|Entry { key, value }| (&**key, &**value));
    let cost = descriptor.hits_addend.unwrap_or(cost);
    let read = Descriptor::new(attributes).cost(cost).exact();
    let read = if descriptor.is_negative_hits { read.giving_back() } else { read };
    match limit {
        Some(limit) => read.with_limit(limit),
        None => read,
    }
}

fn check_entries(nth: usize, entries: &[Entry]) -> Result<(), Invalid> {
    let number = entries.len();
    if number > MAX_ATTRIBUTES {
        let wrong = format!("descriptors[{nth}] has {number} entries: at most {MAX_ATTRIBUTES}");
        return Err(Invalid(wrong));
    }
    for (place, entry) in entries.iter().enumerate() {
        let of = |what: &str| format!("descriptors[{nth}].entries[{place}].{what}");
        bound(|| of("key"), entry.key.len(), MAX_NAME)?;
        bound(|| of("value"), entry.value.len(), MAX_VALUE)?;
    }
    Ok(())
}

/// `what` has so many bytes.
fn bound(what: impl FnOnce() -> String, bytes: usize, most: usize) -> Result<(), Invalid> {
    if bytes <= most {
        return Ok(());
    }
    Err(Invalid(format!("{} has {bytes} bytes: at most {most}", what())))
}

/// Rules tell the second entry of a name by `name#2`, and so on: attributes have each name once.
fn number_repetitions(entries: &mut [Entry]) {
    // From the last, so that those before it still have the names that they came with.
    for nth in (1..entries.len()).rev() {
        let (before, rest) = entries.split_at_mut(nth);
        let key = &mut rest[0].key;
        let same = before.iter().filter(|entry| entry.key == *key).count();
        if same > 0 {
            *key = format!("{key}#{}", same + 1);
        }
    }
}

/// The limit that the nth descriptor brings along.
fn quota(nth: usize, limit: RateLimitOverride) -> Result<Quota, Invalid> {
    let RateLimitOverride { requests_per_unit, unit } = limit;
    let wrong = |what: &str| Invalid(format!("descriptors[{nth}].limit {what}"));
    let Some(window) = unit::window(unit) else {
        return Err(wrong(&format!("has unit {unit}: SECOND to WEEK are 1 to 7")));
    };
    let max = u64::from(requests_per_unit).min(MAX_UNITS);
    Quota::new(max, window).map_err(|error| wrong(&format!("cannot be: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry((key, value): &(&str, &str)) -> Entry {
        Entry { key: (*key).into(), value: (*value).into() }
    }

    fn keys(entries: &[(&str, &str)]) -> Vec<String> {
        let mut entries: Vec<Entry> = entries.iter().map(entry).collect();
        number_repetitions(&mut entries);
        entries.into_iter().map(|entry| entry.key).collect()
    }

    #[test]
    fn the_nth_entry_of_a_name_has_its_number() {
        assert_eq!(keys(&[("a", "1"), ("b", "2")]), ["a", "b"]);
        assert_eq!(
            keys(&[("a", "1"), ("b", "1"), ("a", "2"), ("a", "2"), ("b", "1")]),
            ["a", "b", "a#2", "a#3", "b#2"]
        );
    }

    fn message(descriptor: RateLimitDescriptor) -> RateLimitRequest {
        RateLimitRequest { domain: "d".into(), descriptors: vec![descriptor], hits_addend: 0 }
    }

    #[test]
    fn a_limit_that_is_too_large_is_the_largest_and_every_unit_has_a_window() {
        let limit = |requests_per_unit, unit| {
            let limit = Some(RateLimitOverride { requests_per_unit, unit });
            Ask::read(message(RateLimitDescriptor { limit, ..Default::default() }))
                .map(|ask| ask.limits[0])
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
    fn a_descriptor_says_its_own_cost_also_none() {
        let cost = |request: u32, descriptor: Option<u64>| {
            let descriptor = RateLimitDescriptor { hits_addend: descriptor, ..Default::default() };
            let message = RateLimitRequest { hits_addend: request, ..message(descriptor) };
            let ask = Ask::read(message).unwrap();
            format!("{:?}", ask.request().descriptors()[0])
        };
        for (request, descriptor, expected) in
            [(0, None, 1), (5, None, 5), (5, Some(0), 0), (0, Some(7), 7)]
        {
            let told = cost(request, descriptor);
            assert!(told.contains(&format!("cost: {expected},")), "{told}");
        }
    }
}

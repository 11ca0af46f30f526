//! Converts messages of Envoy's rate limit service to requests that the gate evaluates.
//!
//! Envoy allows a request if the call to the rate limit service fails, and clients choose the contents of many entries.
//! So no key, value or domain makes a call fail. Units and the numbers of descriptors and entries, which the caller
//! configures, are validated.

use std::collections::HashMap;
use std::time::Duration;

use bytestring::ByteString;
use prost::bytes::Bytes;
use slidegate::store::{MAX_VALUE_BYTES, Value};
use slidegate::{Descriptor, Quota, Request};

use super::messages::RateLimitRequest;
use super::messages::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use super::messages::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use super::unit;
use crate::bounds::{MAX_DESCRIPTOR_ENTRIES, MAX_DESCRIPTORS};
use crate::decide::error::{CallError, CallErrorKind};
use crate::decide::{Call, Operation};

/// Maximum number of entries whose names are compared pairwise to find repeated names. If there are more entries, a
/// hash map is used.
const MAX_ENTRIES_TO_COMPARE_PAIRWISE: usize = 16;

/// The key of the entry with the permit, in a descriptor that releases it.
const PERMIT_ENTRY_KEY: &[u8] = b"permit";

/// A validated request message.
pub struct ParsedMessage {
    domain: ByteString,
    /// The descriptors that the gate evaluates.
    descriptors: Vec<ParsedDescriptor>,
    /// The descriptors that release a permit, sorted by their index in the message.
    permit_releases: Vec<PermitRelease>,
}

/// A descriptor that releases a permit.
pub(super) struct PermitRelease {
    /// The index of the descriptor in the message.
    pub(super) index: usize,
    token: String,
}

/// A validated descriptor of a request message.
struct ParsedDescriptor {
    /// The names and values of the entries, in the order of the message. Each name occurs once.
    entries: Vec<(ByteString, ByteString)>,
    /// The positions of entries whose values are not UTF-8, with the original bytes of the values.
    bytes: Vec<(usize, Bytes)>,
    cost: DescriptorCost,
    is_refund: bool,
    /// The limit that the descriptor itself contains. `None` if only limits of the policy apply.
    limit: Option<Quota>,
}

/// The cost of a descriptor. The variants are the places in which a cost can be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DescriptorCost {
    /// The message sets no cost. The cost in the rule applies, 1 by default.
    Default,
    /// The cost in the field `hits_addend` of the message.
    Message(u64),
    /// The cost in the field `hits_addend` of the descriptor: units that have already been consumed.
    Descriptor(u64),
}

impl ParsedMessage {
    /// Parses and validates a request message.
    pub fn parse(message: RateLimitRequest) -> Result<Self, CallError> {
        let count = message.descriptors.len();
        if count == 0 {
            return Err(invalid("the request has no descriptors; send at least one"));
        }
        if count > MAX_DESCRIPTORS {
            let error =
                format!("the request has {count} descriptors; send at most {MAX_DESCRIPTORS}");
            return Err(invalid(&error));
        }
        let entries: usize = message.descriptors.iter().map(|one| one.entries.len()).sum();
        if entries > MAX_DESCRIPTOR_ENTRIES {
            let error = format!(
                "the descriptors have {entries} entries together; send at most {MAX_DESCRIPTOR_ENTRIES}"
            );
            return Err(invalid(&error));
        }
        let cost = match message.hits_addend {
            0 => DescriptorCost::Default,
            units => DescriptorCost::Message(units.into()),
        };
        let domain = decode_attribute_name(message.domain);
        let mut parsed =
            Self { domain, descriptors: Vec::with_capacity(count), permit_releases: Vec::new() };
        for (index, descriptor) in message.descriptors.into_iter().enumerate() {
            match permit_to_release(&descriptor) {
                Some(token) => parsed.permit_releases.push(PermitRelease { index, token }),
                None => {
                    parsed.descriptors.push(ParsedDescriptor::parse(index, descriptor, cost)?);
                }
            }
        }
        Ok(parsed)
    }

    /// Converts this message to a call. A call that only releases permits charges nothing, and is not a request without
    /// a rule for metrics.
    pub fn to_call(&self) -> Call<'_> {
        let descriptors = self.descriptors.iter().map(ParsedDescriptor::to_descriptor);
        let request = Request::with_descriptors(&self.domain, descriptors);
        let only_releases = self.descriptors.is_empty();
        let operation = if only_releases { Operation::Peek } else { Operation::Check };
        Call {
            released_permits: self.permit_releases.iter().map(|release| &*release.token).collect(),
            returns_permit: true,
            ..Call::new(operation, request)
        }
    }

    /// Returns the number of descriptors that the gate evaluates.
    pub(super) fn evaluated_descriptor_count(&self) -> usize {
        self.descriptors.len()
    }

    /// Returns the descriptors that release a permit, sorted by their index in the message.
    pub(super) fn permit_releases(&self) -> &[PermitRelease] {
        &self.permit_releases
    }
}

fn invalid(problem: &str) -> CallError {
    CallError::new(CallErrorKind::Invalid, problem)
}

/// Returns the token of the permit that a descriptor releases. Only a refund, which the caller configures, releases a
/// permit: a client that chooses the value of another entry cannot exempt its descriptor from the limits.
fn permit_to_release(descriptor: &RateLimitDescriptor) -> Option<String> {
    let mut entries = descriptor.entries.iter().filter(|_| descriptor.is_negative_hits);
    let permit = entries.find(|entry| entry.key == PERMIT_ENTRY_KEY)?;
    Some(String::from_utf8_lossy(&permit.value).into_owned())
}

impl ParsedDescriptor {
    /// Parses the descriptor at `index`. `cost` applies if the descriptor contains no cost.
    fn parse(
        index: usize,
        descriptor: RateLimitDescriptor,
        cost: DescriptorCost,
    ) -> Result<Self, CallError> {
        let mut bytes = Vec::new();
        let entries = descriptor.entries.into_iter().enumerate();
        let entries = entries.map(|(position, Entry { key, value })| {
            (
                decode_attribute_name(key),
                ByteString::try_from(value.clone()).unwrap_or_else(|_| {
                    let text = String::from_utf8_lossy(&value).into_owned();
                    bytes.push((position, value));
                    text.into()
                }),
            )
        });
        let mut entries: Vec<_> = entries.collect();
        append_numbers_to_repeated_names(&mut entries);
        Ok(Self {
            entries,
            bytes,
            cost: descriptor.hits_addend.map_or(cost, DescriptorCost::Descriptor),
            is_refund: descriptor.is_negative_hits,
            limit: descriptor.limit.map(|limit| parse_quota(index, limit)).transpose()?,
        })
    }

    fn to_descriptor(&self) -> Descriptor<'_> {
        let attributes = self.entries.iter().map(|(name, value)| (&**name, &**value));
        let mut descriptor = Descriptor::new(attributes).exact();
        descriptor = match self.cost {
            DescriptorCost::Default => descriptor,
            DescriptorCost::Message(units) => descriptor.with_hits_addend(units),
            DescriptorCost::Descriptor(units) => descriptor.with_hits_addend(units).consumed(),
        };
        for (position, bytes) in &self.bytes {
            descriptor = descriptor.with_bytes(&self.entries[*position].0, bytes);
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

/// Decodes an attribute name or a domain. A name that is too long or not UTF-8 is shortened to a prefix and a digest,
/// because no policy can contain such a name.
fn decode_attribute_name(bytes: Bytes) -> ByteString {
    match ByteString::try_from(bytes.clone()) {
        Ok(text) if text.len() <= MAX_VALUE_BYTES => text,
        Ok(text) => shorten_attribute_name(&text, &bytes).into(),
        Err(_) => shorten_attribute_name(&String::from_utf8_lossy(&bytes), &bytes).into(),
    }
}

fn shorten_attribute_name(text: &str, bytes: &[u8]) -> String {
    match Value::from_bytes(text, bytes) {
        Value::Shortened(value) => format!("{}({})", value.prefix(), value.digest()),
        other => other.to_string(),
    }
}

/// Renames entries with a repeated name, since each attribute name must occur once: the second entry `name` becomes
/// `name#2`, the third `name#3`. Skips a number if another entry already has the new name.
fn append_numbers_to_repeated_names(entries: &mut [(ByteString, ByteString)]) {
    let is_repeated = |(index, (key, _)): (usize, &(ByteString, ByteString))| {
        entries[..index].iter().any(|(other, _)| other == key)
    };
    if entries.len() <= MAX_ENTRIES_TO_COMPARE_PAIRWISE
        && !entries.iter().enumerate().any(is_repeated)
    {
        return;
    }
    // The last number of each key; 0 until the key occurs.
    let keys = entries.iter().map(|(key, _)| (key.clone(), 0));
    let mut last: HashMap<ByteString, usize> = keys.collect();
    for (key, _) in entries {
        let mut number = last.get(key).copied().unwrap_or_default() + 1;
        let mut numbered = key.clone();
        while number > 1 {
            numbered = format!("{key}#{number}").into();
            if !last.contains_key(&numbered) {
                break;
            }
            number += 1;
        }
        last.insert(std::mem::replace(key, numbered), number);
    }
}

/// Parses the limit in the descriptor at `index`.
fn parse_quota(index: usize, limit: RateLimitOverride) -> Result<Quota, CallError> {
    let RateLimitOverride { requests_per_unit, unit, unit_multiplier } = limit;
    let invalid = |problem: &str| invalid(&format!("descriptors[{index}].limit: {problem}"));
    let Some(window) = unit::time_unit_length(unit) else {
        return Err(invalid(&format!("unknown unit {unit}; send 1 (SECOND) to 7 (WEEK)")));
    };
    let units = unit_multiplier.unwrap_or(1);
    if units == 0 {
        return Err(invalid("unit_multiplier is 0; send at least 1, or omit it"));
    }
    let window = window.checked_mul(units).unwrap_or(Duration::MAX);
    Quota::new(requests_per_unit.into(), window).map_err(|error| invalid(&format!("{error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute_names_after_numbering(entries: &[(&str, &str)]) -> Vec<ByteString> {
        let entry = |(key, value): &(&str, &str)| ((*key).into(), (*value).into());
        let mut entries: Vec<_> = entries.iter().map(entry).collect();
        append_numbers_to_repeated_names(&mut entries);
        entries.into_iter().map(|(key, _)| key).collect()
    }

    #[test]
    fn repeated_attribute_names_are_numbered_in_order() {
        assert_eq!(attribute_names_after_numbering(&[("a", "1"), ("b", "2")]), ["a", "b"]);
        assert_eq!(
            attribute_names_after_numbering(&[
                ("a", "1"),
                ("b", "1"),
                ("a", "2"),
                ("a", "2"),
                ("b", "1")
            ]),
            ["a", "b", "a#2", "a#3", "b#2"]
        );
        assert_eq!(
            attribute_names_after_numbering(&[
                ("a#2", "1"),
                ("a", "1"),
                ("a", "2"),
                ("a", "3"),
                ("a#2", "2")
            ]),
            ["a#2", "a", "a#3", "a#4", "a#2#2"]
        );
        assert_eq!(
            attribute_names_after_numbering(&[("a", "1"), ("a", "2"), ("a#2", "1")]),
            ["a", "a#3", "a#2"]
        );
        let many = vec![("a", ""); 100_000];
        assert_eq!(attribute_names_after_numbering(&many).last().unwrap(), "a#100000");
    }

    fn request_with_descriptor(descriptor: RateLimitDescriptor) -> RateLimitRequest {
        RateLimitRequest { domain: "d".into(), descriptors: vec![descriptor], hits_addend: 0 }
    }

    #[test]
    fn limit_in_request_rejects_unknown_time_unit() {
        let limit = |requests_per_unit, unit| {
            let limit = RateLimitOverride { requests_per_unit, unit, unit_multiplier: None };
            let limit = Some(limit);
            ParsedMessage::parse(request_with_descriptor(RateLimitDescriptor {
                limit,
                ..Default::default()
            }))
            .map(|request| request.descriptors[0].limit)
        };
        let quota = |text: &str| Some(text.parse::<Quota>().unwrap());
        assert_eq!(limit(u32::MAX, 1).unwrap(), quota("4294967295/s"));
        assert_eq!(limit(7, 5).unwrap(), quota("7/30d"));
        assert_eq!(limit(7, 6).unwrap(), quota("7/365d"));
        assert_eq!(limit(0, 7).unwrap(), quota("0/w"));
        for unknown in [0, 8, -1] {
            let error = limit(1, unknown).err().unwrap().to_string();
            assert!(error.starts_with("descriptors[0].limit: unknown unit"), "{error}");
        }
    }

    #[test]
    fn unit_multiplier_multiplies_limit_window() {
        let limit = |unit, unit_multiplier| {
            let limit = RateLimitOverride { requests_per_unit: 10, unit, unit_multiplier };
            let descriptor = RateLimitDescriptor { limit: Some(limit), ..Default::default() };
            ParsedMessage::parse(request_with_descriptor(descriptor))
                .map(|request| request.descriptors[0].limit)
        };
        let quota = |text: &str| Some(text.parse::<Quota>().unwrap());
        assert_eq!(limit(1, Some(30)).unwrap(), quota("10/30s"));
        assert_eq!(limit(3, Some(1)).unwrap(), quota("10/h"));
        for (unit, units, expected) in
            [(1, 0, "unit_multiplier is 0"), (6, u32::MAX, "descriptors[0].limit: ")]
        {
            let error = limit(unit, Some(units)).err().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn descriptor_hits_addend_overrides_request_hits_addend() {
        let cost = |request: u32, descriptor: Option<u64>| {
            let descriptor = RateLimitDescriptor { hits_addend: descriptor, ..Default::default() };
            let message =
                RateLimitRequest { hits_addend: request, ..request_with_descriptor(descriptor) };
            ParsedMessage::parse(message).unwrap().descriptors[0].cost
        };
        use DescriptorCost::{Default as NoCost, Descriptor, Message};
        assert_eq!(cost(0, None), NoCost);
        assert_eq!(cost(5, None), Message(5));
        assert_eq!(cost(5, Some(0)), Descriptor(0));
        assert_eq!(cost(0, Some(7)), Descriptor(7));
    }
}

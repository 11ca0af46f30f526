//! The attributes that a rule counts by (`per`), and the values of these attributes, which identify a counter.

use std::fmt;
use std::net::IpAddr;

use ipnet::Ipv6Net;
use smallvec::SmallVec;

use super::attributes::DescriptorAttributes;
use crate::key::Value;
use crate::network::parse_address;

/// The `per` of a rule: the attributes by which the rule counts.
///
/// Each entry contributes one value to the key of a counter: the value of the first attribute in the entry that is
/// present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Per {
    /// The entries, in the order of the file. The entry `a|b` has two names.
    entries: Box<[AttributeAlternatives]>,
    ipv6_prefix: u8,
}

/// One entry of `per`: alternative attribute names, such as `api_key|ip`. The first of these attributes that is present
/// in the request is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttributeAlternatives(Box<[Box<str>]>);

/// The values that identify the counter of a request: one value for each entry of the `per` of the rule.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyIdentity<'r> {
    pub(crate) values: SmallVec<[Value<'r>; 2]>,
    /// The attribute names that provided the values, as an index into [`Per::attribute_name_combinations`].
    pub(crate) combination: u16,
    /// Index of the sub-key, one of the Redis keys over which a counter is split; `None` if the rule does not split its
    /// counters.
    pub(crate) part: Option<u16>,
}

impl AttributeAlternatives {
    /// Returns the attribute names of the entry. The first name whose attribute is present is used.
    pub fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.0.iter().map(|name| &**name)
    }
}

/// Formats the names separated by `|`, such as `api_key|ip`.
impl fmt::Display for AttributeAlternatives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("|"))
    }
}

impl Per {
    /// Creates a [`Per`] from its entries. Each entry is a list of alternative attribute names, and a combination takes
    /// one name from each entry. The number of combinations must fit in a `u16`.
    pub(crate) fn new(entries: Vec<Vec<Box<str>>>, ipv6_prefix: u8) -> Self {
        let entries = entries.into_iter().map(|names| AttributeAlternatives(names.into()));
        Self { entries: entries.collect(), ipv6_prefix }
    }

    /// Returns the entries, in the order of the file. Without entries, all requests share one counter.
    pub fn entries(&self) -> &[AttributeAlternatives] {
        &self.entries
    }

    /// Returns the prefix length of IPv6 addresses, in bits. Addresses with the same prefix share a counter, since a
    /// client usually controls all of them.
    pub fn ipv6_prefix(&self) -> u8 {
        self.ipv6_prefix
    }

    /// Returns every combination of attribute names that takes one name from each entry. The index of a combination is
    /// its [`KeyIdentity::combination`].
    pub(crate) fn attribute_name_combinations(&self) -> Vec<Vec<&str>> {
        self.entries.iter().fold(vec![Vec::new()], |combinations, alternatives| {
            let extend = |names: &Vec<_>| {
                let names = names.clone();
                alternatives.names().map(move |name| [&names[..], &[name]].concat())
            };
            combinations.iter().flat_map(extend).collect()
        })
    }

    /// Appends the values that identify the counter of a descriptor with these attributes to the empty `identity`. The
    /// identity is large, so it is filled in place: a return value would be copied.
    ///
    /// # Errors
    /// Returns the first entry of `per` of which no attribute is present. `identity` then has some of the values.
    pub(crate) fn fill_key_identity<'r>(
        &'r self,
        attributes: &DescriptorAttributes<'r, '_>,
        identity: &mut KeyIdentity<'r>,
    ) -> Result<(), &'r AttributeAlternatives> {
        for alternatives in &self.entries {
            let mut present = (0..)
                .zip(&alternatives.0)
                .filter_map(|(index, name)| Some((index, &**name, attributes.get(name)?)));
            let (index, name, text): (u16, _, _) = present.next().ok_or(alternatives)?;
            identity.combination = identity.combination * alternatives.0.len() as u16 + index;
            let shortened = attributes.shorten_for_key(name, text);
            identity.values.push(shortened.unwrap_or_else(|| self.to_identity_value(text)));
        }
        Ok(())
    }

    /// Returns the values of all attributes of a descriptor as the identity of its counter. Ignores the entries of
    /// `per`.
    pub(crate) fn identify_by_all_attributes<'r>(
        &self,
        attributes: &DescriptorAttributes<'r, '_>,
    ) -> KeyIdentity<'r> {
        let value = |(name, text)| {
            attributes.shorten_for_key(name, text).unwrap_or_else(|| self.to_identity_value(text))
        };
        let values = attributes.pairs.iter().copied().map(value).collect();
        KeyIdentity { values, ..KeyIdentity::default() }
    }

    fn to_identity_value<'r>(&self, text: &'r str) -> Value<'r> {
        // Most values are not addresses. The first group of an IPv6 address has at most four digits.
        let may_be_ipv6 = text.bytes().take(5).any(|byte| byte == b':');
        if may_be_ipv6 { self.address_to_identity_value(text) } else { Value::Text(text) }
    }

    /// Returns the key value of an attribute text that may be an address in IPv6 notation: the network of an IPv6
    /// address, an IPv4 address, or the unchanged text.
    fn address_to_identity_value<'r>(&self, text: &'r str) -> Value<'r> {
        // An IPv6 address has several spellings, and a client has very many addresses, so the key contains only the
        // network.
        match parse_address(text) {
            Some(IpAddr::V6(address)) => match Ipv6Net::new(address, self.ipv6_prefix) {
                Ok(network) => {
                    Value::Network { address: network.network(), prefix_bits: network.prefix_len() }
                }
                Err(_) => Value::Text(text),
            },
            // An IPv4-mapped IPv6 address such as `::ffff:192.0.2.7` shares the counter of 192.0.2.7, the same client.
            Some(IpAddr::V4(address)) => Value::Ipv4(address),
            None => Value::Text(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::network::tests::{address_spellings, arbitrary_ipv6_address};

    proptest! {
        /// Otherwise a client could get a counter for each spelling, or for each address of its network.
        #[test]
        fn every_spelling_of_ipv6_address_is_counted_as_address(ip in arbitrary_ipv6_address()) {
            let per = Per { entries: [].into(), ipv6_prefix: 64 };
            let expected = match ip.to_ipv4_mapped() {
                Some(address) => Value::Ipv4(address),
                None => {
                    let network = Ipv6Net::new(ip, 64).unwrap().network();
                    Value::Network { address: network, prefix_bits: 64 }
                }
            };
            for text in address_spellings(ip) {
                prop_assert_eq!(per.to_identity_value(&text), expected, "{}", text);
            }
        }
    }
}

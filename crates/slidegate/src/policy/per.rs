//! The attributes that a rule counts by (`per`), and the values that identify a key.

use std::fmt;
use std::net::IpAddr;

use ipnet::Ipv6Net;
use smallvec::SmallVec;

use super::Attributes;
use crate::key::Value;
use crate::network::parse_address;

/// The `per` of a rule: the attributes that it counts by. Each entry contributes the value of its first attribute that
/// is present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Per {
    /// One item for each entry; `a|b` has two names.
    entries: Box<[Alternatives]>,
    ipv6_prefix: u8,
}

/// One entry of `per`: alternative attribute names. The first attribute that is present is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alternatives(Box<[Box<str>]>);

/// The values that identify the key of a request: one for each entry of `per`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Identity<'r> {
    pub(crate) values: SmallVec<[Value<'r>; 2]>,
    /// Index of the combination of attribute names that provided the values, as in [`Per::combinations`].
    pub(crate) combination: u16,
    /// Index of the sub-key, if the rule splits its counters.
    pub(crate) part: Option<u16>,
}

impl Alternatives {
    /// Returns the names, in the order in which they are tried.
    pub fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.0.iter().map(|name| &**name)
    }
}

/// Formats as `api_key|ip`.
impl fmt::Display for Alternatives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("|"))
    }
}

impl Per {
    /// Creates a `per` with one counter for each combination of values. The number of combinations of *names* must fit
    /// in a `u16`.
    pub(crate) fn new(entries: Vec<Vec<Box<str>>>, ipv6_prefix: u8) -> Self {
        let entries = entries.into_iter().map(|names| Alternatives(names.into()));
        Self { entries: entries.collect(), ipv6_prefix }
    }

    /// Returns the entries, in the order of the file; empty if all requests share one counter.
    pub fn entries(&self) -> &[Alternatives] {
        &self.entries
    }

    /// Returns the prefix length by which IPv6 addresses are counted: a client usually controls all addresses with the
    /// same prefix.
    pub fn ipv6_prefix(&self) -> u8 {
        self.ipv6_prefix
    }

    /// Returns the names of every combination, in the order of [`Identity::combination`].
    pub(crate) fn combinations(&self) -> Vec<Vec<&str>> {
        self.entries.iter().fold(vec![Vec::new()], |combinations, alternatives| {
            let extend = |names: &Vec<_>| {
                let names = names.clone();
                alternatives.names().map(move |name| [&names[..], &[name]].concat())
            };
            combinations.iter().flat_map(extend).collect()
        })
    }

    /// Returns the values that identify the key of these attributes, or the first entry without a present attribute.
    pub(crate) fn identify<'r>(
        &'r self,
        attributes: &Attributes<'r, '_>,
    ) -> Result<Identity<'r>, &'r Alternatives> {
        let mut identity = Identity::default();
        for alternatives in &self.entries {
            let mut present = (0..)
                .zip(&alternatives.0)
                .filter_map(|(index, name)| Some((index, &**name, attributes.get(name)?)));
            let (index, name, text): (u16, _, _) = present.next().ok_or(alternatives)?;
            identity.combination = identity.combination * alternatives.0.len() as u16 + index;
            let shortened = attributes.shorten(name, text);
            identity.values.push(shortened.unwrap_or_else(|| self.key_value(text)));
        }
        Ok(identity)
    }

    /// Returns the values of all attributes, independent of the entries.
    pub(crate) fn identify_all<'r>(&self, attributes: &Attributes<'r, '_>) -> Identity<'r> {
        let value =
            |(name, text)| attributes.shorten(name, text).unwrap_or_else(|| self.key_value(text));
        let values = attributes.pairs.iter().copied().map(value).collect();
        Identity { values, ..Identity::default() }
    }

    fn key_value<'r>(&self, text: &'r str) -> Value<'r> {
        // An address has several spellings, and an IPv6 client has very many addresses.
        match parse_address(text).filter(|_| text.contains(':')) {
            Some(IpAddr::V6(address)) => match Ipv6Net::new(address, self.ipv6_prefix) {
                Ok(network) => Value::Network(network.trunc()),
                Err(_) => Value::Text(text),
            },
            // IPv4-mapped IPv6, `::ffff:192.0.2.7`: the same client as 192.0.2.7.
            Some(IpAddr::V4(address)) => Value::Ipv4(address),
            None => Value::Text(text),
        }
    }
}

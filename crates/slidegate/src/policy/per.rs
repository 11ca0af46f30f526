//! Whose counts: the values of the attributes that a rule counts per.

use std::fmt;
use std::net::IpAddr;

use ipnet::Ipv6Net;
use smallvec::SmallVec;

use super::Attributes;
use crate::key::Value;
use crate::network::parse_address;

/// What a rule counts per: for each of its entries the value of the first attribute that is present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Per {
    /// `a|b` is an entry of two names.
    entries: Box<[Alternatives]>,
    ipv6_prefix: u8,
}

/// One entry of `per`: the names of attributes, of which the first that is present counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alternatives(Box<[Box<str>]>);

/// Whose counts a request belongs to: a value for each entry of `per`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Identity<'r> {
    pub(crate) values: SmallVec<[Value<'r>; 2]>,
    /// Which of the combinations of names they came by.
    pub(crate) combination: u16,
    /// The sub-key, if the rule splits its counts.
    pub(crate) part: Option<u16>,
}

impl Alternatives {
    /// The names, in the order in which they are tried.
    pub fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.0.iter().map(|name| &**name)
    }
}

/// `api_key|ip`
impl fmt::Display for Alternatives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("|"))
    }
}

impl Per {
    /// A count for each combination of values. The number of combinations of *names* has to fit `u16`.
    pub(crate) fn new(entries: Vec<Vec<Box<str>>>, ipv6_prefix: u8) -> Self {
        let entries = entries.into_iter().map(|names| Alternatives(names.into()));
        Self { entries: entries.collect(), ipv6_prefix }
    }

    /// Its entries, in the order of the file; none, if all requests are counted as one.
    pub fn entries(&self) -> &[Alternatives] {
        &self.entries
    }

    /// Bits by which IPv6 addresses are counted: who holds one holds all that share them.
    pub fn ipv6_prefix(&self) -> u8 {
        self.ipv6_prefix
    }

    /// The names of every combination, in the order of [`Identity::combination`].
    pub(crate) fn combinations(&self) -> Vec<Vec<&str>> {
        self.entries.iter().fold(vec![Vec::new()], |before, alternatives| {
            let with = |names: &Vec<_>| {
                let names = names.clone();
                alternatives.names().map(move |name| [&names[..], &[name]].concat())
            };
            before.iter().flat_map(with).collect()
        })
    }

    /// Whose counts these attributes belong to, or the first entry of which none is present.
    pub(crate) fn identify<'r>(
        &'r self,
        attributes: &Attributes<'r, '_>,
    ) -> Result<Identity<'r>, &'r Alternatives> {
        let mut identity = Identity::default();
        for alternatives in &self.entries {
            let mut present = (0..)
                .zip(&alternatives.0)
                .filter_map(|(nth, name)| Some((nth, &**name, attributes.get(name)?)));
            let (nth, name, text): (u16, _, _) = present.next().ok_or(alternatives)?;
            identity.combination = identity.combination * alternatives.0.len() as u16 + nth;
            let shortened = attributes.shorten(name, text);
            identity.values.push(shortened.unwrap_or_else(|| self.value(text)));
        }
        Ok(identity)
    }

    /// Each attribute of a descriptor is counted apart, whatever the entries are.
    pub(crate) fn identify_all<'r>(&self, attributes: &Attributes<'r, '_>) -> Identity<'r> {
        let value =
            |(name, text)| attributes.shorten(name, text).unwrap_or_else(|| self.value(text));
        let values = attributes.own.iter().copied().map(value).collect();
        Identity { values, ..Identity::default() }
    }

    fn value<'r>(&self, text: &'r str) -> Value<'r> {
        // An address may be written in more than one way, and IPv6 gives each client very many.
        match parse_address(text).filter(|_| text.contains(':')) {
            Some(IpAddr::V6(address)) => match Ipv6Net::new(address, self.ipv6_prefix) {
                Ok(network) => Value::Network(network.trunc()),
                Err(_) => Value::Text(text),
            },
            // IPv4 within IPv6, `::ffff:192.0.2.7`: the same client as 192.0.2.7.
            Some(IpAddr::V4(address)) => Value::Ipv4(address),
            None => Value::Text(text),
        }
    }
}

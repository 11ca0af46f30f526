//! Reads `geo`: the values that nginx gives to the networks of clients.

use std::net::IpAddr;

use nginx_lint_parser::ast::{Block, Directive};
use slidegate::policy::Network;

use super::condition::ValueCondition;
use super::zone::read_words;

/// A `geo` block of the address of the client.
#[derive(Debug, Default)]
pub struct Geo {
    /// The value of each network. A client has the value of the smallest network that contains its address.
    networks: Vec<(Network, String)>,
    /// The value of every other address.
    default: String,
}

impl Geo {
    /// Reads a block.
    ///
    /// # Errors
    /// Returns the reason if a part of the block cannot be converted.
    pub fn read(block: &Block) -> Result<Self, String> {
        let mut geo = Self::default();
        for entry in block.directives() {
            geo.read_entry(entry)?;
        }
        Ok(geo)
    }

    fn read_entry(&mut self, entry: &Directive) -> Result<(), String> {
        let name = &*entry.name;
        match (name, &read_words(entry)[..]) {
            ("default", [value]) => self.default = value.clone(),
            ("ranges" | "proxy" | "proxy_recursive" | "include" | "delete", _) => {
                return Err(format!("`{name}` cannot be converted"));
            }
            (_, [value]) => {
                let network = name.parse::<Network>().map_err(|error| error.to_string())?;
                // As in nginx, the last value of a network counts.
                self.networks.retain(|(other, _)| *other != network);
                self.networks.push((network, value.clone()));
            }
            _ => return Err(format!("`{name}` cannot be converted")),
        }
        Ok(())
    }

    /// Returns the condition on the address of a client that has a key. `has_key` returns whether a value of the block
    /// results in a key. Returns `None` if every client has one.
    ///
    /// # Errors
    /// Returns the reason if a list of networks cannot express the condition.
    pub fn condition(
        &self,
        has_key: impl Fn(&str) -> bool,
    ) -> Result<Option<ValueCondition>, String> {
        let has_default_key = has_key(&self.default);
        let (mut listed, mut others) = (Vec::new(), Vec::new());
        for (network, value) in &self.networks {
            let list = if has_key(value) == has_default_key { &mut others } else { &mut listed };
            list.push(*network);
        }
        for inner in others {
            if let Some(outer) = listed.iter().find(|outer| contains_network(outer, &inner)) {
                let (inner, outer) = (format_network(&inner), format_network(outer));
                return Err(format!("a list of networks cannot except {inner} from {outer}"));
            }
        }
        if listed.is_empty() && !has_default_key {
            return Err("all keys are empty".to_owned());
        }
        let values: Vec<String> = listed.iter().map(format_network).collect();
        let condition = ValueCondition { values, is_negated: has_default_key };
        Ok((!listed.is_empty()).then_some(condition))
    }
}

/// Returns whether a network contains all addresses of another network.
fn contains_network(outer: &Network, inner: &Network) -> bool {
    let prefix_len = |network: &Network| {
        let text = network.to_string();
        text.split_once('/').and_then(|(_, len)| len.parse::<u8>().ok())
    };
    let text = inner.to_string();
    let first = text.split_once('/').and_then(|(address, _)| address.parse::<IpAddr>().ok());
    first.is_some_and(|first| outer.contains(first)) && prefix_len(outer) <= prefix_len(inner)
}

/// Returns a network as text, and a single address without the length of its prefix.
fn format_network(network: &Network) -> String {
    let text = network.to_string();
    let of_ipv4 = || text.strip_suffix("/32").filter(|address| !address.contains(':'));
    let single = text.strip_suffix("/128").or_else(of_ipv4);
    single.map_or_else(|| text.clone(), str::to_owned)
}

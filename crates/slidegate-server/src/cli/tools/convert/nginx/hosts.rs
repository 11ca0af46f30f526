//! The hosts that each server of nginx serves.
//!
//! nginx selects the server of a request by the host: by an exact name first, then by the longest name that begins with
//! `*`, then by the longest name that ends with `*`. The default server of the address and port serves all other hosts.
//! A policy does not see the address and port.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::condition::{ValueCondition, matches_pattern};
use super::servers::Server;
use crate::policy::ratelimit_config::Findings;

/// A `listen` directive of a server.
pub struct Listen {
    /// The address and port, such as `*:80`.
    pub address: String,
    pub is_default: bool,
}

/// The hosts that some servers serve.
#[derive(Debug, PartialEq, Eq)]
pub struct ServedHosts {
    /// The condition on `host`; `None` for every host.
    pub condition: Option<ValueCondition>,
    /// Names of other servers that are more specific than names of these servers.
    pub foreign: Vec<String>,
    /// Names of these servers that are more specific than names of other servers.
    pub own: Vec<String>,
}

impl Listen {
    /// Creates the `listen` of a server without such a directive.
    pub fn new_default() -> Self {
        Self { address: "*:80".to_owned(), is_default: false }
    }

    /// Reads the arguments of a `listen` directive. Different spellings of an address become one.
    pub fn from_words(words: &[String]) -> Option<Self> {
        let (address, parameters) = words.split_first()?;
        let port = address.rsplit(':').next().unwrap_or_default();
        let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let address = if address.starts_with("unix:") {
            address.clone()
        } else if is_port(address) {
            format!("*:{address}")
        } else if !address.contains(':') || address.ends_with(']') {
            format!("{address}:80")
        } else if address.starts_with("0.0.0.0:") {
            format!("*:{port}")
        } else {
            address.clone()
        };
        let is_default =
            parameters.iter().any(|word| word == "default_server" || word == "default");
        Some(Self { address, is_default })
    }
}

/// Sets the addresses for which each server is the default server: the server with `default_server`, or else the first.
pub fn set_default_addresses(servers: &mut [Server]) {
    let mut defaults = BTreeMap::new();
    for (index, server) in servers.iter().enumerate() {
        for Listen { address, is_default } in &server.listens {
            let order = (!is_default, server.include_order, index);
            let first = defaults.entry(address.clone()).or_insert(order);
            *first = order.min(*first);
        }
    }
    for (address, (.., index)) in defaults {
        servers[index].default_addresses.push(address);
    }
}

impl ServedHosts {
    /// Returns the hosts that the servers of a group serve, which are some of all servers.
    pub fn for_group(group: &[&Server], servers: &[Server]) -> Self {
        let mut names = distinct_hosts(group.iter().copied());
        let mut others = distinct_hosts(servers.iter());
        others.retain(|name| !names.contains(name));
        let every_host = Self { condition: None, foreign: Vec::new(), own: Vec::new() };
        if group.iter().any(|server| server.hosts.is_empty() && !server.is_default()) {
            return every_host;
        }
        if group.iter().any(|server| server.is_default()) {
            names.retain(|name| others.iter().any(|other| is_preferred(name, other)));
            if names.is_empty() {
                let condition = (!others.is_empty()).then(|| ValueCondition::none_of(others));
                return Self { condition, ..every_host };
            }
            return Self { condition: None, foreign: others, own: names };
        }
        others.retain(|other| names.iter().any(|name| is_preferred(other, name)));
        let mut own = names.clone();
        own.retain(|name| others.iter().any(|other| is_preferred(name, other)));
        Self { condition: Some(ValueCondition::any_of(names)), foreign: others, own }
    }
}

fn distinct_hosts<'s>(servers: impl Iterator<Item = &'s Server>) -> Vec<String> {
    let mut hosts: Vec<String> = Vec::new();
    for host in servers.flat_map(|server| &server.hosts) {
        if !hosts.contains(host) {
            hosts.push(host.clone());
        }
    }
    hosts
}

/// Returns whether nginx prefers a name to another name, which is a pattern, for the hosts that both match.
fn is_preferred(name: &str, pattern: &str) -> bool {
    // Exact names come first, then patterns that begin with `*`; longer patterns come before shorter ones.
    let order = |name: &str| (name.contains('*'), name.ends_with('*'), Reverse(name.len()));
    let Some((start, end)) = pattern.split_once('*') else { return false };
    let may_overlap = match name.split_once('*') {
        Some((other_start, other_end)) => {
            (start.starts_with(other_start) || other_start.starts_with(start))
                && (end.ends_with(other_end) || other_end.ends_with(end))
        }
        None => matches_pattern(pattern, name),
    };
    may_overlap && order(name) < order(pattern)
}

/// Adds notes about servers that no request reaches, and about limits that depend on the address and port.
pub fn note_address_differences(servers: &[Server], findings: &mut Findings) {
    for server in servers.iter().filter(|server| server.has_limits()) {
        if !server.is_reachable() {
            let message = "the limits of this server were not converted: it has no name and is not a default server, so nginx selects it only for requests without a host";
            findings.push_note(&server.path, server.position, message);
        }
        let hosts = hosts_of_other_addresses(server, servers);
        if !hosts.is_empty() {
            let message = format!(
                "this server is the default of an address where no server is named {}: nginx applies its limits there; the policy applies only the limits of the servers with these names; to be stricter, remove the names from `not`",
                hosts.join(", ")
            );
            findings.push_note(&server.path, server.position, message);
        }
    }
    let mut defaults = servers.iter().filter(|server| server.is_default() && server.has_limits());
    if let Some(first) = defaults.next()
        && let Some(other) = defaults.find(|other| !other.has_same_limits(first))
    {
        let message = "the default servers of several addresses have different limits: nginx applies the limits of one of them to a request for an unknown host; the policy applies the limits of all of them, which is stricter";
        findings.push_note(&other.path, other.position, message);
    }
}

/// Returns the names of servers with other limits that a default server serves at an address where they do not listen.
fn hosts_of_other_addresses(server: &Server, servers: &[Server]) -> Vec<String> {
    let different = servers.iter().filter(|other| !other.has_same_limits(server));
    let mut hosts = distinct_hosts(different);
    hosts.retain(|host| {
        !server.hosts.contains(host)
            && server.default_addresses.iter().any(|address| {
                let mut there = servers.iter().filter(|other| other.listens_on(address));
                !there.any(|other| other.hosts.contains(host))
            })
    });
    hosts
}

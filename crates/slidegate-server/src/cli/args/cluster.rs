//! The flags of a cluster node: addresses, seeds, replication and credentials.

mod credentials;

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

pub use self::credentials::ClusterCredentialArgs;

use super::value_parsers::DurationRange;
use crate::boot::listen::{ListenAddress, split_host_and_port};

/// The flags of a cluster node.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Cluster (--store cluster://)")]
pub struct ClusterArgs {
    /// Address on which this node listens for other nodes, over TCP
    ///
    /// An address that other machines can reach requires a cluster key or certificates. Port 0 selects a free port. A host name is
    /// resolved at start, and the first of its addresses that belongs to this machine is used.
    #[arg(
        long,
        value_name = "HOST:PORT",
        env = "SLIDEGATE_CLUSTER_LISTEN",
        default_value = "127.0.0.1:7946"
    )]
    pub cluster_listen: ListenAddress,

    /// Address at which other nodes reach this node, if it differs from --cluster-listen
    ///
    /// Port 0 means the port of --cluster-listen. If neither address names one machine, the local address of the
    /// connection to the first seed is used.
    #[arg(
        long,
        value_name = "IP:PORT",
        env = "SLIDEGATE_CLUSTER_ADVERTISE",
        value_parser = parse_advertised_address
    )]
    pub cluster_advertise: Option<SocketAddr>,

    /// Addresses of other nodes, separated by commas
    ///
    /// Some of the nodes suffice, the list may contain this node, and all addresses of a host name are tried.
    #[arg(
        long,
        value_name = "HOST:PORT,…",
        env = "SLIDEGATE_CLUSTER_SEEDS",
        default_value = "",
        hide_default_value = true
    )]
    pub cluster_seeds: SeedList,

    /// Name of this node in the cluster, by default its address
    ///
    /// The name is unique in the cluster, and the same after a restart.
    #[arg(long, value_name = "NAME", env = "SLIDEGATE_CLUSTER_NODE_NAME", value_parser = parse_node_name)]
    pub cluster_node_name: Option<String>,

    /// Interval at which nodes replicate their counters, from 10ms to 10s
    #[arg(
        long,
        value_name = "DURATION",
        env = "SLIDEGATE_CLUSTER_SYNC_INTERVAL",
        default_value = "250ms",
        value_parser = parse_replication_interval
    )]
    pub cluster_sync_interval: Duration,

    /// Maximum wait for acknowledgements when a key has reached max_unsynced, from 0ms to 1s
    ///
    /// Then the request is denied; 0ms denies immediately.
    #[arg(
        long,
        value_name = "DURATION",
        env = "SLIDEGATE_CLUSTER_SYNC_WAIT",
        default_value = "20ms",
        value_parser = parse_acknowledgement_wait
    )]
    pub cluster_sync_wait: Duration,

    /// Maximum difference between the clocks of two nodes, from 0s to 1m
    ///
    /// A node whose clock differs more counts as silent. Counters are kept longer by this duration.
    #[arg(
        long,
        value_name = "DURATION",
        env = "SLIDEGATE_CLUSTER_MAX_CLOCK_SKEW",
        default_value = "2s",
        value_parser = parse_max_clock_skew
    )]
    pub cluster_max_clock_skew: Duration,

    #[command(flatten)]
    pub credentials: ClusterCredentialArgs,
}

/// A secret as given on the command line or in the environment. The module `settings` validates it, because an error of
/// the argument parser would quote the secret.
#[derive(Clone)]
pub struct SecretArg(pub String);

impl FromStr for SecretArg {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for SecretArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// The addresses of other nodes, each a host with a port. The list is empty by default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeedList(pub Vec<String>);

/// The error for an entry of the list of seeds that is not a host with a port.
#[derive(Debug, PartialEq, Eq, Error)]
#[error(
    "`{0}` is not a host with a port; write HOST:PORT, for example slidegate-nodes:7946,192.0.2.7:7946,[2001:db8::7]:7946, separated by commas"
)]
pub struct SeedListError(String);

impl FromStr for SeedList {
    type Err = SeedListError;

    fn from_str(text: &str) -> Result<Self, SeedListError> {
        if text.trim().is_empty() {
            return Ok(Self(Vec::new()));
        }
        let seeds = text.split(',').map(str::trim).map(|seed| {
            if is_host_with_port(seed) {
                Ok(seed.to_owned())
            } else {
                Err(SeedListError(seed.to_owned()))
            }
        });
        seeds.collect::<Result<_, _>>().map(Self)
    }
}

fn is_host_with_port(text: &str) -> bool {
    split_host_and_port(text).is_some_and(|(_, port)| port > 0)
}

fn parse_advertised_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "write IP:PORT, for example 192.0.2.11:7946".to_owned())
}

/// The maximum length of a node name in bytes. Messages to other nodes contain the name.
const MAX_NODE_NAME_BYTES: usize = 64;

/// Parses a node name: printable ASCII without spaces, since the name is part of logs and JSON.
fn parse_node_name(text: &str) -> Result<String, String> {
    if (1..=MAX_NODE_NAME_BYTES).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_graphic())
    {
        return Ok(text.to_owned());
    }
    Err(format!("use 1 to {MAX_NODE_NAME_BYTES} printable ASCII characters without spaces"))
}

fn parse_replication_interval(text: &str) -> Result<Duration, String> {
    let (min, max) = (Duration::from_millis(10), Duration::from_secs(10));
    DurationRange { min, max, example: "250ms" }.parse(text)
}

fn parse_acknowledgement_wait(text: &str) -> Result<Duration, String> {
    let max = Duration::from_secs(1);
    DurationRange { min: Duration::ZERO, max, example: "20ms" }.parse(text)
}

fn parse_max_clock_skew(text: &str) -> Result<Duration, String> {
    let max = Duration::from_secs(60);
    DurationRange { min: Duration::ZERO, max, example: "2s" }.parse(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_list_requires_hosts_with_ports() {
        for (text, seeds) in [
            ("", &[][..]),
            (" ", &[]),
            ("a:1", &["a:1"]),
            ("slidegate-nodes.prod_1:7946", &["slidegate-nodes.prod_1:7946"]),
            ("192.0.2.7:7946, [2001:db8::7]:65535", &["192.0.2.7:7946", "[2001:db8::7]:65535"]),
        ] {
            let seeds = seeds.iter().map(|seed| (*seed).to_owned()).collect();
            assert_eq!(text.parse(), Ok(SeedList(seeds)), "{text}");
        }
        for invalid in [
            "a",
            "a:",
            ":1",
            "a:0",
            "a:65536",
            "a:+1",
            "2001:db8::7:7946",
            "[::1]",
            "[::1]:0",
            "a b:1",
            "http://a:1",
            "a/b:1",
        ] {
            assert_eq!(invalid.parse::<SeedList>(), Err(SeedListError(invalid.to_owned())));
        }
        for (invalid, entry) in [("a:1,b", "b"), ("a:1,", ""), (",", "")] {
            assert_eq!(
                invalid.parse::<SeedList>(),
                Err(SeedListError(entry.to_owned())),
                "{invalid}"
            );
        }
    }

    #[test]
    fn cluster_durations_have_documented_bounds() {
        let ms = |ms| Some(Duration::from_millis(ms));
        for (text, interval, wait, skew) in [
            ("0ms", None, ms(0), ms(0)),
            ("9ms", None, ms(9), ms(9)),
            ("10ms", ms(10), ms(10), ms(10)),
            ("1s", ms(1_000), ms(1_000), ms(1_000)),
            ("1001ms", ms(1_001), None, ms(1_001)),
            ("10s", ms(10_000), None, ms(10_000)),
            ("11s", None, None, ms(11_000)),
            ("60s", None, None, ms(60_000)),
            ("61s", None, None, None),
            ("1m", None, None, ms(60_000)),
            ("", None, None, None),
        ] {
            let parsed = (
                parse_replication_interval(text).ok(),
                parse_acknowledgement_wait(text).ok(),
                parse_max_clock_skew(text).ok(),
            );
            assert_eq!(parsed, (interval, wait, skew), "{text}");
        }
    }

    #[test]
    fn node_name_must_be_printable_ascii() {
        for valid in ["a", "slidegate-0", "192.0.2.7:7946", "[::1]:1", &"x".repeat(64)] {
            assert_eq!(parse_node_name(valid).as_deref(), Ok(valid));
        }
        for invalid in ["", "a b", "a\n", "ä", "\u{1b}[2J", &"x".repeat(65)] {
            assert!(parse_node_name(invalid).is_err(), "{invalid}");
        }
    }
}

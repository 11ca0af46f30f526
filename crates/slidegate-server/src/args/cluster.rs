//! How nodes of a cluster find each other, and how often they tell what they have counted.

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

use super::span::span;

/// How nodes of a cluster find each other, and how often they tell what they have counted.
#[derive(Debug, clap::Args)]
pub struct ClusterArgs {
    /// For cluster://: where other nodes reach this one, by TCP and by UDP. Where others than this machine can,
    /// nodes need a key; port 0 takes a free port
    #[arg(
        long,
        value_name = "IP:PORT",
        env = "SLIDEGATE_CLUSTER_LISTEN",
        default_value = "127.0.0.1:7946"
    )]
    pub cluster_listen: SocketAddr,

    /// What to tell other nodes instead of --cluster-listen, where that is not the way here; port 0 stands for its port.
    /// If neither names one machine, the address by which the first seed is reached is told
    #[arg(long, value_name = "IP:PORT", env = "SLIDEGATE_CLUSTER_ADVERTISE")]
    pub cluster_advertise: Option<SocketAddr>,

    /// Where other nodes may be, with commas between: some of them are enough, this one may be among them, and
    /// all addresses of a name are asked
    #[arg(
        long,
        value_name = "HOST:PORT,…",
        env = "SLIDEGATE_CLUSTER_SEEDS",
        default_value = "",
        hide_default_value = true
    )]
    pub cluster_seeds: Seeds,

    /// What the others call this node, also after a restart; no other may be called so. Without it, its address
    #[arg(long, value_name = "NAME", env = "SLIDEGATE_CLUSTER_NODE_NAME", value_parser = cluster_node_name)]
    pub cluster_node_name: Option<String>,

    /// How often nodes tell each other what they have counted, such as 50ms or 1s
    #[arg(
        long,
        value_name = "SPAN",
        env = "SLIDEGATE_CLUSTER_SYNC_INTERVAL",
        default_value = "250ms",
        value_parser = cluster_sync_interval
    )]
    pub cluster_sync_interval: Duration,

    /// How long a request may wait for other nodes where too much was let pass that they do not know of; then it
    /// is denied. 0ms waits for none
    #[arg(
        long,
        value_name = "SPAN",
        env = "SLIDEGATE_CLUSTER_SYNC_WAIT",
        default_value = "20ms",
        value_parser = cluster_sync_wait
    )]
    pub cluster_sync_wait: Duration,

    /// How far the clocks of nodes may be apart: so much longer they keep what was counted
    #[arg(
        long,
        value_name = "SPAN",
        env = "SLIDEGATE_CLUSTER_MAX_CLOCK_SKEW",
        default_value = "2s",
        value_parser = cluster_max_clock_skew
    )]
    pub cluster_max_clock_skew: Duration,

    // What a variable holds would stand in the help.
    /// What all nodes of the cluster know and nobody else: any text of 16 bytes or more. Give it by the
    /// environment, or in a file: every user of the machine can read a command line
    #[arg(long, value_name = "TEXT", env = "SLIDEGATE_CLUSTER_KEY", hide_env_values = true)]
    pub cluster_key: Option<KeyText>,

    /// A file with the key instead; a line break at its end is not part of it
    #[arg(long, value_name = "FILE", env = "SLIDEGATE_CLUSTER_KEY_FILE")]
    pub cluster_key_file: Option<PathBuf>,
}

/// What is said of the key. It is a secret, so it is judged only where an error does not quote it.
#[derive(Clone)]
pub struct KeyText(pub String);

impl FromStr for KeyText {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for KeyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// Hosts with ports; none, if nothing is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seeds(pub Vec<String>);

/// Why a text names no nodes.
#[derive(Debug, PartialEq, Eq, Error)]
#[error(
    "`{0}` is no host with a port: write slidegate-nodes:7946, 192.0.2.7:7946 or [2001:db8::7]:7946, with commas between"
)]
pub struct SeedsError(String);

impl FromStr for Seeds {
    type Err = SeedsError;

    fn from_str(text: &str) -> Result<Self, SeedsError> {
        if text.trim().is_empty() {
            return Ok(Self(Vec::new()));
        }
        let cluster_seeds = text.split(',').map(str::trim);
        let cluster_seeds = cluster_seeds.map(|seed| match is_seed(seed) {
            true => Ok(seed.to_owned()),
            false => Err(SeedsError(seed.to_owned())),
        });
        cluster_seeds.collect::<Result<_, _>>().map(Self)
    }
}

fn is_seed(text: &str) -> bool {
    if text.starts_with('[') {
        return text.parse::<SocketAddr>().is_ok_and(|address| address.port() > 0);
    }
    let Some((host, port)) = text.split_once(':') else { return false };
    let of_name = |char: char| char.is_ascii_alphanumeric() || ".-_".contains(char);
    !host.is_empty()
        && host.chars().all(of_name)
        && port.bytes().all(|byte| byte.is_ascii_digit())
        && port.parse::<u16>().is_ok_and(|port| port > 0)
}

/// Bytes that a name may have: it stands in every datagram.
const MAX_NAME: usize = 64;

/// A name is told in logs and in JSON.
fn cluster_node_name(text: &str) -> Result<String, String> {
    if (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(text.to_owned());
    }
    Err(format!("use 1 to {MAX_NAME} printable ASCII characters, none of them a space"))
}

const INTERVALS: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(10)];
const MAX_WAIT: Duration = Duration::from_secs(1);
const MAX_SKEW: Duration = Duration::from_secs(60);

fn cluster_sync_interval(text: &str) -> Result<Duration, String> {
    let [least, most] = INTERVALS;
    let form = || "write it as 250ms or 1s, from 10ms to 10s".to_owned();
    span(text, most).filter(|span| *span >= least).ok_or_else(form)
}

fn cluster_sync_wait(text: &str) -> Result<Duration, String> {
    span(text, MAX_WAIT).ok_or_else(|| "write it as 20ms or 1s, from 0ms to 1s".to_owned())
}

fn cluster_max_clock_skew(text: &str) -> Result<Duration, String> {
    span(text, MAX_SKEW).ok_or_else(|| "write it as 500ms or 2s, from 0s to 60s".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_hosts_with_ports_and_commas_between() {
        for (text, cluster_seeds) in [
            ("", &[][..]),
            (" ", &[]),
            ("a:1", &["a:1"]),
            ("slidegate-nodes.prod_1:7946", &["slidegate-nodes.prod_1:7946"]),
            ("192.0.2.7:7946, [2001:db8::7]:65535", &["192.0.2.7:7946", "[2001:db8::7]:65535"]),
        ] {
            let cluster_seeds = cluster_seeds.iter().map(|seed| (*seed).to_owned()).collect();
            assert_eq!(text.parse(), Ok(Seeds(cluster_seeds)), "{text}");
        }
        for wrong in [
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
            assert_eq!(wrong.parse::<Seeds>(), Err(SeedsError(wrong.to_owned())));
        }
        for (wrong, told) in [("a:1,b", "b"), ("a:1,", ""), (",", "")] {
            assert_eq!(wrong.parse::<Seeds>(), Err(SeedsError(told.to_owned())), "{wrong}");
        }
    }

    #[test]
    fn spans_have_the_bounds_that_errors_tell() {
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
            ("1m", None, None, None),
            ("", None, None, None),
        ] {
            let parsed = (
                cluster_sync_interval(text).ok(),
                cluster_sync_wait(text).ok(),
                cluster_max_clock_skew(text).ok(),
            );
            assert_eq!(parsed, (interval, wait, skew), "{text}");
        }
    }

    #[test]
    fn a_name_can_be_told_on_one_line() {
        for right in ["a", "slidegate-0", "192.0.2.7:7946", "[::1]:1", &"x".repeat(64)] {
            assert_eq!(cluster_node_name(right).as_deref(), Ok(right));
        }
        for wrong in ["", "a b", "a\n", "ä", "\u{1b}[2J", &"x".repeat(65)] {
            assert!(cluster_node_name(wrong).is_err(), "{wrong}");
        }
    }
}

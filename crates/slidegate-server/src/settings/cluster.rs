//! What the arguments of a cluster mean.

use std::path::{Path, PathBuf};
use std::{fs, io};

use slidegate_cluster::{Settings, StartError};
use thiserror::Error;

use super::StoreBounds;
use crate::args::{ClusterArgs, KeyText};

/// Bytes that a key has at least.
const LEAST_KEY: usize = 16;

/// Why the arguments of a cluster mean nothing.
#[derive(Debug, Error)]
pub enum ClusterError {
    #[error(
        "--store (SLIDEGATE_STORE) `cluster://` has nothing behind it: give `{0}` by --cluster-seeds (SLIDEGATE_CLUSTER_SEEDS)"
    )]
    Nodes(String),
    #[error(
        "--cluster-key (SLIDEGATE_CLUSTER_KEY) and --cluster-key-file (SLIDEGATE_CLUSTER_KEY_FILE): give only one of them"
    )]
    TwoKeys,
    #[error("--cluster-key-file (SLIDEGATE_CLUSTER_KEY_FILE): `{0}` cannot be read: {1}")]
    KeyFile(PathBuf, io::Error),
    #[error(
        "{0}: a key has {LEAST_KEY} bytes or more, and this has {1}. 32 random ones are best: `openssl rand -hex 32` prints some"
    )]
    ShortKey(&'static str, usize),
    #[error(
        "--cluster-listen (SLIDEGATE_CLUSTER_LISTEN): {0}: give it by --cluster-key-file (SLIDEGATE_CLUSTER_KEY_FILE) or SLIDEGATE_CLUSTER_KEY"
    )]
    NoKey(StartError),
}

/// What a node is told to be, if the store's address is that of a cluster.
pub fn read(
    store: &str,
    args: ClusterArgs,
    bounds: StoreBounds,
) -> Option<Result<Settings, ClusterError>> {
    let nodes = store.strip_prefix("cluster://")?;
    Some(match nodes {
        "" => settings(args, bounds),
        nodes => Err(ClusterError::Nodes(nodes.to_owned())),
    })
}

fn settings(args: ClusterArgs, bounds: StoreBounds) -> Result<Settings, ClusterError> {
    let key = key(args.cluster_key, args.cluster_key_file.as_deref())?;
    if key.is_none() && !args.cluster_listen.ip().is_loopback() {
        return Err(ClusterError::NoKey(StartError::NoKey(args.cluster_listen)));
    }
    Ok(Settings {
        listen: args.cluster_listen,
        advertise: args.cluster_advertise,
        seeds: args.cluster_seeds.0,
        name: args.cluster_node_name,
        key,
        sync_interval: args.cluster_sync_interval,
        sync_wait: args.cluster_sync_wait,
        max_clock_skew: args.cluster_max_clock_skew,
        max_keys: bounds.max_keys,
        max_memory: bounds.max_memory,
    })
}

fn key(text: Option<KeyText>, file: Option<&Path>) -> Result<Option<String>, ClusterError> {
    let (key, flag) = match (text, file) {
        (Some(_), Some(_)) => return Err(ClusterError::TwoKeys),
        (Some(KeyText(key)), None) => (key, "--cluster-key (SLIDEGATE_CLUSTER_KEY)"),
        (None, Some(file)) => {
            let text = fs::read_to_string(file);
            let text = text.map_err(|error| ClusterError::KeyFile(file.to_owned(), error))?;
            // Editors and `echo` end a file so.
            let key = text.strip_suffix('\n').unwrap_or(&text);
            let key = key.strip_suffix('\r').unwrap_or(key).to_owned();
            (key, "--cluster-key-file (SLIDEGATE_CLUSTER_KEY_FILE)")
        }
        (None, None) => return Ok(None),
    };
    match key.len() {
        ..LEAST_KEY => Err(ClusterError::ShortKey(flag, key.len())),
        _ => Ok(Some(key)),
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _};

    use super::*;

    fn read(store: &str, words: &[&str]) -> Option<Result<Settings, String>> {
        let line = [&["serve"], words].concat();
        let matches = ClusterArgs::augment_args(Command::new("serve")).get_matches_from(line);
        let args = ClusterArgs::from_arg_matches(&matches).unwrap();
        let read = super::read(store, args, StoreBounds { max_keys: 7, max_memory: 9 })?;
        Some(read.map_err(|error| error.to_string()))
    }

    #[test]
    fn other_stores_are_no_cluster_and_nothing_is_said_of_their_flags() {
        for store in ["memory", "redis://h", "cluster", "cluster:", "redis+cluster://h"] {
            assert!(read(store, &["--cluster-key", "short"]).is_none(), "{store}");
        }
    }

    #[test]
    fn nodes_are_no_part_of_the_address() {
        let error = read("cluster://a:1,b:1", &[]).unwrap().unwrap_err();
        assert!(
            error.ends_with("give `a:1,b:1` by --cluster-seeds (SLIDEGATE_CLUSTER_SEEDS)"),
            "{error}"
        );
    }

    #[test]
    fn alone_it_is_a_node_of_this_machine() {
        let node = read("cluster://", &[]).unwrap().unwrap();
        assert_eq!(node.listen, "127.0.0.1:7946".parse().unwrap());
        assert!(
            node.seeds.is_empty()
                && node.key.is_none()
                && (node.max_keys, node.max_memory) == (7, 9)
        );
    }

    #[test]
    fn where_others_hear_it_a_node_needs_a_key() {
        for listen in ["0.0.0.0:1", "192.0.2.7:1", "[::]:1"] {
            let error = read("cluster://", &["--cluster-listen", listen]).unwrap().unwrap_err();
            assert!(error.starts_with(&format!(
                "--cluster-listen (SLIDEGATE_CLUSTER_LISTEN): to listen on {listen}"
            )));
            let key = ["--cluster-listen", listen, "--cluster-key", "sixteen letters."];
            assert!(read("cluster://", &key).unwrap().is_ok());
        }
        assert!(read("cluster://", &["--cluster-listen", "[::1]:1"]).unwrap().is_ok());
    }

    #[test]
    fn a_wrong_key_is_not_quoted() {
        for short in ["", "fifteen letters"] {
            let error = read("cluster://", &["--cluster-key", short]).unwrap().unwrap_err();
            assert!(error.starts_with("--cluster-key (SLIDEGATE_CLUSTER_KEY): a key has 16"));
            assert!(error.contains(&format!("this has {}", short.len())));
            assert!(!error.contains("letters"), "{error}");
        }
        let two = ["--cluster-key", "sixteen letters.", "--cluster-key-file", "f"];
        let error = read("cluster://", &two).unwrap().unwrap_err();
        assert!(error.contains("give only one of them") && !error.contains("letters"), "{error}");
    }
}

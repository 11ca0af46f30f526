//! The settings of a cluster node.

use slidegate_cluster::{Settings, StartError};
use thiserror::Error;

use super::secret::{SecretError, SecretFlags, read_secret};
use crate::args::ClusterArgs;
use crate::bounds::StoreBounds;
use crate::listen::{self, ListenError};

pub const CLUSTER_KEY_FLAGS: SecretFlags = SecretFlags {
    text: "--cluster-key (SLIDEGATE_CLUSTER_KEY)",
    file: "--cluster-key-file (SLIDEGATE_CLUSTER_KEY_FILE)",
};

/// An error in the arguments of a cluster node.
#[derive(Debug, Error)]
pub enum ClusterSettingsError {
    #[error(
        "--store (SLIDEGATE_STORE): `cluster://` must not have addresses; set `{0}` as --cluster-seeds (SLIDEGATE_CLUSTER_SEEDS)"
    )]
    AddressesInStore(String),
    #[error(transparent)]
    Key(#[from] SecretError),
    #[error(
        "--cluster-listen (SLIDEGATE_CLUSTER_LISTEN): {0}; set --cluster-key-file (SLIDEGATE_CLUSTER_KEY_FILE) or SLIDEGATE_CLUSTER_KEY"
    )]
    MissingKey(StartError),
    #[error(transparent)]
    Listen(#[from] ListenError),
}

/// Returns the settings of the node if the address of the store starts with `cluster://`. For other stores, returns
/// `None`. The arguments then have no cluster flags, since such flags are rejected earlier.
pub fn from_args(
    store: &str,
    args: ClusterArgs,
    bounds: StoreBounds,
) -> Option<Result<Settings, ClusterSettingsError>> {
    let addresses = store.strip_prefix("cluster://")?;
    Some(match addresses {
        "" => build_node_settings(args, bounds),
        addresses => Err(ClusterSettingsError::AddressesInStore(addresses.to_owned())),
    })
}

fn build_node_settings(
    args: ClusterArgs,
    bounds: StoreBounds,
) -> Result<Settings, ClusterSettingsError> {
    let key = args.cluster_key.map(|key| key.0);
    let key = read_secret(key, args.cluster_key_file.as_deref(), CLUSTER_KEY_FLAGS)?;
    let listen =
        listen::resolve_local(&args.cluster_listen, "--cluster-listen (SLIDEGATE_CLUSTER_LISTEN)")?;
    if key.is_none() && !listen.ip().is_loopback() {
        return Err(ClusterSettingsError::MissingKey(StartError::NoKey(listen)));
    }
    Ok(Settings {
        listen,
        advertise: args.cluster_advertise,
        seeds: args.cluster_seeds.0,
        name: args.cluster_node_name,
        key,
        sync_interval: args.cluster_sync_interval,
        sync_wait: args.cluster_sync_wait,
        max_clock_skew: args.cluster_max_clock_skew,
        max_keys: bounds.max_keys,
        max_memory: bounds.max_store_bytes(),
    })
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _};

    use super::*;

    /// Returns the settings for a store and the cluster flags of `slidegate serve`, with errors as text.
    fn parse_settings_from_flags(store: &str, flags: &[&str]) -> Option<Result<Settings, String>> {
        let arguments = [&["serve"], flags].concat();
        let matches = ClusterArgs::augment_args(Command::new("serve")).get_matches_from(arguments);
        let args = ClusterArgs::from_arg_matches(&matches).unwrap();
        let settings = from_args(
            store,
            args,
            StoreBounds { max_keys: 7, max_memory: 9, max_call_records: 5 },
        )?;
        Some(settings.map_err(|error| error.to_string()))
    }

    #[test]
    fn other_stores_have_no_cluster_settings() {
        for store in ["memory", "redis://h", "cluster", "cluster:", "redis+cluster://h"] {
            assert!(
                parse_settings_from_flags(store, &["--cluster-key", "short"]).is_none(),
                "{store}"
            );
        }
    }

    #[test]
    fn addresses_in_cluster_store_url_are_rejected() {
        let error = parse_settings_from_flags("cluster://a:1,b:1", &[]).unwrap().unwrap_err();
        assert!(
            error.ends_with("set `a:1,b:1` as --cluster-seeds (SLIDEGATE_CLUSTER_SEEDS)"),
            "{error}"
        );
    }

    #[test]
    fn cluster_node_without_key_listens_on_loopback() {
        let node = parse_settings_from_flags("cluster://", &[]).unwrap().unwrap();
        assert_eq!(node.listen, "127.0.0.1:7946".parse().unwrap());
        assert!(
            node.seeds.is_empty()
                && node.key.is_none()
                && (node.max_keys, node.max_memory) == (7, 9)
        );
    }

    #[test]
    fn public_cluster_listen_address_requires_key() {
        for listen in ["0.0.0.0:1", "192.0.2.7:1", "[::]:1"] {
            let error = parse_settings_from_flags("cluster://", &["--cluster-listen", listen])
                .unwrap()
                .unwrap_err();
            assert!(error.starts_with(&format!(
                "--cluster-listen (SLIDEGATE_CLUSTER_LISTEN): other machines can reach {listen}"
            )));
            let key = ["--cluster-listen", listen, "--cluster-key", "sixteen letters."];
            assert!(parse_settings_from_flags("cluster://", &key).unwrap().is_ok());
        }
        assert!(
            parse_settings_from_flags("cluster://", &["--cluster-listen", "[::1]:1"])
                .unwrap()
                .is_ok()
        );
    }

    #[test]
    fn invalid_cluster_key_error_omits_key() {
        for short in ["", "fifteen letters"] {
            let error = parse_settings_from_flags("cluster://", &["--cluster-key", short])
                .unwrap()
                .unwrap_err();
            assert!(error.starts_with("--cluster-key (SLIDEGATE_CLUSTER_KEY): the key has"));
            assert!(error.contains(&format!("has {} bytes and needs 16 bytes", short.len())));
            assert!(!error.contains("letters"), "{error}");
        }
        let both = ["--cluster-key", "sixteen letters.", "--cluster-key-file", "f"];
        let error = parse_settings_from_flags("cluster://", &both).unwrap().unwrap_err();
        assert!(error.contains("set only one of them") && !error.contains("letters"), "{error}");
    }
}

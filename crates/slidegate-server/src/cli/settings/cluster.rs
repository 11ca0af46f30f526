//! The settings of a cluster node.

use std::fmt;

use slidegate_cluster::credentials::MAX_SHARED_KEYS;
use slidegate_cluster::{ClusterSettings, Credentials, StartError};
use thiserror::Error;

use super::secret::{SecretError, SecretFlags, read_secret_file, read_secrets};
use crate::boot::listen::{self, ListenError};
use crate::boot::settings::NodeSettings;
use crate::bounds::StoreBounds;
use crate::cli::args::{ClusterArgs, ClusterCredentialArgs};
use crate::tls::{ClusterTls, TlsError, TlsFiles};

pub const CLUSTER_KEY_FLAGS: SecretFlags = SecretFlags {
    text: "--cluster-key (SLIDEGATE_CLUSTER_KEY)",
    file: "--cluster-key-file (SLIDEGATE_CLUSTER_KEY_FILE)",
};

pub const CLUSTER_SECRET_FLAG: &str = "--cluster-secret-file (SLIDEGATE_CLUSTER_SECRET_FILE)";

/// An error in the arguments of a cluster node.
#[derive(Debug, Error)]
pub enum ClusterSettingsError {
    #[error(
        "--store (SLIDEGATE_STORE): `cluster://` must not have addresses; set `{0}` as --cluster-seeds (SLIDEGATE_CLUSTER_SEEDS)"
    )]
    AddressesInStore(String),
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(
        "--cluster-tls-cert (SLIDEGATE_CLUSTER_TLS_CERT) and {key}: both are set; set only one of them, as on all other nodes"
    )]
    KeyAndCertificates { key: &'static str },
    #[error("{CLUSTER_SECRET_FLAG}: required with {0}; set a file with {remedy}", remedy = .0.remedy())]
    MissingSecret(SecretRequirement),
    #[error(
        "--cluster-listen (SLIDEGATE_CLUSTER_LISTEN): {0}; set --cluster-key-file (SLIDEGATE_CLUSTER_KEY_FILE), SLIDEGATE_CLUSTER_KEY, or --cluster-tls-cert (SLIDEGATE_CLUSTER_TLS_CERT)"
    )]
    MissingCredentials(StartError),
    #[error(transparent)]
    Listen(#[from] ListenError),
}

/// The kinds of credentials that require a separate secret, because they contain no single shared key from which it
/// could be taken.
#[derive(Clone, Copy, Debug)]
pub enum SecretRequirement {
    Certificates,
    TwoKeys,
}

impl SecretRequirement {
    fn remedy(self) -> &'static str {
        match self {
            Self::Certificates => {
                "a secret that is the same on all nodes: `openssl rand -hex 32` prints one"
            }
            Self::TwoKeys => "the key that the nodes had before the change",
        }
    }
}

impl fmt::Display for SecretRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Certificates => "certificates",
            Self::TwoKeys => "two cluster keys",
        })
    }
}

/// Returns the settings of the node if the address of the store starts with `cluster://`. For other stores, returns
/// `None`. The arguments then have no cluster flags, since such flags are rejected earlier.
pub fn from_args(
    store: &str,
    args: ClusterArgs,
    bounds: StoreBounds,
) -> Option<Result<NodeSettings, ClusterSettingsError>> {
    let addresses = store.strip_prefix("cluster://")?;
    Some(match addresses {
        "" => build_node_settings(args, bounds),
        addresses => Err(ClusterSettingsError::AddressesInStore(addresses.to_owned())),
    })
}

fn build_node_settings(
    args: ClusterArgs,
    bounds: StoreBounds,
) -> Result<NodeSettings, ClusterSettingsError> {
    let secret_file = args.credentials.cluster_secret_file.as_deref();
    let secret = secret_file.map(|path| read_secret_file(path, CLUSTER_SECRET_FLAG)).transpose()?;
    let (credentials, tls) = match load_certificates(&args.credentials)? {
        Some(tls) => (Some(Credentials::Certificates(tls.certificates())), Some(tls)),
        None => (read_cluster_keys(args.credentials)?.map(Credentials::Keys), None),
    };
    if let (None, Some(needs_secret)) = (&secret, credentials.as_ref().and_then(secret_requirement))
    {
        return Err(ClusterSettingsError::MissingSecret(needs_secret));
    }
    let listen =
        listen::resolve_local(&args.cluster_listen, "--cluster-listen (SLIDEGATE_CLUSTER_LISTEN)")?;
    if credentials.is_none() && !listen.ip().is_loopback() {
        return Err(ClusterSettingsError::MissingCredentials(StartError::NoCredentials(listen)));
    }
    let node = ClusterSettings {
        listen,
        advertise: args.cluster_advertise,
        seeds: args.cluster_seeds.0,
        name: args.cluster_node_name,
        credentials,
        secret,
        sync_interval: args.cluster_sync_interval,
        sync_wait: args.cluster_sync_wait,
        max_clock_skew: args.cluster_max_clock_skew,
        max_keys: bounds.max_keys,
        max_memory: bounds.max_store_bytes(),
    };
    Ok(NodeSettings { node, tls })
}

/// Returns the certificates of the node, or `None` if the arguments have no certificate files. The parser rejects
/// arguments that have only some of them.
fn load_certificates(
    args: &ClusterCredentialArgs,
) -> Result<Option<ClusterTls>, ClusterSettingsError> {
    let (Some(cert), Some(key), Some(ca)) =
        (&args.cluster_tls_cert, &args.cluster_tls_key, &args.cluster_tls_ca)
    else {
        return Ok(None);
    };
    let key_flag = match (&args.cluster_key, &args.cluster_key_file) {
        (Some(_), _) => Some(CLUSTER_KEY_FLAGS.text),
        (None, Some(_)) => Some(CLUSTER_KEY_FLAGS.file),
        (None, None) => None,
    };
    if let Some(key) = key_flag {
        return Err(ClusterSettingsError::KeyAndCertificates { key });
    }
    let files = TlsFiles::for_cluster_node(cert.clone(), key.clone(), ca.clone());
    Ok(Some(ClusterTls::load(files, &args.cluster_tls_name)?))
}

fn read_cluster_keys(args: ClusterCredentialArgs) -> Result<Option<Vec<String>>, SecretError> {
    let key = args.cluster_key.map(|key| key.0);
    let file = args.cluster_key_file.as_deref();
    let keys = read_secrets(key, file, CLUSTER_KEY_FLAGS, MAX_SHARED_KEYS)?;
    Ok((!keys.is_empty()).then_some(keys))
}

/// Returns the kind of credentials that requires a separate secret, or `None` if there is only one key, which is then
/// the secret.
fn secret_requirement(credentials: &Credentials) -> Option<SecretRequirement> {
    match credentials {
        Credentials::Certificates(_) => Some(SecretRequirement::Certificates),
        Credentials::Keys(keys) => (keys.len() > 1).then_some(SecretRequirement::TwoKeys),
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _};

    use super::*;

    /// Returns the settings for a store and the cluster flags of `slidegate serve`, with errors as text.
    fn parse_settings_from_flags(
        store: &str,
        flags: &[&str],
    ) -> Option<Result<NodeSettings, String>> {
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
    fn node_without_credentials_listens_on_loopback() {
        let NodeSettings { node, tls } =
            parse_settings_from_flags("cluster://", &[]).unwrap().unwrap();
        assert_eq!(node.listen, "127.0.0.1:7946".parse().unwrap());
        assert!(
            node.seeds.is_empty()
                && node.credentials.is_none()
                && tls.is_none()
                && (node.max_keys, node.max_memory) == (7, 9)
        );
    }

    #[test]
    fn public_cluster_listen_address_requires_credentials() {
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
            assert!(error.starts_with("--cluster-key (SLIDEGATE_CLUSTER_KEY): the secret has"));
            assert!(error.contains(&format!("has {} bytes and needs 16 bytes", short.len())));
            assert!(!error.contains("letters"), "{error}");
        }
        let both = ["--cluster-key", "sixteen letters.", "--cluster-key-file", "f"];
        let error = parse_settings_from_flags("cluster://", &both).unwrap().unwrap_err();
        assert!(error.contains("set only one of them") && !error.contains("letters"), "{error}");
    }
}

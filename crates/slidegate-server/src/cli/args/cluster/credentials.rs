//! The flags by which the nodes of a cluster authenticate each other: a shared key, or certificates.

use std::path::PathBuf;

use rustls::pki_types::DnsName;

use super::SecretArg;

/// The credentials of a cluster node.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Cluster (--store cluster://)")]
pub struct ClusterCredentialArgs {
    // The value of the variable is a secret, so the help does not print it.
    /// Secret that all nodes of the cluster share, any text of 16 bytes or more
    ///
    /// The nodes derive their certificates from it, and encrypt their connections. Set it in the environment or in a
    /// file: every user of the machine can read a command line.
    #[arg(long, value_name = "TEXT", env = "SLIDEGATE_CLUSTER_KEY", hide_env_values = true)]
    pub cluster_key: Option<SecretArg>,

    /// File with the cluster key, an alternative to --cluster-key
    ///
    /// A second line is a second key, to change the key of one node after the other: nodes trust each other if they have
    /// a key in common. Two keys require --cluster-secret-file.
    #[arg(long, value_name = "FILE", env = "SLIDEGATE_CLUSTER_KEY_FILE")]
    pub cluster_key_file: Option<PathBuf>,

    /// PEM file with the certificate chain of this node, an alternative to the cluster key
    ///
    /// The node's own certificate is first. The file is reloaded when it changes. Certificates require
    /// --cluster-secret-file.
    #[arg(
        long,
        value_name = "FILE",
        env = "SLIDEGATE_CLUSTER_TLS_CERT",
        requires_all = ["cluster_tls_key", "cluster_tls_ca"]
    )]
    pub cluster_tls_cert: Option<PathBuf>,

    /// PEM file with the private key of --cluster-tls-cert, reloaded when it changes
    #[arg(
        long,
        value_name = "FILE",
        env = "SLIDEGATE_CLUSTER_TLS_KEY",
        requires_all = ["cluster_tls_cert", "cluster_tls_ca"]
    )]
    pub cluster_tls_key: Option<PathBuf>,

    /// PEM file with the certificate authorities of the nodes, reloaded when it changes
    ///
    /// Nodes without a certificate from one of them are rejected.
    #[arg(
        long,
        value_name = "FILE",
        env = "SLIDEGATE_CLUSTER_TLS_CA",
        requires_all = ["cluster_tls_cert", "cluster_tls_key"]
    )]
    pub cluster_tls_ca: Option<PathBuf>,

    /// DNS name that the certificate of every node must have
    ///
    /// Certificates that the same authority has issued for other names are rejected.
    #[arg(
        long,
        value_name = "NAME",
        env = "SLIDEGATE_CLUSTER_TLS_NAME",
        default_value = slidegate_cluster::DEFAULT_CERTIFICATE_NAME,
        value_parser = parse_dns_name
    )]
    pub cluster_tls_name: String,

    /// File with the secret of key fingerprints and tokens, by default the cluster key
    ///
    /// 16 bytes or more, the same on all nodes. It stays the same when certificates or the cluster key change. A line
    /// break at its end is not part of the secret.
    #[arg(long, value_name = "FILE", env = "SLIDEGATE_CLUSTER_SECRET_FILE")]
    pub cluster_secret_file: Option<PathBuf>,
}

fn parse_dns_name(text: &str) -> Result<String, &'static str> {
    match DnsName::try_from(text) {
        Ok(name) => Ok(name.as_ref().to_owned()),
        Err(_) => Err("write a DNS name, for example slidegate-cluster"),
    }
}

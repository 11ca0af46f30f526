//! How clients are spoken to.

use std::path::PathBuf;

/// How clients are spoken to.
#[derive(Debug, clap::Args)]
pub struct TlsArgs {
    /// Serve HTTP and gRPC over TLS by this certificate, and those behind it in its chain: a PEM file, which is
    /// read again when it changes
    #[arg(long, value_name = "FILE", env = "SLIDEGATE_TLS_CERT", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// The private key of --tls-cert: a PEM file, which is read again when it changes
    #[arg(long, value_name = "FILE", env = "SLIDEGATE_TLS_KEY", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// Serve only clients that show a certificate of one of these authorities: a PEM file, which is read again
    /// when it changes
    #[arg(long, value_name = "FILE", env = "SLIDEGATE_TLS_CLIENT_CA", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,
}

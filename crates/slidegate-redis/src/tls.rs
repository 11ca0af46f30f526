//! The CA certificates that verify servers, and clients that use them. A client makes no connection when it is created.

use std::path::Path;

use redis::{Client, ConnectionAddr, ConnectionInfo, RedisResult, TlsCertificates};
use rustls::crypto::ring;

use crate::error::ConnectError;

/// The CA certificates that verify servers. `None` selects Mozilla's list of root certificates.
#[derive(Clone, Debug, Default)]
pub struct TlsRoots(Option<TlsCertificates>);

impl TlsRoots {
    /// Reads the certificates of a PEM file. `None` selects Mozilla's list of root certificates.
    pub fn from_file(path: Option<&Path>) -> Result<Self, ConnectError> {
        let Some(path) = path else { return Ok(Self(None)) };
        let pem = std::fs::read(path).map_err(|error| ConnectError::Ca {
            path: path.to_owned(),
            message: error.to_string(),
        })?;
        Ok(Self(Some(TlsCertificates { client_tls: None, root_cert: Some(pem) })))
    }

    /// Creates a client of one server, without connecting.
    pub fn client(&self, info: &ConnectionInfo) -> RedisResult<Client> {
        if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            install_crypto_provider();
        }
        match &self.0 {
            Some(certificates) => Client::build_with_tls(info.clone(), certificates.clone()),
            None => Client::open(info.clone()),
        }
    }
}

/// Installs a cryptography provider for rustls. If several providers are compiled in and none is installed, rustls
/// panics.
fn install_crypto_provider() {
    // An error means that one is installed already.
    let _ = ring::default_provider().install_default();
}

//! The CA certificates that verify servers.

use std::path::Path;
use std::sync::Arc;

use redis::RedisResult;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, DEFAULT_VERSIONS, RootCertStore};

use crate::error::ConnectError;

/// The CA certificates that verify servers.
#[derive(Clone, Debug)]
pub struct TlsRoots {
    roots: Arc<RootCertStore>,
    /// Whether the certificates were read from a file, so that connections without TLS are a mistake.
    is_from_file: bool,
}

impl TlsRoots {
    /// Reads the certificates of a PEM file. `None` selects Mozilla's list of root certificates.
    pub fn from_file(path: Option<&Path>) -> Result<Self, ConnectError> {
        let mut roots = RootCertStore::empty();
        let Some(path) = path else {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
            return Ok(Self { roots: Arc::new(roots), is_from_file: false });
        };
        let invalid = |message: String| ConnectError::Ca { path: path.to_owned(), message };
        let pem = std::fs::read(path).map_err(|error| invalid(error.to_string()))?;
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let certificate = certificate.map_err(|error| invalid(error.to_string()))?;
            roots.add(certificate).map_err(|error| invalid(error.to_string()))?;
        }
        if roots.is_empty() {
            return Err(invalid("the file contains no certificate".to_owned()));
        }
        Ok(Self { roots: Arc::new(roots), is_from_file: true })
    }

    /// Returns `true` if the certificates were read from a file.
    pub fn is_from_file(&self) -> bool {
        self.is_from_file
    }

    /// Creates the settings of TLS connections. The cryptography provider is named here, because rustls panics if a
    /// program contains several providers and has chosen none.
    pub fn client_config(&self) -> RedisResult<Arc<ClientConfig>> {
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(DEFAULT_VERSIONS)?
            .with_root_certificates(self.roots.clone())
            .with_no_client_auth();
        Ok(Arc::new(config))
    }
}

//! The certificates that verify servers.

use std::path::Path;
use std::sync::Arc;

use redis::{ErrorKind, RedisError, RedisResult};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DEFAULT_VERSIONS, DigitallySignedStruct, Error, RootCertStore,
    SignatureScheme,
};

use crate::error::ConnectError;

/// The certificates that verify servers.
#[derive(Clone, Debug)]
pub struct TlsRoots {
    roots: Arc<RootCertStore>,
    /// The certificates of the file; empty without a file.
    certificates: Vec<CertificateDer<'static>>,
}

impl TlsRoots {
    /// Reads the certificates of a PEM file. `None` selects Mozilla's list of root certificates.
    pub fn from_file(path: Option<&Path>) -> Result<Self, ConnectError> {
        let mut roots = RootCertStore::empty();
        let Some(path) = path else {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
            return Ok(Self { roots: Arc::new(roots), certificates: Vec::new() });
        };
        let invalid = |message: String| ConnectError::Ca { path: path.to_owned(), message };
        let pem = std::fs::read(path).map_err(|error| invalid(error.to_string()))?;
        let mut certificates = Vec::new();
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let certificate = certificate.map_err(|error| invalid(error.to_string()))?;
            roots.add(certificate.clone()).map_err(|error| invalid(error.to_string()))?;
            certificates.push(certificate);
        }
        if certificates.is_empty() {
            return Err(invalid("the file contains no certificate".to_owned()));
        }
        Ok(Self { roots: Arc::new(roots), certificates })
    }

    /// Returns `true` if the certificates were read from a file, so that connections without TLS are a mistake.
    pub fn is_from_file(&self) -> bool {
        !self.certificates.is_empty()
    }

    /// Creates the settings of TLS connections. The cryptography provider is named here, because rustls panics if a
    /// program contains several providers and has chosen none.
    pub fn client_config(&self) -> RedisResult<Arc<ClientConfig>> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(DEFAULT_VERSIONS)?;
        let builder = if self.is_from_file() {
            let verifier =
                WebPkiServerVerifier::builder_with_provider(self.roots.clone(), provider).build();
            let invalid = |error| {
                let text = "the CA certificates cannot verify a server";
                RedisError::from((ErrorKind::InvalidClientConfig, text, format!("{error}")))
            };
            let verifier = OwnCaVerifier {
                verifier: verifier.map_err(invalid)?,
                certificates: self.certificates.clone(),
            };
            builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
        } else {
            builder.with_root_certificates(self.roots.clone())
        };
        Ok(Arc::new(builder.with_no_client_auth()))
    }
}

/// A verifier that also accepts the certificate of a server that is its own CA, if the file has exactly this certificate.
///
/// `openssl req -x509` creates such certificates, and `redis-cli` accepts them. The verifier of rustls decides everything
/// else, also the validity period of this certificate and the signatures of the handshake.
#[derive(Debug)]
struct OwnCaVerifier {
    verifier: Arc<WebPkiServerVerifier>,
    certificates: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for OwnCaVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verifier = &self.verifier;
        match verifier.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        ) {
            // The cause is `CaUsedAsEndEntity`. An expired certificate and a wrong signature are other errors.
            Err(Error::InvalidCertificate(CertificateError::Other(_)))
                if self.certificates.contains(end_entity) =>
            {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            result => result,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

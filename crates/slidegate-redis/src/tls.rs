//! TLS of connections: the certificates that verify servers, and the certificate of the client.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use redis::{ErrorKind, RedisError, RedisResult};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DEFAULT_VERSIONS, DigitallySignedStruct, Error, RootCertStore,
    SignatureScheme,
};

use crate::error::ConnectError;
use crate::settings::{ClientCertificate, RedisSettings};

/// The certificates of TLS connections.
#[derive(Clone, Debug)]
pub struct ClientTls {
    /// The certificates that verify servers.
    roots: TrustedRoots,
    /// The certificate of the client, if it has one.
    identity: Option<Arc<ClientIdentity>>,
}

/// The certificates that verify servers.
#[derive(Clone, Debug)]
struct TrustedRoots {
    roots: Arc<RootCertStore>,
    /// The certificates in the CA file that the settings name; empty if they name none.
    certificates: Vec<CertificateDer<'static>>,
}

/// The certificate of the client with its chain, and its private key.
#[derive(Debug)]
struct ClientIdentity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl ClientTls {
    /// Reads the files that the settings name.
    pub fn from_files(settings: &RedisSettings) -> Result<Self, ConnectError> {
        let identity = settings.client_certificate.as_ref().map(ClientIdentity::from_files);
        Ok(Self {
            roots: TrustedRoots::from_file(settings.ca_file.as_deref())?,
            identity: identity.transpose()?.map(Arc::new),
        })
    }

    /// Returns `true` if a certificate was read from a file, so that connections without TLS are a mistake.
    pub fn uses_certificate_file(&self) -> bool {
        self.roots.uses_certificate_file() || self.identity.is_some()
    }

    /// Creates the settings of TLS connections. The cryptography provider is named here, because rustls panics if a
    /// program contains several providers and has chosen none.
    pub fn client_config(&self) -> RedisResult<Arc<ClientConfig>> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(DEFAULT_VERSIONS)?;
        let builder = if self.roots.uses_certificate_file() {
            let verifier = Arc::new(self.roots.verifier(provider)?);
            builder.dangerous().with_custom_certificate_verifier(verifier)
        } else {
            builder.with_root_certificates(self.roots.roots.clone())
        };
        let config = match self.identity.as_deref() {
            None => builder.with_no_client_auth(),
            Some(ClientIdentity { chain, key }) => {
                builder.with_client_auth_cert(chain.clone(), key.clone_key()).map_err(|error| {
                    invalid_tls_config_error("the client certificate cannot be used", &error)
                })?
            }
        };
        Ok(Arc::new(config))
    }
}

fn invalid_tls_config_error(text: &'static str, error: &dyn fmt::Display) -> RedisError {
    RedisError::from((ErrorKind::InvalidClientConfig, text, error.to_string()))
}

impl ClientIdentity {
    fn from_files(files: &ClientCertificate) -> Result<Self, ConnectError> {
        let error = |path: &Path, message: String| ConnectError::ClientCertificate {
            path: path.to_owned(),
            message,
        };
        let chain = CertificateDer::pem_file_iter(&files.cert_file)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|cause| error(&files.cert_file, cause.to_string()))?;
        if chain.is_empty() {
            return Err(error(&files.cert_file, "the file contains no certificate".to_owned()));
        }
        let key = PrivateKeyDer::from_pem_file(&files.key_file)
            .map_err(|cause| error(&files.key_file, cause.to_string()))?;
        Ok(Self { chain, key })
    }
}

impl TrustedRoots {
    /// Reads the certificates of a PEM file. `None` selects Mozilla's list of root certificates.
    fn from_file(path: Option<&Path>) -> Result<Self, ConnectError> {
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

    fn uses_certificate_file(&self) -> bool {
        !self.certificates.is_empty()
    }

    /// Returns the verifier of the certificates of a file.
    fn verifier(&self, provider: Arc<CryptoProvider>) -> RedisResult<OwnCaVerifier> {
        let verifier =
            WebPkiServerVerifier::builder_with_provider(self.roots.clone(), provider).build();
        let verifier = verifier.map_err(|error| {
            invalid_tls_config_error("the CA certificates cannot verify a server", &error)
        })?;
        Ok(OwnCaVerifier { verifier, certificates: self.certificates.clone() })
    }
}

/// A verifier that also accepts the certificate of a server that is its own CA, if the file has exactly this
/// certificate.
///
/// `openssl req -x509` creates such certificates, and `redis-cli` accepts them. The verifier of rustls decides
/// everything else, also the validity period of this certificate and the signatures of the handshake.
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
            // The certificate is its own CA (`CaUsedAsEndEntity`). Expired certificates and wrong signatures have other
            // errors, so they are still rejected.
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

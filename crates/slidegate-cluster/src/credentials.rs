//! Credentials of a node: the certificate that it presents to other nodes, and the authorities that it trusts.
//!
//! Nodes connect by mutual TLS 1.3. With certificates, an authority of the user signs them. With a shared key, every
//! node derives the same authority from the key and signs a certificate for a private key of its own, so that both
//! use the standard verification of rustls.

mod shared_key;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test may panic")]
mod tests;

use std::fmt;
use std::sync::Arc;

use rustls::client::{Resumption, verify_server_name};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{CertificateError, ClientConfig, Error as TlsError, RootCertStore, ServerConfig};
use thiserror::Error;

pub use shared_key::MIN_KEY_BYTES;
use shared_key::{create_node_certificate, derive_authority, derive_secret};

/// The default DNS name that the certificate of each node must have.
pub const DEFAULT_CERTIFICATE_NAME: &str = "slidegate-cluster";

/// Maximum number of shared keys. During a change of the key, nodes trust the old key and the new one.
pub const MAX_SHARED_KEYS: usize = 2;

/// The protocol inside TLS, selected by ALPN. Nodes with different protocols do not connect.
const ALPN_PROTOCOL: &[u8] = b"slidegate-cluster/2";

/// The text of the shared key of nodes without credentials, which listen on loopback only. It is publicly known.
const LOOPBACK_KEY: &str = "slidegate: a cluster on loopback without a key of its own";

/// The proof with which the nodes of a cluster authenticate each other.
#[derive(Clone)]
pub enum Credentials {
    /// One or two secrets, each a text of at least [`MIN_KEY_BYTES`] bytes. Two nodes trust each other if they have one
    /// of them in common. The order does not matter.
    Keys(Vec<String>),
    /// Certificates that an authority has signed.
    Certificates(Certificates),
}

/// The certificate of a node, and the authorities that sign the certificates of all nodes.
#[derive(Clone, PartialEq, Eq)]
pub struct Certificates {
    /// The certificate of this node, followed by intermediate certificates, in PEM.
    pub chain_pem: Vec<u8>,
    /// The private key of this node, in PEM.
    pub key_pem: Vec<u8>,
    /// The trusted authorities, in PEM.
    pub ca_pem: Vec<u8>,
    /// The DNS name that the certificate of each node must have: [`DEFAULT_CERTIFICATE_NAME`], or another name if the
    /// authority signs only some names. Certificates for other services of the same authority are thus rejected.
    pub name: String,
}

/// Omits the keys from the debug output.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keys(keys) => write!(f, "Keys({})", keys.len()),
            Self::Certificates(certificates) => certificates.fmt(f),
        }
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The reason why credentials cannot be used. The error never contains a key.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CredentialsError {
    /// A shared key or secret is too short.
    #[error(
        "cluster key or secret has {0} bytes; use at least {MIN_KEY_BYTES}, preferably 32 random bytes"
    )]
    ShortKey(usize),
    /// There are no shared keys, or too many.
    #[error("{0} cluster keys; use one, or two while the key is changed")]
    KeyCount(usize),
    /// The chain of certificates is not valid PEM, or empty.
    #[error(
        "the certificate has no certificate in PEM{0}; it must contain `-----BEGIN CERTIFICATE-----`"
    )]
    Chain(String),
    /// The authorities are not valid PEM, or empty.
    #[error(
        "the CA has no usable certificate in PEM{0}; it must contain `-----BEGIN CERTIFICATE-----`"
    )]
    Ca(String),
    /// The private key is not valid PEM.
    #[error(
        "the key has no private key in PEM: {0}; it must contain `-----BEGIN PRIVATE KEY-----`"
    )]
    PrivateKey(String),
    /// The name is not a DNS name.
    #[error("`{0}` is not a DNS name; write one such as `{DEFAULT_CERTIFICATE_NAME}`")]
    Name(String),
    /// The certificate does not have the name.
    #[error(
        "the certificate is not valid for the DNS name `{0}`, so that other nodes would reject it; issue one with this name"
    )]
    NameMissing(String),
    /// The certificate and its private key cannot be used together.
    #[error(
        "the certificate cannot be used: {0}; the certificate and the key must belong together"
    )]
    KeyPair(String),
    /// A certificate could not be made from the shared key.
    #[error("cannot make a certificate from the cluster key: {0}")]
    Signing(String),
}

impl Certificates {
    /// Checks that a node can use these certificates.
    ///
    /// # Errors
    /// Returns the first problem.
    pub fn check(&self) -> Result<(), CredentialsError> {
        NodeTls::from_certificates(self).map(drop)
    }
}

impl Credentials {
    /// Returns the publicly known credentials of nodes that listen on loopback only. They do not authenticate nodes.
    pub(crate) fn for_loopback() -> Self {
        Self::Keys(vec![LOOPBACK_KEY.to_owned()])
    }

    /// Returns the shared key; `None` if there are two, or certificates.
    pub(crate) fn single_shared_key(&self) -> Option<&str> {
        match self {
            Self::Keys(keys) => <&[String; 1]>::try_from(&keys[..]).ok().map(|[key]| &**key),
            Self::Certificates(_) => None,
        }
    }
}

/// Derives the secret key of the hash that computes key fingerprints. It is identical on every node, and unknown to
/// clients that choose rate limit keys.
pub(crate) fn derive_fingerprint_secret(secret: &str) -> Result<[u8; 16], CredentialsError> {
    let mut fingerprint_secret = [0; 16];
    derive_secret(secret, b"slidegate cluster: fingerprints", &mut fingerprint_secret)?;
    Ok(fingerprint_secret)
}

/// The TLS configuration of a node.
#[derive(Clone, Debug)]
pub struct NodeTls {
    /// The configuration of connections that this node opens.
    pub(crate) client: Arc<ClientConfig>,
    /// The configuration of connections that this node accepts.
    pub(crate) server: Arc<ServerConfig>,
    /// The name that the certificate of each other node must have.
    pub(crate) name: ServerName<'static>,
}

impl NodeTls {
    /// Builds the TLS configuration from credentials.
    ///
    /// # Errors
    /// Returns the reason why the credentials cannot be used.
    pub fn new(credentials: &Credentials) -> Result<Self, CredentialsError> {
        match credentials {
            Credentials::Keys(keys) => Self::from_keys(keys),
            Credentials::Certificates(certificates) => Self::from_certificates(certificates),
        }
    }

    fn from_keys(keys: &[String]) -> Result<Self, CredentialsError> {
        if !(1..=MAX_SHARED_KEYS).contains(&keys.len()) {
            return Err(CredentialsError::KeyCount(keys.len()));
        }
        let authorities =
            keys.iter().map(|key| derive_authority(key)).collect::<Result<Vec<_>, _>>()?;
        let mut roots = RootCertStore::empty();
        for authority in &authorities {
            roots.add(authority.certificate.clone()).map_err(signing_error)?;
        }
        let (chain, key) = create_node_certificate(&authorities, DEFAULT_CERTIFICATE_NAME)?;
        Self::build(roots, chain, key, DEFAULT_CERTIFICATE_NAME)
    }

    fn from_certificates(certificates: &Certificates) -> Result<Self, CredentialsError> {
        let Certificates { chain_pem, key_pem, ca_pem, name } = certificates;
        let mut roots = RootCertStore::empty();
        for authority in parse_certificates(ca_pem).map_err(CredentialsError::Ca)? {
            roots.add(authority).map_err(|error| CredentialsError::Ca(format!(" ({error})")))?;
        }
        let chain = parse_certificates(chain_pem).map_err(CredentialsError::Chain)?;
        let key = PrivateKeyDer::from_pem_slice(key_pem)
            .map_err(|error| CredentialsError::PrivateKey(error.to_string()))?;
        Self::build(roots, chain, key, name)
    }

    fn build(
        roots: RootCertStore,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        name: &str,
    ) -> Result<Self, CredentialsError> {
        let unusable = |error: TlsError| CredentialsError::KeyPair(error.to_string());
        let server_name = ServerName::try_from(name.to_owned())
            .map_err(|_| CredentialsError::Name(name.to_owned()))?;
        check_name(&chain, &server_name).map_err(|error| match error {
            TlsError::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            ) => CredentialsError::NameMissing(name.to_owned()),
            error => unusable(error),
        })?;
        let (roots, provider) = (Arc::new(roots), Arc::new(ring::default_provider()));
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(|error| CredentialsError::Ca(format!(" ({error})")))?;
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(unusable)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(unusable)?;
        // Disables resumption, because a resumed session would not verify the certificate again.
        server.send_tls13_tickets = 0;
        server.alpn_protocols = vec![ALPN_PROTOCOL.to_vec()];
        let mut client = client_config(roots, provider, chain, key).map_err(unusable)?;
        client.resumption = Resumption::disabled();
        // Disables SNI: each node has only one certificate, and the name would be sent in clear text.
        client.enable_sni = false;
        client.alpn_protocols = vec![ALPN_PROTOCOL.to_vec()];
        Ok(Self { client: Arc::new(client), server: Arc::new(server), name: server_name })
    }

    /// Checks that the certificate of a client has the name of the nodes. The handshake checks only its signature.
    pub(crate) fn check_client_name(&self, chain: &[CertificateDer<'_>]) -> Result<(), TlsError> {
        check_name(chain, &self.name)
    }
}

fn client_config(
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ClientConfig, TlsError> {
    ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
}

fn check_name(chain: &[CertificateDer<'_>], name: &ServerName<'_>) -> Result<(), TlsError> {
    let certificate = chain.first().ok_or(TlsError::NoCertificatesPresented)?;
    verify_server_name(&ParsedCertificate::try_from(certificate)?, name)
}

fn parse_certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| format!(" ({error})"))?;
    if certificates.is_empty() { Err(String::new()) } else { Ok(certificates) }
}

fn signing_error(error: impl fmt::Display) -> CredentialsError {
    CredentialsError::Signing(error.to_string())
}

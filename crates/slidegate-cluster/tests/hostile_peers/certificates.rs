//! Authorities that sign certificates, and TLS connections of tests.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion};
use slidegate_cluster::{Certificates, Credentials, DEFAULT_CERTIFICATE_NAME};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

/// A name that the certificates of nodes have besides [`DEFAULT_CERTIFICATE_NAME`].
pub const OTHER_NAME: &str = "nodes.example";

/// An authority that signs certificates.
pub struct TestAuthority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    root_pem: String,
    intermediate_pem: String,
}

impl TestAuthority {
    pub fn new() -> Self {
        let issuer = CertifiedIssuer::self_signed(authority_params("root"), new_key()).unwrap();
        Self { root_pem: issuer.pem(), intermediate_pem: String::new(), issuer }
    }

    /// Returns an authority whose certificate this authority has signed.
    pub fn intermediate(&self) -> Self {
        let params = authority_params("intermediate");
        let issuer = CertifiedIssuer::signed_by(params, new_key(), &self.issuer).unwrap();
        Self { root_pem: self.root_pem.clone(), intermediate_pem: issuer.pem(), issuer }
    }

    pub fn root_pem(&self) -> &str {
        &self.root_pem
    }

    /// Signs a certificate of a node that trusts this authority.
    pub fn sign_node(&self) -> Certificates {
        self.sign(|_| {})
    }

    /// Signs a certificate with changed properties.
    pub fn sign(&self, change: impl FnOnce(&mut CertificateParams)) -> Certificates {
        let names = [DEFAULT_CERTIFICATE_NAME, OTHER_NAME].map(str::to_owned);
        let mut params = CertificateParams::new(names).unwrap();
        change(&mut params);
        let key = new_key();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Certificates {
            chain_pem: (certificate.pem() + &self.intermediate_pem).into(),
            key_pem: key.serialize_pem().into(),
            ca_pem: self.root_pem.clone().into(),
            name: DEFAULT_CERTIFICATE_NAME.to_owned(),
        }
    }
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
}

fn new_key() -> KeyPair {
    KeyPair::generate().unwrap()
}

/// Returns credentials with one shared key.
pub fn shared_key(key: &str) -> Credentials {
    Credentials::Keys(vec![key.to_owned()])
}

/// A TLS client that may differ from a node.
pub struct TlsClient {
    pub version: &'static SupportedProtocolVersion,
    pub has_certificate: bool,
    pub protocol: &'static [u8],
}

impl Default for TlsClient {
    /// Returns a client like a node.
    fn default() -> Self {
        Self { version: &TLS13, has_certificate: true, protocol: b"slidegate-cluster/2" }
    }
}

impl TlsClient {
    pub async fn connect(
        &self,
        address: SocketAddr,
        certificates: &Certificates,
    ) -> io::Result<client::TlsStream<TcpStream>> {
        self.handshake(TcpStream::connect(address).await.unwrap(), certificates).await
    }

    /// Performs the TLS handshake on an open connection.
    pub async fn handshake(
        &self,
        stream: TcpStream,
        certificates: &Certificates,
    ) -> io::Result<client::TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&certificates.ca_pem).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[self.version])
            .unwrap()
            .with_root_certificates(roots);
        let mut config = if self.has_certificate {
            let (chain, key) = parse_chain_and_key(certificates);
            config.with_client_auth_cert(chain, key).unwrap()
        } else {
            config.with_no_client_auth()
        };
        config.alpn_protocols = vec![self.protocol.to_vec()];
        let name = ServerName::try_from(DEFAULT_CERTIFICATE_NAME).unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }
}

/// Accepts a TLS connection on a stream.
pub async fn accept_with_tls(
    stream: TcpStream,
    certificates: &Certificates,
) -> io::Result<server::TlsStream<TcpStream>> {
    let (chain, key) = parse_chain_and_key(certificates);
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config)).accept(stream).await
}

fn parse_chain_and_key(
    certificates: &Certificates,
) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let chain = CertificateDer::pem_slice_iter(&certificates.chain_pem);
    let key = PrivateKeyDer::from_pem_slice(&certificates.key_pem);
    (chain.collect::<Result<_, _>>().unwrap(), key.unwrap())
}

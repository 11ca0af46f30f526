//! Certificates, and TLS connections that verify them.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, date_time_ymd,
};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use slidegate::Timestamp;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::common::TempFile;

/// A certificate authority that issues certificates for tests.
pub struct CertAuthority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its private key, both in PEM format.
pub struct CertAndKey {
    pub cert: String,
    pub key: String,
}

impl CertAuthority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        // Other than the name of issued certificates, which Envoy would take for self-signed ones.
        params.distinguished_name.push(DnType::CommonName, "authority of tests");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub fn certificate_pem(&self) -> String {
        self.0.pem()
    }

    /// Issues a certificate for the host name `localhost`.
    pub fn issue_certificate(&self) -> CertAndKey {
        self.sign(CertificateParams::new(vec!["localhost".to_owned()]).unwrap())
    }

    /// Issues a certificate for a cluster node with this DNS name.
    pub fn issue_node_certificate(&self, name: &str) -> CertAndKey {
        self.sign(node_certificate_params(name))
    }

    /// Issues a certificate for a cluster node that expires at this time.
    pub fn issue_expiring_node_certificate(&self, name: &str, expiry: Timestamp) -> CertAndKey {
        let mut params = node_certificate_params(name);
        params.not_before = date_time_ymd(1970, 1, 1);
        params.not_after = date_time_ymd(1970, 1, 1) + Duration::from_micros(expiry.as_micros());
        self.sign(params)
    }

    fn sign(&self, params: CertificateParams) -> CertAndKey {
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.0).unwrap();
        CertAndKey { cert: cert.pem(), key: key.serialize_pem() }
    }
}

fn node_certificate_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params
}

pub fn parse_certificate(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

/// Opens a TLS connection to `localhost`. The client trusts only `authority`, presents `client_cert` if it is set, and
/// offers `protocol` in the ALPN extension.
pub async fn connect_with_tls(
    address: SocketAddr,
    authority: &CertAuthority,
    client_cert: Option<&CertAndKey>,
    protocol: &[u8],
) -> std::io::Result<TlsStream<TcpStream>> {
    connect_with_tls_to("localhost", address, authority, client_cert, protocol).await
}

/// Opens a TLS connection to a server with a certificate for `name`. Otherwise as [`connect_with_tls`].
pub async fn connect_with_tls_to(
    name: &'static str,
    address: SocketAddr,
    authority: &CertAuthority,
    client_cert: Option<&CertAndKey>,
    protocol: &[u8],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(parse_certificate(&authority.certificate_pem())).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match client_cert {
        None => config.with_no_client_auth(),
        Some(CertAndKey { cert, key }) => {
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
            config.with_client_auth_cert(vec![parse_certificate(cert)], key).unwrap()
        }
    };
    config.alpn_protocols = vec![protocol.to_vec()];
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from(name).unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// The certificate file and the key file of a server.
pub struct CertFiles {
    pub cert: TempFile,
    pub key: TempFile,
}

impl CertFiles {
    pub fn new(pair: &CertAndKey) -> Self {
        Self { cert: TempFile::new(".pem", &pair.cert), key: TempFile::new(".pem", &pair.key) }
    }

    pub fn tls_flags(&self) -> [&str; 4] {
        ["--tls-cert", path_str(self.cert.path()), "--tls-key", path_str(self.key.path())]
    }
}

pub fn path_str(path: &Path) -> &str {
    path.to_str().unwrap()
}

//! The files with TLS certificates and keys, and the errors in these files.

use std::fs;
use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error;

/// Paths of the certificate and key files.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    pub cert: PathBuf,
    pub key: PathBuf,
    /// The certificate authorities that sign client certificates. If this path is set, clients must present a
    /// certificate.
    pub client_ca: Option<PathBuf>,
}

/// The contents of all certificate and key files.
#[derive(Clone, PartialEq, Eq)]
pub struct TlsFileContents {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

/// The reason why TLS cannot be used: the flag, the file and the problem. The error never contains text of the file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{flag}: {}: {problem}", path.display())]
pub struct TlsError {
    flag: &'static str,
    path: PathBuf,
    problem: String,
}

const CERT_FLAG_AND_VARIABLE: &str = "--tls-cert (SLIDEGATE_TLS_CERT)";
const KEY_FLAG_AND_VARIABLE: &str = "--tls-key (SLIDEGATE_TLS_KEY)";
const CLIENT_CA_FLAG_AND_VARIABLE: &str = "--tls-client-ca (SLIDEGATE_TLS_CLIENT_CA)";

impl TlsFiles {
    /// Reads all certificate and key files.
    pub fn read_contents(&self) -> Result<TlsFileContents, TlsError> {
        Ok(TlsFileContents {
            cert: read_tls_file(CERT_FLAG_AND_VARIABLE, &self.cert)?,
            key: read_tls_file(KEY_FLAG_AND_VARIABLE, &self.key)?,
            client_ca: self
                .client_ca
                .as_ref()
                .map(|path| read_tls_file(CLIENT_CA_FLAG_AND_VARIABLE, path))
                .transpose()?,
        })
    }

    /// Parses the server's certificate chain.
    pub(super) fn parse_certificate_chain(
        &self,
        contents: &TlsFileContents,
    ) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        parse_certificates(CERT_FLAG_AND_VARIABLE, &self.cert, &contents.cert)
    }

    /// Parses the server's private key.
    pub(super) fn parse_private_key(
        &self,
        contents: &TlsFileContents,
    ) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_slice(&contents.key).map_err(|error| {
            tls_file_error(
                KEY_FLAG_AND_VARIABLE,
                &self.key,
                format!(
                    "no private key in PEM: {error}; it must contain `-----BEGIN PRIVATE KEY-----`"
                ),
            )
        })
    }

    /// Parses the authorities that sign client certificates. Returns `None` if clients need no certificate.
    pub(super) fn parse_client_ca_certificates(
        &self,
        contents: &TlsFileContents,
    ) -> Result<Option<RootCertStore>, TlsError> {
        let (Some(path), Some(text)) = (&self.client_ca, &contents.client_ca) else {
            return Ok(None);
        };
        let mut roots = RootCertStore::empty();
        for certificate in parse_certificates(CLIENT_CA_FLAG_AND_VARIABLE, path, text)? {
            roots.add(certificate).map_err(|error| {
                tls_file_error(CLIENT_CA_FLAG_AND_VARIABLE, path, error.to_string())
            })?;
        }
        Ok(Some(roots))
    }

    /// Returns the error for a certificate and key that do not match or are not supported.
    pub(super) fn invalid_key_pair_error(&self, error: &rustls::Error) -> TlsError {
        let problem = format!(
            "cannot be used with --tls-key {}: {error}; the certificate and the key must belong together",
            self.key.display()
        );
        tls_file_error(CERT_FLAG_AND_VARIABLE, &self.cert, problem)
    }

    /// Returns the error for a file of client certificate authorities that cannot be used.
    pub(super) fn invalid_client_ca_error(&self, problem: String) -> TlsError {
        tls_file_error(
            CLIENT_CA_FLAG_AND_VARIABLE,
            self.client_ca.as_deref().unwrap_or(Path::new("")),
            problem,
        )
    }
}

fn read_tls_file(flag: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|error| {
        tls_file_error(
            flag,
            path,
            format!("cannot be read: {error}; check the path and its permissions"),
        )
    })
}

fn parse_certificates(
    flag: &'static str,
    path: &Path,
    text: &[u8],
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    match found {
        Ok(found) if found.is_empty() => Err(tls_file_error(
            flag,
            path,
            "no certificate in PEM; it must contain `-----BEGIN CERTIFICATE-----`".into(),
        )),
        Ok(found) => Ok(found),
        Err(error) => Err(tls_file_error(
            flag,
            path,
            format!("invalid PEM: {error}; check that the file is complete"),
        )),
    }
}

fn tls_file_error(flag: &'static str, path: &Path, problem: String) -> TlsError {
    TlsError { flag, path: path.to_owned(), problem }
}

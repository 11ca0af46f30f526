//! The files with TLS certificates and keys, and the errors in these files.

use std::path::{Path, PathBuf};
use std::{fmt, fs};

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error;

/// A file in PEM, and the flag that names it.
#[derive(Clone, Debug)]
pub struct TlsFile {
    flag: &'static str,
    path: PathBuf,
}

/// The certificate and key files of the client listeners, or of a cluster node.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    pub(super) cert: TlsFile,
    pub(super) key: TlsFile,
    /// The certificate authorities that sign the certificates of clients, or of the other nodes. If this file is set,
    /// clients or nodes must present such a certificate.
    pub(super) ca: Option<TlsFile>,
}

/// The contents of all certificate and key files.
#[derive(Clone, PartialEq, Eq)]
pub struct TlsFileContents {
    pub(super) cert: Vec<u8>,
    pub(super) key: Vec<u8>,
    pub(super) ca: Option<Vec<u8>>,
}

/// Omits the private key from the debug output.
impl fmt::Debug for TlsFileContents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsFileContents").finish_non_exhaustive()
    }
}

/// The reason why TLS cannot be used: the flag, the file and the problem. The error never contains text of the file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{flag}: {}: {problem}", path.display())]
pub struct TlsError {
    flag: &'static str,
    path: PathBuf,
    problem: String,
}

/// The flag of the listeners' private key, with its environment variable.
pub const TLS_KEY_FLAG: &str = "--tls-key (SLIDEGATE_TLS_KEY)";

/// The flag of a cluster node's private key, with its environment variable.
pub const CLUSTER_TLS_KEY_FLAG: &str = "--cluster-tls-key (SLIDEGATE_CLUSTER_TLS_KEY)";

impl TlsFiles {
    /// Returns the files of the client listeners.
    pub fn for_listeners(cert: PathBuf, key: PathBuf, client_ca: Option<PathBuf>) -> Self {
        let ca_flag = "--tls-client-ca (SLIDEGATE_TLS_CLIENT_CA)";
        Self {
            cert: TlsFile { flag: "--tls-cert (SLIDEGATE_TLS_CERT)", path: cert },
            key: TlsFile { flag: TLS_KEY_FLAG, path: key },
            ca: client_ca.map(|path| TlsFile { flag: ca_flag, path }),
        }
    }

    /// Returns the files of a cluster node.
    pub fn for_cluster_node(cert: PathBuf, key: PathBuf, ca: PathBuf) -> Self {
        Self {
            cert: TlsFile { flag: "--cluster-tls-cert (SLIDEGATE_CLUSTER_TLS_CERT)", path: cert },
            key: TlsFile { flag: CLUSTER_TLS_KEY_FLAG, path: key },
            ca: Some(TlsFile { flag: "--cluster-tls-ca (SLIDEGATE_CLUSTER_TLS_CA)", path: ca }),
        }
    }

    /// Reads all certificate and key files.
    pub fn read_contents(&self) -> Result<TlsFileContents, TlsError> {
        Ok(TlsFileContents {
            cert: self.cert.read()?,
            key: self.key.read()?,
            ca: self.ca.as_ref().map(TlsFile::read).transpose()?,
        })
    }

    /// Parses the server's certificate chain.
    pub(super) fn parse_certificate_chain(
        &self,
        contents: &TlsFileContents,
    ) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        self.cert.parse_certificates(&contents.cert)
    }

    /// Parses the server's private key.
    pub(super) fn parse_private_key(
        &self,
        contents: &TlsFileContents,
    ) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_slice(&contents.key).map_err(|error| {
            self.key.error(format!(
                "no private key in PEM: {error}; it must contain `-----BEGIN PRIVATE KEY-----`"
            ))
        })
    }

    /// Parses the authorities that sign client certificates. Returns `None` if clients need no certificate.
    pub(super) fn parse_ca_certificates(
        &self,
        contents: &TlsFileContents,
    ) -> Result<Option<RootCertStore>, TlsError> {
        let (Some(file), Some(text)) = (&self.ca, &contents.ca) else { return Ok(None) };
        let mut roots = RootCertStore::empty();
        for certificate in file.parse_certificates(text)? {
            roots.add(certificate).map_err(|error| file.error(error.to_string()))?;
        }
        Ok(Some(roots))
    }

    /// Returns the error for a certificate and key that do not match or are not supported.
    pub(super) fn invalid_key_pair_error(&self, error: &rustls::Error) -> TlsError {
        self.cert.error(format!(
            "cannot be used with --tls-key {}: {error}; the certificate and the key must belong together",
            self.key.path.display()
        ))
    }

    /// Returns the error for a file of certificate authorities that cannot be used.
    pub(super) fn invalid_ca_error(&self, problem: String) -> TlsError {
        self.ca.as_ref().unwrap_or(&self.cert).error(problem)
    }
}

impl TlsFile {
    fn read(&self) -> Result<Vec<u8>, TlsError> {
        fs::read(&self.path).map_err(|error| {
            self.error(format!("cannot be read: {error}; check the path and its permissions"))
        })
    }

    fn parse_certificates(&self, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
        match found {
            Ok(found) if found.is_empty() => Err(self.error(
                "no certificate in PEM; it must contain `-----BEGIN CERTIFICATE-----`".into(),
            )),
            Ok(found) => Ok(found),
            Err(error) => {
                Err(self.error(format!("invalid PEM: {error}; check that the file is complete")))
            }
        }
    }

    /// Returns the error for a problem of this file.
    pub(super) fn error(&self, problem: String) -> TlsError {
        TlsError { flag: self.flag, path: self.path.clone(), problem }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

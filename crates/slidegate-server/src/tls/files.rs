//! The files of TLS, and what may be wrong with them.

use std::fs;
use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error;

/// Where certificates and keys are.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    pub cert: PathBuf,
    pub key: PathBuf,
    /// Whose certificates clients must show, if they must.
    pub client_ca: Option<PathBuf>,
}

/// What the files say.
#[derive(Clone, PartialEq, Eq)]
pub struct Texts {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

/// Why there is no TLS: the flag, the file, and what is wrong with it. No text of a file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{flag}: {}: {problem}", path.display())]
pub struct TlsError {
    flag: &'static str,
    path: PathBuf,
    problem: String,
}

const CERT: &str = "--tls-cert (SLIDEGATE_TLS_CERT)";
const KEY: &str = "--tls-key (SLIDEGATE_TLS_KEY)";
const CLIENT_CA: &str = "--tls-client-ca (SLIDEGATE_TLS_CLIENT_CA)";

impl TlsFiles {
    /// All of them.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        let certain = [self.cert.as_path(), self.key.as_path()];
        certain.into_iter().chain(self.client_ca.as_deref())
    }

    /// Reads them.
    pub fn texts(&self) -> Result<Texts, TlsError> {
        Ok(Texts {
            cert: text(CERT, &self.cert)?,
            key: text(KEY, &self.key)?,
            client_ca: self.client_ca.as_ref().map(|path| text(CLIENT_CA, path)).transpose()?,
        })
    }

    /// The server's own certificates.
    pub(super) fn chain(&self, texts: &Texts) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        certificates(CERT, &self.cert, &texts.cert)
    }

    /// Its key.
    pub(super) fn key(&self, texts: &Texts) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_slice(&texts.key)
            .map_err(|error| wrong(KEY, &self.key, format!("no private key in PEM: {error}")))
    }

    /// Who signs the certificates of clients, if they need one.
    pub(super) fn roots(&self, texts: &Texts) -> Result<Option<RootCertStore>, TlsError> {
        let (Some(path), Some(text)) = (&self.client_ca, &texts.client_ca) else { return Ok(None) };
        let mut roots = RootCertStore::empty();
        for certificate in certificates(CLIENT_CA, path, text)? {
            roots.add(certificate).map_err(|error| wrong(CLIENT_CA, path, error.to_string()))?;
        }
        Ok(Some(roots))
    }

    /// Certificate and key are not for each other, or not for us.
    pub(super) fn pair_error(&self, error: &rustls::Error) -> TlsError {
        let problem = format!("it cannot be used with --tls-key {}: {error}", self.key.display());
        wrong(CERT, &self.cert, problem)
    }

    /// The authorities cannot be used.
    pub(super) fn client_ca_error(&self, problem: String) -> TlsError {
        wrong(CLIENT_CA, self.client_ca.as_deref().unwrap_or(Path::new("")), problem)
    }
}

fn text(flag: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|error| wrong(flag, path, format!("cannot be read: {error}")))
}

fn certificates(
    flag: &'static str,
    path: &Path,
    text: &[u8],
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    match found {
        Ok(found) if found.is_empty() => Err(wrong(flag, path, "no certificate in PEM".into())),
        Ok(found) => Ok(found),
        Err(error) => Err(wrong(flag, path, format!("no certificates in PEM: {error}"))),
    }
}

fn wrong(flag: &'static str, path: &Path, problem: String) -> TlsError {
    TlsError { flag, path: path.to_owned(), problem }
}

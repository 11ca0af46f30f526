//! The certificates of a cluster node, from files that are reloaded when they change.

use std::io;

use slidegate_cluster::{Certificates, CredentialsError};

use super::reload::CertificateReloader;
use super::{TlsError, TlsFileContents, TlsFiles};
use crate::background::BackgroundTasks;

/// The certificates of a cluster node, and the files from which they were read.
#[derive(Clone, Debug)]
pub struct ClusterTls {
    files: TlsFiles,
    contents: TlsFileContents,
    /// The DNS name that the certificate of every node must have.
    name: String,
}

impl ClusterTls {
    /// Reads certificates and keys from `files`, and checks that a node with this name can use them.
    pub fn load(files: TlsFiles, name: &str) -> Result<Self, TlsError> {
        let contents = files.read_contents()?;
        let loaded = Self { files, contents, name: name.to_owned() };
        loaded.certificates().check().map_err(|error| file_error(&loaded.files, &error))?;
        Ok(loaded)
    }

    /// Returns the certificates for the settings of a node.
    pub fn certificates(&self) -> Certificates {
        certificates(&self.contents, &self.name)
    }

    /// Starts to reload the certificates when their files change. `replace` makes the node use new certificates for new
    /// connections.
    pub fn reload_on_change(
        self,
        tasks: &BackgroundTasks,
        replace: impl Fn(&Certificates) -> Result<(), CredentialsError> + Send + 'static,
    ) -> io::Result<()> {
        let Self { files, contents, name } = self;
        let reloaded = files.clone();
        CertificateReloader::new(files, contents, move |contents| {
            replace(&certificates(contents, &name)).map_err(|error| file_error(&reloaded, &error))
        })
        .start("cluster TLS reload", tasks)
    }
}

fn certificates(contents: &TlsFileContents, name: &str) -> Certificates {
    let TlsFileContents { cert, key, ca } = contents.clone();
    Certificates {
        chain_pem: cert,
        key_pem: key,
        ca_pem: ca.unwrap_or_default(),
        name: name.to_owned(),
    }
}

/// Returns the error with the file that causes it.
fn file_error(files: &TlsFiles, error: &CredentialsError) -> TlsError {
    let file = match error {
        CredentialsError::Ca(_) => files.ca.as_ref().unwrap_or(&files.cert),
        CredentialsError::PrivateKey(_) => &files.key,
        _ => &files.cert,
    };
    file.error(error.to_string())
}

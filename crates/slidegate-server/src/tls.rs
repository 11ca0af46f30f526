//! TLS for client connections and for a cluster node, with certificates that are reloaded when their files change.

mod cluster;
mod files;
mod reload;

use std::io;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::crypto::ring;
use rustls::server::{NoClientAuth, ServerConfig, WebPkiClientVerifier};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

pub use self::cluster::ClusterTls;
pub use self::files::{CLUSTER_TLS_KEY_FLAG, TLS_KEY_FLAG, TlsError, TlsFileContents, TlsFiles};

use self::reload::CertificateReloader;
use crate::background::BackgroundTasks;

/// The application protocol inside TLS, selected by ALPN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum AppProtocol {
    Http,
    Grpc,
}

/// The TLS settings of the client listeners, with the certificates that were loaded last.
pub struct Tls {
    files: TlsFiles,
    /// The listeners with TLS.
    listeners: Vec<AppProtocol>,
    current: ArcSwap<LoadedCertificates>,
}

/// The TLS settings for the connections of one listener.
#[derive(Clone)]
pub struct ListenerTls {
    tls: Arc<Tls>,
    protocol: AppProtocol,
}

/// The TLS configuration of each protocol, and the file contents from which the configurations were built.
struct LoadedCertificates {
    contents: TlsFileContents,
    http: Arc<ServerConfig>,
    grpc: Arc<ServerConfig>,
}

impl Tls {
    /// Loads certificates and keys from `files`, for these listeners.
    pub fn load(files: TlsFiles, listeners: Vec<AppProtocol>) -> Result<Arc<Self>, TlsError> {
        let current = LoadedCertificates::from_file_contents(&files, files.read_contents()?)?;
        Ok(Arc::new(Self { files, listeners, current: ArcSwap::from_pointee(current) }))
    }

    /// Starts to reload certificates when their files change.
    pub fn reload_on_change(self: &Arc<Self>, tasks: &BackgroundTasks) -> io::Result<()> {
        let (tls, contents) = (self.clone(), self.current.load().contents.clone());
        CertificateReloader::new(self.files.clone(), contents, move |contents| {
            let loaded = LoadedCertificates::from_file_contents(&tls.files, contents.clone())?;
            tls.current.store(Arc::new(loaded));
            Ok(())
        })
        .start("TLS reload", tasks)
    }

    /// Returns the TLS settings for the listener of this protocol; `None` if it has no TLS.
    pub fn for_listener(self: &Arc<Self>, protocol: AppProtocol) -> Option<ListenerTls> {
        self.listeners.contains(&protocol).then(|| ListenerTls { tls: self.clone(), protocol })
    }
}

impl ListenerTls {
    /// Performs the TLS handshake with a client.
    pub async fn accept<S>(&self, client: S) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let config = {
            let current = self.tls.current.load();
            match self.protocol {
                AppProtocol::Http => current.http.clone(),
                AppProtocol::Grpc => current.grpc.clone(),
            }
        };
        TlsAcceptor::from(config).accept(client).await
    }
}

impl LoadedCertificates {
    fn from_file_contents(files: &TlsFiles, contents: TlsFileContents) -> Result<Self, TlsError> {
        let config = |alpn: &[u8]| build_rustls_server_config(files, &contents, alpn).map(Arc::new);
        let (http, grpc) = (config(b"http/1.1")?, config(b"h2")?);
        Ok(Self { contents, http, grpc })
    }
}

fn build_rustls_server_config(
    files: &TlsFiles,
    contents: &TlsFileContents,
    alpn: &[u8],
) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let verifier = match files.parse_ca_certificates(contents)? {
        Some(roots) => {
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                .build()
                .map_err(|error| files.invalid_ca_error(error.to_string()))?
        }
        None => Arc::new(NoClientAuth),
    };
    let (certificate_chain, key) =
        (files.parse_certificate_chain(contents)?, files.parse_private_key(contents)?);
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|config| {
            config.with_client_cert_verifier(verifier).with_single_cert(certificate_chain, key)
        })
        .map_err(|error| files.invalid_key_pair_error(&error))?;
    config.alpn_protocols = vec![alpn.to_vec()];
    Ok(config)
}

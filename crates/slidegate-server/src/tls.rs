//! TLS for clients, by certificates that are read again when their files change.

mod files;
mod follow;

use std::io;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::crypto::ring;
use rustls::server::{NoClientAuth, ServerConfig, WebPkiClientVerifier};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

pub use self::files::{Texts, TlsError, TlsFiles};

/// What is spoken within TLS.
#[derive(Clone, Copy, Debug)]
pub enum Spoken {
    Http,
    Grpc,
}

/// TLS as it now is.
pub struct Tls {
    files: TlsFiles,
    current: ArcSwap<Certificates>,
}

/// TLS on the connections of one face.
#[derive(Clone)]
pub struct FaceTls {
    tls: Arc<Tls>,
    spoken: Spoken,
}

/// What is told to clients, and the texts that it was made of.
struct Certificates {
    texts: Texts,
    http: Arc<ServerConfig>,
    grpc: Arc<ServerConfig>,
}

impl Tls {
    /// By these files as they now are.
    pub fn read(files: TlsFiles) -> Result<Arc<Self>, TlsError> {
        let current = Certificates::of(&files, files.texts()?)?;
        Ok(Arc::new(Self { files, current: ArcSwap::from_pointee(current) }))
    }

    /// On the connections of a face.
    pub fn on(self: &Arc<Self>, spoken: Spoken) -> FaceTls {
        FaceTls { tls: self.clone(), spoken }
    }
}

impl FaceTls {
    /// Shakes hands with a client.
    pub async fn accept(&self, client: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let config = {
            let current = self.tls.current.load();
            match self.spoken {
                Spoken::Http => current.http.clone(),
                Spoken::Grpc => current.grpc.clone(),
            }
        };
        TlsAcceptor::from(config).accept(client).await
    }
}

impl Certificates {
    fn of(files: &TlsFiles, texts: Texts) -> Result<Self, TlsError> {
        let spoken = |protocol: &[u8]| config(files, &texts, protocol).map(Arc::new);
        let (http, grpc) = (spoken(b"http/1.1")?, spoken(b"h2")?);
        Ok(Self { texts, http, grpc })
    }
}

fn config(files: &TlsFiles, texts: &Texts, protocol: &[u8]) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let verifier = match files.roots(texts)? {
        Some(roots) => {
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                .build()
                .map_err(|error| files.client_ca_error(error.to_string()))?
        }
        None => Arc::new(NoClientAuth),
    };
    let (chain, key) = (files.chain(texts)?, files.key(texts)?);
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_client_cert_verifier(verifier).with_single_cert(chain, key))
        .map_err(|error| files.pair_error(&error))?;
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(config)
}

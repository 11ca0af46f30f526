//! TLS: who is believed, and certificates that change.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use prost::Message;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::client::{PATH, descriptor, request};
use crate::common::{Server, TempFile, slidegate};
use crate::raw::{Raw, framed};

const POLICY: &str = "rules: [{ name: per-user, domain: api, per: [user], limits: [9/h] }]";

/// Who signs.
struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
struct Pair {
    cert: String,
    key: String,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    fn issue(&self) -> Pair {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let cert = params.signed_by(&key, &self.0).unwrap();
        Pair { cert: cert.pem(), key: key.serialize_pem() }
    }
}

fn certificate(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

/// Who believes this authority, and shows this certificate.
async fn connect(
    address: SocketAddr,
    authority: &Authority,
    own: Option<&Pair>,
    protocol: &[u8],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate(&authority.pem())).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match own {
        None => config.with_no_client_auth(),
        Some(Pair { cert, key }) => {
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
            config.with_client_auth_cert(vec![certificate(cert)], key).unwrap()
        }
    };
    config.alpn_protocols = vec![protocol.to_vec()];
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// A decision over TLS, and the certificate that the server showed. With a certificate that is not believed the
/// end may come after the handshake.
async fn ask(server: &Server, authority: &Authority, own: Option<&Pair>) -> Option<Vec<u8>> {
    let stream = connect(server.grpc(), authority, own, b"h2").await.ok()?;
    let shown = stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
    let client = Raw::over(stream).await.ok()?;
    let mut call = client.begin(PATH).await.ok()?;
    let message = request([descriptor(&[("user", "ann")])]);
    let message = framed(&message.encode_to_vec());
    call.body.send_data(message.into(), true).ok()?;
    let ended = call.end().await.ok()?;
    (ended.code == "0").then_some(shown)
}

/// Files of a server, in one place.
struct Files {
    cert: TempFile,
    key: TempFile,
}

impl Files {
    fn of(pair: &Pair) -> Self {
        Self { cert: TempFile::new(".pem", &pair.cert), key: TempFile::new(".pem", &pair.key) }
    }

    fn flags(&self) -> [&str; 4] {
        ["--tls-cert", text(self.cert.path()), "--tls-key", text(self.key.path())]
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[tokio::test]
async fn grpc_and_http_are_served_by_tls_and_not_without() {
    let authority = Authority::new();
    let pair = authority.issue();
    let files = Files::of(&pair);
    let server = Server::start_with_grpc(POLICY, &files.flags());
    assert_eq!(ask(&server, &authority, None).await, Some(certificate(&pair.cert).to_vec()));
    assert_eq!(ask(&server, &Authority::new(), None).await, None, "who would believe that?");
    assert!(server.listening().contains("listening on https://"));

    let mut http = connect(server.address(), &authority, None, b"http/1.1").await.unwrap();
    http.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut told = Vec::new();
    let _ = http.read_to_end(&mut told).await;
    assert!(told.starts_with(b"HTTP/1.1 200 OK"), "{}", String::from_utf8_lossy(&told));

    let mut plain = TcpStream::connect(server.address()).await.unwrap();
    plain.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut told = Vec::new();
    let _ = plain.read_to_end(&mut told).await;
    assert!(!told.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&told));
}

#[tokio::test]
async fn with_an_authority_for_clients_only_those_are_served_that_it_signed() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let files = Files::of(&authority.issue());
    let ca = TempFile::new(".pem", clients.pem());
    let flags = [&files.flags()[..], &["--tls-client-ca", text(ca.path())]].concat();
    let server = Server::start_with_grpc(POLICY, &flags);
    assert_eq!(ask(&server, &authority, None).await, None);
    assert_eq!(ask(&server, &authority, Some(&authority.issue())).await, None);
    assert!(ask(&server, &authority, Some(&clients.issue())).await.is_some());
}

#[tokio::test]
async fn certificates_follow_their_files_and_broken_ones_change_nothing() {
    let authority = Authority::new();
    let [first, second] = [authority.issue(), authority.issue()];
    let files = Files::of(&first);
    let server = Server::start_with_grpc(POLICY, &files.flags());
    let shown = async || ask(&server, &authority, None).await.unwrap();
    assert_eq!(shown().await, certificate(&first.cert).to_vec());

    fs::write(files.cert.path(), "-----BEGIN CERTIFICATE-----\nno\n").unwrap();
    let told = server.wait_for_log("--tls-cert (SLIDEGATE_TLS_CERT)");
    assert!(told.contains(text(files.cert.path())), "{told}");
    server.wait_for_log("TLS certificate reload failed; keeping the current certificates");
    assert_eq!(shown().await, certificate(&first.cert).to_vec());

    // The key of another certificate, until that is there, too.
    fs::write(files.key.path(), &second.key).unwrap();
    fs::write(files.cert.path(), &second.cert).unwrap();
    server.wait_for_log("TLS certificates reloaded");
    assert_eq!(shown().await, certificate(&second.cert).to_vec());
}

#[test]
fn what_is_wrong_with_files_is_told_with_flag_and_file_before_anything_starts() {
    let authority = Authority::new();
    let (one, other) = (Files::of(&authority.issue()), Files::of(&authority.issue()));
    let policy = TempFile::new(".yaml", POLICY);
    let nonsense = TempFile::new(".pem", "nonsense");
    let missing = Path::new("/nowhere/cert.pem");
    let cases = [
        (missing, one.key.path(), missing, "--tls-cert (SLIDEGATE_TLS_CERT)", "cannot be read"),
        (
            one.cert.path(),
            nonsense.path(),
            nonsense.path(),
            "--tls-key (SLIDEGATE_TLS_KEY)",
            "no private key",
        ),
        (nonsense.path(), one.key.path(), nonsense.path(), "--tls-cert", "no certificate in PEM"),
        (
            one.cert.path(),
            other.key.path(),
            one.cert.path(),
            "--tls-cert",
            "cannot be used with --tls-key",
        ),
    ];
    for (cert, key, wrong, flag, problem) in cases {
        let mut command = slidegate();
        command.arg("serve").arg("--policy").arg(policy.path()).args(["--http", "127.0.0.1:0"]);
        command.arg("--tls-cert").arg(cert).arg("--tls-key").arg(key);
        let output = command.output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(
            told.contains(flag) && told.contains(text(wrong)) && told.contains(problem),
            "{told}"
        );
    }
}

#[tokio::test]
async fn who_does_not_shake_hands_is_let_go() {
    let files = Files::of(&Authority::new().issue());
    let flags = [&files.flags()[..], &["--client-timeout", "1"]].concat();
    let server = Server::start_with_grpc(POLICY, &flags);
    for address in [server.address(), server.grpc()] {
        let mut silent = TcpStream::connect(address).await.unwrap();
        assert_eq!(silent.read(&mut [0; 1]).await.unwrap_or(0), 0);
    }
}

//! Tests of TLS: verification of server and client certificates, and reload of the server certificate.

use std::fs;
use std::path::Path;

use prost::Message;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::common::certificates::{
    CertAndKey, CertAuthority, CertFiles, connect_with_tls, parse_certificate, path_str,
};
use crate::common::{Server, TempFile, slidegate_command};
use crate::grpc::client::{Code, SHOULD_RATE_LIMIT_PATH, new_descriptor, new_request};
use crate::grpc::raw::{RawGrpcConnection, frame_message};

const POLICY: &str = "rules: [{ name: per-user, domain: api, per: [user], limits: [9/h] }]";

/// Makes a gRPC call over TLS. Returns the certificate of the server, or `None` if the handshake or the call fails. The
/// call can fail after a successful handshake, because the client can complete the handshake before the server rejects
/// the client certificate.
async fn check_over_tls(
    server: &Server,
    authority: &CertAuthority,
    client_cert: Option<&CertAndKey>,
) -> Option<Vec<u8>> {
    let stream =
        connect_with_tls(server.grpc_address(), authority, client_cert, b"h2").await.ok()?;
    let server_cert = stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
    let client = RawGrpcConnection::with_io(stream).await.ok()?;
    let mut call = client.start_call(SHOULD_RATE_LIMIT_PATH).await.ok()?;
    let message = new_request([new_descriptor(&[("user", "ann")])]);
    let message = frame_message(&message.encode_to_vec());
    call.body.send_data(message.into(), true).ok()?;
    let outcome = call.finish().await.ok()?;
    (outcome.code == "0").then_some(server_cert)
}

/// Sends a request to the HTTP listener, and returns the response.
async fn get_healthcheck(mut io: impl AsyncRead + AsyncWrite + Unpin) -> String {
    let request = b"GET /healthcheck HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    io.write_all(request).await.unwrap();
    let mut received = Vec::new();
    let _ = io.read_to_end(&mut received).await;
    String::from_utf8_lossy(&received).into_owned()
}

#[tokio::test]
async fn grpc_and_http_listeners_require_tls() {
    let authority = CertAuthority::new();
    let pair = authority.issue_certificate();
    let files = CertFiles::new(&pair);
    let server = Server::start_with_grpc(POLICY, &files.tls_flags());
    assert_eq!(
        check_over_tls(&server, &authority, None).await,
        Some(parse_certificate(&pair.cert).to_vec())
    );
    assert_eq!(
        check_over_tls(&server, &CertAuthority::new(), None).await,
        None,
        "unknown authority"
    );
    assert!(server.listening_log().contains("listening on https://"));

    let http = connect_with_tls(server.address(), &authority, None, b"http/1.1").await.unwrap();
    let response = get_healthcheck(http).await;
    assert!(response.starts_with("HTTP/1.1 200 OK"), "{response}");

    let response = get_healthcheck(TcpStream::connect(server.address()).await.unwrap()).await;
    assert!(!response.starts_with("HTTP"), "{response}");
}

#[tokio::test]
async fn tls_of_one_listener_leaves_the_other_plain() {
    let authority = CertAuthority::new();
    let files = CertFiles::new(&authority.issue_certificate());
    let flags = |listener| [&files.tls_flags()[..], &["--tls-listeners", listener]].concat();
    let server = Server::start_with_grpc(POLICY, &flags("grpc"));
    assert!(check_over_tls(&server, &authority, None).await.is_some());
    assert!(server.listening_log().contains("listening on http://"));
    let response = get_healthcheck(TcpStream::connect(server.address()).await.unwrap()).await;
    assert!(response.starts_with("HTTP/1.1 200 OK") && response.ends_with("OK"), "{response}");

    let server = Server::start_with_grpc(POLICY, &flags("http"));
    assert!(check_over_tls(&server, &authority, None).await.is_none());
    assert!(server.listening_log().contains("listening on https://"));
    let client = RawGrpcConnection::connect(server.grpc_address()).await;
    let response = client.check(&new_request([new_descriptor(&[("user", "ann")])])).await;
    assert_eq!(response.overall_code(), Code::Ok);
}

#[tokio::test]
async fn client_certificate_of_other_ca_is_rejected() {
    let (authority, client_authority) = (CertAuthority::new(), CertAuthority::new());
    let files = CertFiles::new(&authority.issue_certificate());
    let ca = TempFile::new(".pem", client_authority.certificate_pem());
    let flags = [&files.tls_flags()[..], &["--tls-client-ca", path_str(ca.path())]].concat();
    let server = Server::start_with_grpc(POLICY, &flags);
    assert_eq!(check_over_tls(&server, &authority, None).await, None);
    assert_eq!(
        check_over_tls(&server, &authority, Some(&authority.issue_certificate())).await,
        None
    );
    assert!(
        check_over_tls(&server, &authority, Some(&client_authority.issue_certificate()))
            .await
            .is_some()
    );
}

#[tokio::test]
async fn certificates_reload_and_invalid_files_are_rejected() {
    let authority = CertAuthority::new();
    let [first, second] = [authority.issue_certificate(), authority.issue_certificate()];
    let files = CertFiles::new(&first);
    let server = Server::start_with_grpc(POLICY, &files.tls_flags());
    let server_cert = async || check_over_tls(&server, &authority, None).await.unwrap();
    assert_eq!(server_cert().await, parse_certificate(&first.cert).to_vec());

    fs::write(files.cert.path(), "-----BEGIN CERTIFICATE-----\nno\n").unwrap();
    let error = server.wait_for_log("--tls-cert (SLIDEGATE_TLS_CERT)");
    assert!(error.contains(path_str(files.cert.path())), "{error}");
    server.wait_for_log("TLS certificate reload failed; keeping the current certificates");
    assert_eq!(server_cert().await, parse_certificate(&first.cert).to_vec());

    // Until the certificate is replaced as well, the key belongs to another certificate.
    fs::write(files.key.path(), &second.key).unwrap();
    fs::write(files.cert.path(), &second.cert).unwrap();
    server.wait_for_log("TLS certificates reloaded");
    assert_eq!(server_cert().await, parse_certificate(&second.cert).to_vec());
}

#[test]
fn invalid_tls_file_error_names_file_and_flag() {
    let authority = CertAuthority::new();
    let (first, second) = (
        CertFiles::new(&authority.issue_certificate()),
        CertFiles::new(&authority.issue_certificate()),
    );
    let policy = TempFile::new(".yaml", POLICY);
    let nonsense = TempFile::new(".pem", "nonsense");
    let missing = Path::new("/nowhere/cert.pem");
    let cases = [
        (missing, first.key.path(), missing, "--tls-cert (SLIDEGATE_TLS_CERT)", "cannot be read"),
        (
            first.cert.path(),
            nonsense.path(),
            nonsense.path(),
            "--tls-key (SLIDEGATE_TLS_KEY)",
            "no private key",
        ),
        (nonsense.path(), first.key.path(), nonsense.path(), "--tls-cert", "no certificate in PEM"),
        (
            first.cert.path(),
            second.key.path(),
            first.cert.path(),
            "--tls-cert",
            "cannot be used with --tls-key",
        ),
    ];
    for (cert, key, wrong, flag, problem) in cases {
        let mut command = slidegate_command();
        command.arg("serve").arg("--policy").arg(policy.path()).args(["--http", "127.0.0.1:0"]);
        command.arg("--tls-cert").arg(cert).arg("--tls-key").arg(key);
        let output = command.output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(
            stderr.contains(flag) && stderr.contains(path_str(wrong)) && stderr.contains(problem),
            "{stderr}"
        );
    }
}

#[tokio::test]
async fn connection_without_tls_handshake_times_out() {
    let files = CertFiles::new(&CertAuthority::new().issue_certificate());
    let flags = [&files.tls_flags()[..], &["--client-timeout", "1s"]].concat();
    let server = Server::start_with_grpc(POLICY, &flags);
    for address in [server.address(), server.grpc_address()] {
        let mut silent = TcpStream::connect(address).await.unwrap();
        assert_eq!(silent.read(&mut [0; 1]).await.unwrap_or(0), 0);
    }
}

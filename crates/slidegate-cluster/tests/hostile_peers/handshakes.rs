//! Connections that are rejected before the first frame.

use std::time::Duration;

use rcgen::{ExtendedKeyUsagePurpose, date_time_ymd};
use rustls::version::TLS12;
use slidegate_cluster::transport::{RejectReason, Transport};
use slidegate_cluster::{Certificates, Credentials};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::hostile_peers::certificates::{OTHER_NAME, TestAuthority, TlsClient, shared_key};
use crate::hostile_peers::fixtures::{
    REPEATS, TransportNode, short_test_timeouts, short_timeouts_except_handshake, test_key,
    wait_until_closed,
};
use crate::hostile_peers::log::Log;

#[tokio::test]
async fn client_without_tls_is_rejected_immediately() {
    let (log, node) =
        (Log::new(), TransportNode::start(1, short_timeouts_except_handshake()).await);
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 100], b"\0\0\0\x05hello"] {
        let mut client = TcpStream::connect(node.address()).await.unwrap();
        client.write_all(bytes).await.unwrap();
        wait_until_closed(&mut client).await;
    }
    node.check_only_rejections(RejectReason::NotTls, &log).await;
}

#[tokio::test]
async fn silent_client_is_disconnected() {
    let (log, node) = (Log::new(), TransportNode::start(1, short_test_timeouts()).await);
    let mut clients = Vec::new();
    for bytes in [&b""[..], b"\x16", b"\x16\x03\x01\x02\0\x01\0"] {
        let mut client = TcpStream::connect(node.address()).await.unwrap();
        client.write_all(bytes).await.unwrap();
        clients.push(client);
    }
    for client in &mut clients {
        wait_until_closed(client).await;
    }
    node.check_only_rejections(RejectReason::TooSlow, &log).await;
}

#[tokio::test]
async fn client_unlike_node_is_rejected() {
    let authority = TestAuthority::new();
    let node = authority.sign_node();
    let other_name = authority.sign(|params| _ = params.subject_alt_names.remove(0));
    let without_certificate = TlsClient { has_certificate: false, ..TlsClient::default() };
    let cases = [
        (TlsClient { version: &TLS12, ..TlsClient::default() }, &node, RejectReason::WrongVersion),
        (TlsClient { protocol: b"h2", ..TlsClient::default() }, &node, RejectReason::WrongVersion),
        (without_certificate, &node, RejectReason::NoCertificate),
        (TlsClient::default(), &other_name, RejectReason::WrongName),
    ];
    for (client, certificates, reason) in cases {
        let (timing, log) = (short_timeouts_except_handshake(), Log::new());
        let node = TransportNode::start_with_certificates(&node, 1, timing).await;
        for _ in 0..REPEATS {
            if let Ok(mut stream) = client.connect(node.address(), certificates).await {
                wait_until_closed(&mut stream).await;
            }
        }
        node.check_only_rejections(reason, &log).await;
    }
}

/// Connects two nodes until connections were rejected. Checks that each node counts one reason, that it logs one
/// warning, and that the nodes do not meet.
async fn check_rejections(
    dialing: (&Credentials, RejectReason),
    accepting: (&Credentials, RejectReason),
) {
    let (log, timing) = (Log::new(), short_timeouts_except_handshake());
    let mut dialer = TransportNode::start_at("127.0.0.1:0", dialing.0, 1, timing);
    let mut acceptor = TransportNode::start_at("127.0.0.1:0", accepting.0, 2, timing);
    dialer.transport.set_peers(std::slice::from_ref(&acceptor.info));
    for (node, reason) in [(&mut dialer, dialing.1), (&mut acceptor, accepting.1)] {
        node.wait_until_rejected(reason, REPEATS).await;
        let others = node.reject_counters.iter().filter(|(other, _)| *other != reason);
        assert_eq!(others.map(|(_, count)| count).sum::<u64>(), 0, "{:?}", node.reject_counters);
        let event = timeout(Duration::ZERO, node.transport.next()).await;
        assert!(event.is_err(), "{event:?}");
    }
    let warnings = log.take_warnings();
    assert_eq!(warnings.len(), 2, "{warnings:#?}");
}

#[tokio::test]
async fn untrusted_certificate_is_rejected_by_both_sides() {
    let authority = TestAuthority::new();
    let valid = Credentials::Certificates(authority.sign_node());
    let foreign = TestAuthority::new().sign_node();
    let foreign = Certificates { ca_pem: authority.root_pem().into(), ..foreign };
    let expired = authority.sign(|params| params.not_after = date_time_ymd(2020, 1, 1));
    let early = authority.sign(|params| params.not_before = date_time_ymd(2500, 1, 1));
    for (certificates, reason) in [
        (foreign, RejectReason::ForeignCertificate),
        (expired, RejectReason::ExpiredCertificate),
        (early, RejectReason::ExpiredCertificate),
    ] {
        let untrusted = Credentials::Certificates(certificates);
        check_rejections((&untrusted, RejectReason::RejectedByPeer), (&valid, reason)).await;
        check_rejections((&valid, reason), (&untrusted, RejectReason::RejectedByPeer)).await;
    }
}

#[tokio::test]
async fn server_with_other_name_is_rejected() {
    let authority = TestAuthority::new();
    let node = Credentials::Certificates(authority.sign_node());
    let other_name = authority.sign(|params| _ = params.subject_alt_names.remove(0));
    let other_name = Certificates { name: OTHER_NAME.to_owned(), ..other_name };
    let server = Credentials::Certificates(other_name);
    let (rejected, by_peer) = (RejectReason::WrongName, RejectReason::RejectedByPeer);
    check_rejections((&node, rejected), (&server, by_peer)).await;
}

#[tokio::test]
async fn certificate_for_one_side_is_rejected_on_other_side() {
    let authority = TestAuthority::new();
    let usable_for = |usage| {
        let certificates = authority.sign(|params| params.extended_key_usages = vec![usage]);
        Credentials::Certificates(certificates)
    };
    let server_only = usable_for(ExtendedKeyUsagePurpose::ServerAuth);
    let client_only = usable_for(ExtendedKeyUsagePurpose::ClientAuth);
    let (rejected, by_peer) = (RejectReason::ForeignCertificate, RejectReason::RejectedByPeer);
    check_rejections((&server_only, by_peer), (&server_only, rejected)).await;
    check_rejections((&client_only, rejected), (&client_only, by_peer)).await;
}

#[tokio::test]
async fn node_with_other_key_is_rejected() {
    let other_key = shared_key("a key that no other node has");
    let (rejected, by_peer) = (RejectReason::ForeignCertificate, RejectReason::RejectedByPeer);
    check_rejections((&other_key, rejected), (&test_key(), by_peer)).await;
}

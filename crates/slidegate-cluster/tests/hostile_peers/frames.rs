//! Authenticated connections with invalid frames, or without any.

use std::time::Duration;

use bytes::Bytes;
use slidegate_cluster::Certificates;
use slidegate_cluster::message::hello_frame;
use slidegate_cluster::node_info::{MAX_NAME_BYTES, NodeInfo};
use slidegate_cluster::pn_counter::Incarnation;
use slidegate_cluster::transport::{MAX_FRAME_BYTES, RejectReason, Transport, TransportEvent};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{interval, timeout};
use tokio_rustls::client::TlsStream;

use crate::hostile_peers::certificates::{TestAuthority, TlsClient, accept_with_tls};
use crate::hostile_peers::fixtures::{
    REPEATS, TransportNode, short_test_timeouts, short_timeouts_except_handshake, wait_until_closed,
};
use crate::hostile_peers::log::Log;

/// A frame without content, which keeps the connection open.
const KEEPALIVE: [u8; 4] = [0; 4];

/// Returns the bytes of a frame: its length, then its content.
fn frame(content: &[u8]) -> Vec<u8> {
    [&u32::try_from(content.len()).unwrap().to_be_bytes(), content].concat()
}

/// Returns the first frame of a node.
pub fn hello(incarnation: u64, name: &str) -> Vec<u8> {
    let (incarnation, name) = (Incarnation(incarnation), name.into());
    frame(&hello_frame(&NodeInfo { incarnation, name, address: None }))
}

/// Connects to a node like another node, and sends bytes.
async fn connect_and_send(
    node: &TransportNode,
    certificates: &Certificates,
    bytes: &[u8],
) -> TlsStream<TcpStream> {
    let connected = TlsClient::default().connect(node.address(), certificates).await;
    let mut stream = connected.unwrap();
    stream.write_all(bytes).await.unwrap();
    stream.flush().await.unwrap();
    stream
}

#[tokio::test]
async fn invalid_frame_closes_connection() {
    let after_hello = |bytes: &[u8]| [&hello(9, "hostile"), &KEEPALIVE[..], bytes].concat();
    let too_long = u32::try_from(MAX_FRAME_BYTES + 1).unwrap().to_be_bytes();
    let cases = [
        ([0xff; 4].to_vec(), RejectReason::TooLong),
        (too_long.to_vec(), RejectReason::TooLong),
        (after_hello(&[0xff; 4]), RejectReason::TooLong),
        (after_hello(&too_long), RejectReason::TooLong),
        (after_hello(b"GET / HTTP/1.1\r\n\r\n"), RejectReason::TooLong),
        (frame(&[0xff; 4]), RejectReason::Malformed),
        (frame(b""), RejectReason::Malformed),
        (hello(9, ""), RejectReason::Malformed),
        (hello(9, &"n".repeat(MAX_NAME_BYTES + 1)), RejectReason::Malformed),
        // Fields 2 and 3, the name and the address: a name that is not UTF-8, and an invalid address.
        (frame(b"\x12\x01\xff"), RejectReason::Malformed),
        (frame(b"\x12\x01n\x1a\x04host"), RejectReason::Malformed),
    ];
    let certificates = TestAuthority::new().sign_node();
    for (bytes, reason) in cases {
        let (timing, log) = (short_timeouts_except_handshake(), Log::new());
        let node = TransportNode::start_with_certificates(&certificates, 1, timing).await;
        for _ in 0..REPEATS {
            let mut stream = connect_and_send(&node, &certificates, &bytes).await;
            wait_until_closed(&mut stream).await;
        }
        node.check_only_rejections(reason, &log).await;
    }
}

#[tokio::test]
async fn bytes_outside_of_tls_close_connection() {
    let certificates = TestAuthority::new().sign_node();
    let (timing, log) = (short_timeouts_except_handshake(), Log::new());
    let node = TransportNode::start_with_certificates(&certificates, 1, timing).await;
    for _ in 0..REPEATS {
        let bytes = [hello(9, "hostile"), KEEPALIVE.to_vec()].concat();
        let mut stream = connect_and_send(&node, &certificates, &bytes).await;
        let (tcp, _) = stream.get_mut();
        tcp.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        wait_until_closed(tcp).await;
    }
    node.check_only_rejections(RejectReason::NotTls, &log).await;
}

#[tokio::test]
async fn silent_authenticated_client_is_disconnected() {
    let certificates = TestAuthority::new().sign_node();
    for bytes in [&[][..], &[0], &hello(9, "hostile"), &hello(9, "hostile")[..9]] {
        let log = Log::new();
        let mut node =
            TransportNode::start_with_certificates(&certificates, 1, short_test_timeouts()).await;
        let mut streams = Vec::new();
        for _ in 0..REPEATS {
            streams.push(connect_and_send(&node, &certificates, bytes).await);
        }
        for stream in &mut streams {
            wait_until_closed(stream).await;
        }
        node.check_only_rejections(RejectReason::TooSlow, &log).await;
        assert!(node.is_quiet().await);
    }
}

/// Starts a server that completes handshakes, and sends bytes again and again. It does not read.
async fn start_server(certificates: &Certificates, first: Vec<u8>, repeated: Vec<u8>) -> NodeInfo {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = Some(listener.local_addr().unwrap());
    let certificates = certificates.clone();
    tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            // Each connection ends with an error when the node closes it.
            let _ = serve(tcp, &certificates, &first, &repeated).await;
        }
    });
    NodeInfo { incarnation: Incarnation(9), name: "hostile".into(), address }
}

async fn serve(
    tcp: TcpStream,
    certificates: &Certificates,
    first: &[u8],
    repeated: &[u8],
) -> std::io::Result<()> {
    let mut stream = accept_with_tls(tcp, certificates).await?;
    let length = usize::try_from(stream.read_u32().await?).unwrap();
    stream.read_exact(&mut vec![0; length]).await?;
    stream.write_all(first).await?;
    let mut ticks = interval(Duration::from_millis(50));
    loop {
        stream.write_all(repeated).await?;
        stream.flush().await?;
        ticks.tick().await;
    }
}

#[tokio::test]
async fn invalid_frame_of_server_closes_connection() {
    let certificates = TestAuthority::new().sign_node();
    for (first, repeated, reason) in [
        (
            hello(9, "hostile"),
            frame(b"only the client of a connection sends"),
            RejectReason::Malformed,
        ),
        (hello(9, "hostile"), [0xff; 4].to_vec(), RejectReason::TooLong),
        (hello(9, ""), KEEPALIVE.to_vec(), RejectReason::Malformed),
        ([0xff; 4].to_vec(), KEEPALIVE.to_vec(), RejectReason::TooLong),
    ] {
        let (timing, log) = (short_timeouts_except_handshake(), Log::new());
        let peer = start_server(&certificates, first, repeated).await;
        let mut node = TransportNode::start_with_certificates(&certificates, 1, timing).await;
        node.transport.set_peers(&[peer]);
        node.check_only_rejections(reason, &log).await;
    }
}

#[tokio::test]
async fn peer_that_never_reads_is_disconnected() {
    let certificates = TestAuthority::new().sign_node();
    let peer = start_server(&certificates, hello(9, "hostile"), KEEPALIVE.to_vec()).await;
    let timing = short_timeouts_except_handshake();
    let mut node = TransportNode::start_with_certificates(&certificates, 1, timing).await;
    node.transport.set_peers(std::slice::from_ref(&peer));
    assert_eq!(node.next().await, TransportEvent::LinkUp(peer.incarnation));
    let content = Bytes::from(vec![7; MAX_FRAME_BYTES]);
    let event = loop {
        node.transport.send(peer.incarnation, content.clone());
        if let Ok(event) = timeout(Duration::from_millis(1), node.next()).await {
            break event;
        }
    };
    assert_eq!(event, TransportEvent::LinkDown(peer.incarnation));
    let traffic = node.transport.traffic();
    assert!(traffic[0].1.dropped_frames > 0, "{traffic:?}");
}

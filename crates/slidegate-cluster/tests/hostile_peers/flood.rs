//! Floods of connections that do not complete their handshakes.
#![cfg(target_os = "linux")]

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use slidegate_cluster::transport::tcp::MAX_PENDING_HANDSHAKES;
use slidegate_cluster::transport::{RejectReason, Transport, TransportEvent};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpSocket;
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::hostile_peers::certificates::{TestAuthority, TlsClient};
use crate::hostile_peers::fixtures::{
    TEST_TIMEOUT, TransportNode, short_timeouts_except_handshake, test_key, wait_until_closed,
};
use crate::hostile_peers::frames::hello;
use crate::hostile_peers::log::Log;

/// The environment variable that is set only in the child process.
const CHILD_ENV_VAR: &str = "SLIDEGATE_TEST_FLOOD";

/// Number of connections that are open at the same time at the client.
const CONNECTIONS: usize = 10_000;

/// Maximum memory of a pending handshake. rustls collects the parts of a message of up to 64 KiB.
const MAX_HANDSHAKE_BYTES: usize = 512 * 1024;

/// The page size, the unit of `/proc/self/statm`, in bytes.
const PAGE_SIZE_BYTES: usize = 4096;

/// Returns the number of bytes of this process that are resident in memory.
fn read_resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * PAGE_SIZE_BYTES
}

/// Measures the memory of a child process, in which nothing else allocates.
#[test]
fn flood_takes_bounded_memory_and_nodes_still_connect() {
    if std::env::var_os(CHILD_ENV_VAR).is_some() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        return runtime.block_on(connect_during_flood());
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    let name = "hostile_peers::flood::flood_takes_bounded_memory_and_nodes_still_connect";
    let child = child.args(["--exact", name, "--nocapture"]).env(CHILD_ENV_VAR, "1");
    let output = child.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn flood_from_one_address_keeps_handshakes_of_others() {
    let (log, timing) = (Log::new(), short_timeouts_except_handshake());
    let certificates = TestAuthority::new().sign_node();
    let mut node = TransportNode::start_with_certificates(&certificates, 1, timing).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let slow_node = socket.connect(node.address()).await.unwrap();
    let mut clients = Vec::new();
    for _ in 0..3 * MAX_PENDING_HANDSHAKES {
        clients.push(tokio::net::TcpStream::connect(node.address()).await.unwrap());
    }
    // One slot is taken by the slow node.
    let aborted = 2 * MAX_PENDING_HANDSHAKES + 1;
    node.wait_until_rejected(RejectReason::Crowded, aborted as u64).await;
    for client in &mut clients[..aborted] {
        wait_until_closed(client).await;
    }
    let stream = TlsClient::default().handshake(slow_node, &certificates).await;
    let mut stream = stream.unwrap();
    stream.write_all(&hello(2, "node-2")).await.unwrap();
    assert!(matches!(node.transport.next().await, TransportEvent::NodeIntroduced(_)));
    let warnings = log.take_warnings();
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
}

/// Opens connections that begin a message of the TLS handshake and do not complete it. Returns them.
fn open_connections(address: SocketAddr, opened: &AtomicUsize) -> Vec<TcpStream> {
    // Three records of 16 KiB: the beginning of a `ClientHello` of 65,535 bytes.
    let record = [&[0x16, 3, 1, 0x40, 0][..], &[1, 0, 0xff, 0xff], &[0; 16 * 1024 - 4]].concat();
    let hello = [&record[..], &[0x16, 3, 1, 0x40, 0], &[0; 16 * 1024]].concat();
    let open = |_| {
        let mut stream = TcpStream::connect(address).unwrap();
        // Fails if the node has closed the connection.
        let _ = stream.write_all(&hello);
        opened.fetch_add(1, Ordering::Relaxed);
        stream
    };
    (0..CONNECTIONS).map(open).collect()
}

/// Opens a new link, and repeats a frame until it arrives, since the flood may close the link.
async fn reconnect(node1: &mut TransportNode, node2: &mut TransportNode) {
    node1.transport.set_peers(&[]);
    node1.transport.set_peers(std::slice::from_ref(&node2.info));
    let wait = async {
        loop {
            tokio::select! {
                event = node1.next() => {
                    if event == TransportEvent::LinkUp(node2.info.incarnation) {
                        node1.transport.send(node2.info.incarnation, Bytes::from_static(b"hello"));
                    }
                }
                _ = node2.next() => return,
            }
        }
    };
    assert!(timeout(TEST_TIMEOUT, wait).await.is_ok(), "no link within 30 s");
}

async fn connect_during_flood() {
    assert!(rlimit::increase_nofile_limit(CONNECTIONS as u64 + 1_000).unwrap() > 10_500);
    let (log, timing) = (Log::new(), short_timeouts_except_handshake());
    let mut node1 = TransportNode::start_at("127.0.0.2:0", &test_key(), 1, timing);
    let mut node2 = TransportNode::start(2, timing).await;
    let peer = node2.info.clone();
    node1.connect_and_send_test_frame(&mut node2, &peer).await;
    let (bytes, tasks) = (read_resident_bytes(), Handle::current().metrics().num_alive_tasks());
    let (address, opened) = (node2.address(), Arc::new(AtomicUsize::new(0)));
    let counter = Arc::clone(&opened);
    let flood = std::thread::spawn(move || open_connections(address, &counter));
    let (mut connected, mut max_bytes, mut max_tasks) = (0, 0, 0);
    while !flood.is_finished() {
        reconnect(&mut node1, &mut node2).await;
        connected += usize::from(opened.load(Ordering::Relaxed) < CONNECTIONS);
        max_bytes = max_bytes.max(read_resident_bytes());
        max_tasks = max_tasks.max(Handle::current().metrics().num_alive_tasks());
    }
    let aborted = CONNECTIONS - 2 * MAX_PENDING_HANDSHAKES;
    node2.wait_until_rejected(RejectReason::Crowded, aborted as u64).await;
    assert!(connected > 0, "nodes connect only after the flood");
    // Aborted tasks end a little later.
    assert!(max_tasks <= tasks + 4 * MAX_PENDING_HANDSHAKES, "{max_tasks} tasks");
    let growth = max_bytes.saturating_sub(bytes);
    assert!(growth <= MAX_PENDING_HANDSHAKES * MAX_HANDSHAKE_BYTES, "{growth} bytes");
    let warnings = log.take_warnings();
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    drop(flood.join());
}

//! An attacker between two nodes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use slidegate_cluster::Certificates;
use slidegate_cluster::transport::{RejectReason, Transport, TransportEvent};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

use crate::hostile_peers::certificates::{OTHER_NAME, TestAuthority};
use crate::hostile_peers::fixtures::{
    TransportNode, short_test_timeouts, start_two_nodes, wait_until_closed,
};

/// A TCP relay between two nodes that can modify, record and pause the traffic.
pub struct TestRelay {
    pub address: SocketAddr,
    /// While `true`, nothing is forwarded and no connection is closed.
    pub is_paused: watch::Sender<bool>,
    /// If `true`, the relay flips a bit of the next bytes to the target node.
    flips_next_bit: Arc<AtomicBool>,
    /// The unmodified bytes that were sent to the target node.
    outbound: mpsc::UnboundedReceiver<Vec<u8>>,
    /// The bytes that the target node has sent.
    inbound: mpsc::UnboundedReceiver<Vec<u8>>,
}

impl TestRelay {
    /// Starts a relay that forwards connections to the address `to`.
    pub async fn new(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (is_paused, pause_receiver) = watch::channel(false);
        let flips_next_bit = Arc::new(AtomicBool::new(false));
        let (outbound_recorder, outbound) = mpsc::unbounded_channel();
        let (inbound_recorder, inbound) = mpsc::unbounded_channel();
        let mut forwarder = Forwarder {
            is_paused: pause_receiver,
            flips_next_bit: Arc::clone(&flips_next_bit),
            outbound_recorder,
            inbound_recorder,
        };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let to = TcpStream::connect(to).await.unwrap();
                let _ = forwarder.forward_connection(stream, to).await;
            }
        });
        Self { address, is_paused, flips_next_bit, outbound, inbound }
    }
}

/// Returns all bytes that a relay has recorded in one direction.
fn take_recorded(chunks: &mut mpsc::UnboundedReceiver<Vec<u8>>) -> Vec<u8> {
    std::iter::from_fn(|| chunks.try_recv().ok()).flatten().collect()
}

struct Forwarder {
    is_paused: watch::Receiver<bool>,
    flips_next_bit: Arc<AtomicBool>,
    outbound_recorder: mpsc::UnboundedSender<Vec<u8>>,
    inbound_recorder: mpsc::UnboundedSender<Vec<u8>>,
}

impl Forwarder {
    /// Forwards one connection. The relay handles one connection at a time, so others wait while it is paused.
    async fn forward_connection(
        &mut self,
        mut from: TcpStream,
        mut to: TcpStream,
    ) -> std::io::Result<()> {
        let (mut outbound, mut inbound) = (Vec::with_capacity(65_536), Vec::with_capacity(65_536));
        loop {
            if *self.is_paused.borrow() {
                let _ = self.is_paused.wait_for(|is_paused| !is_paused).await;
                return Ok(());
            }
            tokio::select! {
                read = from.read_buf(&mut outbound) => if read? == 0 { return Ok(()) },
                read = to.read_buf(&mut inbound) => if read? == 0 { return Ok(()) },
                _ = self.is_paused.changed() => continue,
            }
            let _ = self.outbound_recorder.send(outbound.clone());
            let _ = self.inbound_recorder.send(inbound.clone());
            if let Some(last) = outbound.last_mut()
                && self.flips_next_bit.swap(false, Ordering::Relaxed)
            {
                *last ^= 1;
            }
            to.write_all(&outbound).await?;
            from.write_all(&inbound).await?;
            outbound.clear();
            inbound.clear();
        }
    }
}

#[tokio::test]
async fn link_reconnects_after_modified_byte() {
    let (mut node1, mut node2) = start_two_nodes().await;
    let relay = TestRelay::new(node2.address()).await;
    let peer = node2.info_at(relay.address);
    node1.connect_and_send_test_frame(&mut node2, &peer).await;
    for _ in 0..3 {
        relay.flips_next_bit.store(true, Ordering::Relaxed);
        node1.transport.send(peer.incarnation, Bytes::from_static(b"modified"));
        assert_eq!(node1.next().await, TransportEvent::LinkDown(peer.incarnation));
        assert_eq!(node1.next().await, TransportEvent::LinkUp(peer.incarnation));
    }
    // Checks also that no modified frame was delivered.
    node1.send_test_frame(&mut node2).await;
    assert_eq!(node2.reject_counters.get(RejectReason::NotTls), 3);
}

#[tokio::test]
async fn replayed_stream_is_rejected() {
    let (mut node1, mut node2) = start_two_nodes().await;
    let mut relay = TestRelay::new(node2.address()).await;
    let peer = node2.info_at(relay.address);
    node1.connect_and_send_test_frame(&mut node2, &peer).await;
    let mut client = TcpStream::connect(node2.address()).await.unwrap();
    client.write_all(&take_recorded(&mut relay.outbound)).await.unwrap();
    wait_until_closed(&mut client).await;
    node2.wait_until_rejected(RejectReason::NotTls, 1).await;
    node1.send_test_frame(&mut node2).await;
    assert!(node2.is_quiet().await);
}

#[tokio::test]
async fn recorded_traffic_contains_no_clear_text() {
    let authority = TestAuthority::new();
    let start = |incarnation| {
        let certificates = Certificates { name: OTHER_NAME.to_owned(), ..authority.sign_node() };
        async move {
            let timing = short_test_timeouts();
            TransportNode::start_with_certificates(&certificates, incarnation, timing).await
        }
    };
    let (mut node1, mut node2) = (start(1).await, start(2).await);
    let mut relay = TestRelay::new(node2.address()).await;
    let peer = node2.info_at(relay.address);
    node1.connect_and_send_test_frame(&mut node2, &peer).await;
    for recorded in [&mut relay.outbound, &mut relay.inbound] {
        let recorded = take_recorded(recorded);
        assert!(recorded.len() > 500, "{} bytes", recorded.len());
        for text in ["hello", "node-1", "node-2", OTHER_NAME] {
            let mut windows = recorded.windows(text.len());
            assert!(!windows.any(|window| window == text.as_bytes()), "{text}");
        }
    }
}

//! Fixtures for the transport tests, so that the same tests run with every kind of transport. A fixture assigns
//! addresses to nodes, and starts their transports.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use slidegate_cluster::credentials::{Credentials, NodeTls};
use slidegate_cluster::node_info::NodeInfo;
use slidegate_cluster::pn_counter::Incarnation;
use slidegate_cluster::transport::tcp::{TcpTransport, TransportTiming};
use slidegate_cluster::transport::{RejectCounters, Transport};
use tokio::net::TcpListener;

use crate::transport::simulated_network::{ChannelNetwork, ChannelTransport, NetworkFaults};

/// A fixture for tests of one kind of transport: assigns addresses to nodes, and starts their transports.
pub trait TransportFixture {
    /// The type of the tested transport.
    type Transport: Transport;

    /// Returns the address at which other nodes reach a node, whether or not it is running.
    async fn address(&mut self, node: u64) -> SocketAddr;

    /// Starts the transport of a node with the given incarnation.
    async fn join(&mut self, node: u64, incarnation: u64) -> Self::Transport;

    /// Returns a node as other nodes know it, whether or not it is running.
    async fn node_info(&mut self, node: u64, incarnation: u64) -> NodeInfo {
        let address = Some(self.address(node).await);
        let name = format!("node-{node}").into();
        NodeInfo { incarnation: Incarnation(incarnation), name, address }
    }

    /// Returns a node whose incarnation is its number.
    async fn peer(&mut self, node: u64) -> NodeInfo {
        self.node_info(node, node).await
    }
}

/// A fixture for the channel transport, on a simulated network without faults.
pub struct ChannelFixture(ChannelNetwork);

impl ChannelFixture {
    /// Creates an empty network.
    pub fn new() -> Self {
        Self(ChannelNetwork::new(1, NetworkFaults::default()))
    }
}

impl TransportFixture for ChannelFixture {
    type Transport = ChannelTransport;

    async fn address(&mut self, node: u64) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, u16::try_from(node).unwrap()).into()
    }

    async fn join(&mut self, node: u64, incarnation: u64) -> ChannelTransport {
        let node = self.node_info(node, incarnation).await;
        self.0.join(node)
    }
}

/// A fixture for the TCP transport on loopback. Contains the address of each node by its number.
#[derive(Default)]
pub struct TcpFixture(HashMap<u64, SocketAddr>);

impl TransportFixture for TcpFixture {
    type Transport = TcpTransport;

    async fn address(&mut self, node: u64) -> SocketAddr {
        if let Some(existing) = self.0.get(&node) {
            return *existing;
        }
        let address = unused_address().await;
        self.0.insert(node, address);
        address
    }

    async fn join(&mut self, node: u64, incarnation: u64) -> TcpTransport {
        let node = self.node_info(node, incarnation).await;
        let listener = bind_when_free(node.address.unwrap()).await;
        let key = "a key for all of these tests".to_owned();
        let tls = NodeTls::new(&Credentials::Keys(vec![key])).unwrap();
        let reject_counters = Arc::new(RejectCounters::default());
        TcpTransport::new(listener, tls, node, reject_counters, short_test_timeouts()).unwrap()
    }
}

/// Binds an address. Waits while the address is in use, since a dropped transport closes its listener asynchronously.
async fn bind_when_free(address: SocketAddr) -> TcpListener {
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(error) => assert_eq!(error.kind(), ErrorKind::AddrInUse),
        }
        tokio::task::yield_now().await;
    }
}

/// Returns an address on a port that is probably unused.
async fn unused_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap().local_addr().unwrap()
}

/// Returns timeouts that are short enough for tests.
fn short_test_timeouts() -> TransportTiming {
    TransportTiming {
        keepalive_interval: Duration::from_millis(100),
        idle_timeout: Duration::from_secs(2),
        initial_backoff: Duration::from_millis(5),
        max_backoff: Duration::from_millis(50),
        ..TransportTiming::default()
    }
}

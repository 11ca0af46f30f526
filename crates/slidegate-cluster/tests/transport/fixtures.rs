//! Fixtures for the transport tests, so that the same tests run with every kind of transport. A fixture assigns
//! addresses to nodes, and starts their transports.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use slidegate_cluster::pn_counter::Incarnation;
use slidegate_cluster::seal::{ClusterKey, PeerIdentity, RejectCounters};
use slidegate_cluster::transport::tcp::{TcpTransport, Timing};
use slidegate_cluster::transport::{PeerAddress, Transport};
use tokio::net::TcpListener;

use crate::simulated_network::{ChannelNetwork, ChannelTransport, NetworkFaults};

/// A fixture for tests of one kind of transport: assigns addresses to nodes, and starts their transports.
pub trait TransportFixture {
    /// The type of the tested transport.
    type Transport: Transport;

    /// Returns the address at which other nodes reach a node, whether or not it is running. The incarnation in the
    /// result is the number of the node.
    async fn peer_address(&mut self, node: u64) -> PeerAddress;

    /// Starts the transport of a node with the given incarnation.
    async fn join(&mut self, node: u64, incarnation: u64) -> Self::Transport;
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

    async fn peer_address(&mut self, node: u64) -> PeerAddress {
        PeerAddress {
            incarnation: Incarnation(node),
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)),
        }
    }

    async fn join(&mut self, _: u64, incarnation: u64) -> ChannelTransport {
        self.0.join(Incarnation(incarnation))
    }
}

/// A fixture for the TCP transport on loopback. Contains the address of each node by its number.
#[derive(Default)]
pub struct TcpFixture(HashMap<u64, SocketAddr>);

impl TransportFixture for TcpFixture {
    type Transport = TcpTransport;

    async fn peer_address(&mut self, node: u64) -> PeerAddress {
        let existing = self.0.get(&node).copied();
        let address = existing.unwrap_or_else(|| SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let address = if address.port() == 0 { unused_address(address).await } else { address };
        self.0.insert(node, address);
        PeerAddress { incarnation: Incarnation(node), address }
    }

    async fn join(&mut self, node: u64, incarnation: u64) -> TcpTransport {
        let address = self.peer_address(node).await.address;
        let listener = bind_when_free(address).await;
        let key = ClusterKey::for_loopback();
        let identity =
            PeerIdentity { incarnation: Incarnation(incarnation), name: format!("node-{node}") };
        TcpTransport::new(
            listener,
            key,
            identity,
            Arc::new(RejectCounters::default()),
            short_test_timeouts(),
        )
        .unwrap()
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
async fn unused_address(address: SocketAddr) -> SocketAddr {
    TcpListener::bind(address).await.unwrap().local_addr().unwrap()
}

/// Returns timeouts that are short enough for tests.
fn short_test_timeouts() -> Timing {
    Timing {
        keepalive_interval: Duration::from_millis(100),
        idle_timeout: Duration::from_secs(2),
        initial_backoff: Duration::from_millis(5),
        max_backoff: Duration::from_millis(50),
        ..Timing::default()
    }
}

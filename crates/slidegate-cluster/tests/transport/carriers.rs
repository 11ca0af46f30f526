//! Transports to check, and how nodes join them.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use slidegate_cluster::pn_counter::Incarnation;
use slidegate_cluster::seal::{ClusterKey, PeerIdentity, RejectCounters};
use slidegate_cluster::transport::channel::{ChannelTransport, Network, NetworkFaults};
use slidegate_cluster::transport::tcp::{TcpTransport, Timing};
use slidegate_cluster::transport::{PeerAddress, Transport};
use tokio::net::TcpListener;

/// Something over which nodes reach each other.
pub trait Carrier {
    type Transport: Transport;

    /// The node of this number, as others reach it, whether it is there or not.
    async fn peer(&mut self, node: u64) -> PeerAddress;

    /// It joins, with another incarnation if that is asked for.
    async fn join(&mut self, node: u64, incarnation: u64) -> Self::Transport;
}

/// In fine weather.
pub struct Within(Network);

impl Within {
    pub fn new() -> Self {
        Self(Network::new(1, NetworkFaults::default()))
    }
}

impl Carrier for Within {
    type Transport = ChannelTransport;

    async fn peer(&mut self, node: u64) -> PeerAddress {
        PeerAddress {
            incarnation: Incarnation(node),
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)),
        }
    }

    async fn join(&mut self, _: u64, incarnation: u64) -> ChannelTransport {
        self.0.join(Incarnation(incarnation))
    }
}

/// On loopback.
#[derive(Default)]
pub struct Tcp(HashMap<u64, SocketAddr>);

impl Carrier for Tcp {
    type Transport = TcpTransport;

    async fn peer(&mut self, node: u64) -> PeerAddress {
        let known = self.0.get(&node).copied();
        let address = known.unwrap_or_else(|| SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let address = if address.port() == 0 { free(address).await } else { address };
        self.0.insert(node, address);
        PeerAddress { incarnation: Incarnation(node), address }
    }

    async fn join(&mut self, node: u64, incarnation: u64) -> TcpTransport {
        let address = self.peer(node).await.address;
        let listener = bind(address).await;
        let key = ClusterKey::for_loopback();
        let me =
            PeerIdentity { incarnation: Incarnation(incarnation), name: format!("node-{node}") };
        TcpTransport::new(listener, key, me, Arc::new(RejectCounters::default()), quick()).unwrap()
    }
}

/// Waits for who was here before: a transport that is dropped closes its listener a moment later.
async fn bind(address: SocketAddr) -> TcpListener {
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(error) => assert_eq!(error.kind(), ErrorKind::AddrInUse),
        }
        tokio::task::yield_now().await;
    }
}

/// An address that nobody listens on, most probably.
async fn free(address: SocketAddr) -> SocketAddr {
    TcpListener::bind(address).await.unwrap().local_addr().unwrap()
}

fn quick() -> Timing {
    Timing {
        keepalive_interval: Duration::from_millis(100),
        idle_timeout: Duration::from_secs(2),
        initial_backoff: Duration::from_millis(5),
        max_backoff: Duration::from_millis(50),
        ..Timing::default()
    }
}

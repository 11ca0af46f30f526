//! The listener and the advertised address of a node.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::{TcpListener, TcpSocket, UdpSocket, lookup_host};

/// Number of connections that can wait in the accept queue of the TCP listener. If the queue is full, the system drops
/// the connections of peers.
const ACCEPT_QUEUE_LENGTH: u32 = 4096;

/// Listens on an address for other nodes. Port 0 selects a free port.
///
/// # Errors
/// Returns an error if the address is in use or does not belong to this machine.
pub fn listen_on(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Without this option, a node could not restart while connections of its former process are closing.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(ACCEPT_QUEUE_LENGTH)
}

/// An error that prevents a node from determining its advertised address.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdvertisedAddressError {
    /// The given address is unspecified: it means all interfaces, not the address of one machine.
    #[error(
        "other nodes cannot reach this node at {0}; advertise the IP address and port of this machine"
    )]
    Unspecified(SocketAddr),
    /// The node listens on all addresses, and there is no route to any seed.
    #[error(
        "the address to advertise is unknown: the node listens on all interfaces ({0}), and there is no route to \
         any seed; listen on the address that other nodes use, or advertise it"
    )]
    Unknown(SocketAddr),
}

/// Returns the address that is advertised to other nodes: `advertise` if given, otherwise `listen`.
///
/// If `listen` is unspecified (all interfaces), the local address of the route to the first reachable seed is returned
/// instead. No packets are sent. `listen` is the address of an open socket. If `advertise` has port 0, the port of
/// `listen` is used.
///
/// # Errors
/// Returns an error if `advertise` is unspecified, or if `listen` is unspecified and no seed is reachable.
pub async fn resolve_advertised_address(
    listen: SocketAddr,
    advertise: Option<SocketAddr>,
    seeds: &[String],
) -> Result<SocketAddr, AdvertisedAddressError> {
    if let Some(mut advertise) = advertise {
        if advertise.port() == 0 {
            advertise.set_port(listen.port());
        }
        return if advertise.ip().is_unspecified() {
            Err(AdvertisedAddressError::Unspecified(advertise))
        } else {
            Ok(advertise)
        };
    }
    if !listen.ip().is_unspecified() {
        return Ok(listen);
    }
    for seed in seeds {
        // Names that do not resolve are skipped here. They are resolved again later.
        for seed in lookup_host(seed).await.into_iter().flatten() {
            if let Some(ip) = local_ip_of_route_to_seed(seed, listen.ip()).await {
                return Ok(SocketAddr::new(ip, listen.port()));
            }
        }
    }
    Err(AdvertisedAddressError::Unknown(listen))
}

/// Returns `true` if at least one seed may be a node other than the node at address `own`. A seed that does not resolve
/// may be another node.
pub async fn has_other_seeds(seeds: &[String], own: SocketAddr) -> bool {
    for seed in seeds {
        let is_own = lookup_host(seed)
            .await
            .is_ok_and(|mut resolved| resolved.all(|resolved| resolved == own));
        if !is_own {
            return true;
        }
    }
    false
}

/// Returns the local address of the route to a seed. Returns `None` if there is no route, or if the listener does not
/// receive packets for that address.
async fn local_ip_of_route_to_seed(seed: SocketAddr, listen: IpAddr) -> Option<IpAddr> {
    let any: IpAddr =
        if seed.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    if listen.is_ipv4() && seed.is_ipv6() {
        return None;
    }
    let socket = UdpSocket::bind((any, 0)).await.ok()?;
    socket.connect(seed).await.ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_unspecified()).then_some(ip)
}

//! Where a node listens, and where others reach it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::{TcpListener, UdpSocket, lookup_host};

/// How often another port is tried, if a free one is asked for and only TCP has it.
const MAX_BIND_ATTEMPTS: usize = 16;

/// The one port of a node: datagrams of gossip, and streams of counts.
#[derive(Debug)]
pub struct Sockets {
    /// For [`Membership`](super::Membership).
    pub udp: UdpSocket,
    /// For [`TcpTransport`](crate::transport::tcp::TcpTransport).
    pub tcp: TcpListener,
    /// Where both listen.
    pub address: SocketAddr,
}

impl Sockets {
    /// Listens there. Port 0 stands for any free one.
    ///
    /// # Errors
    /// If the address is in use, or none of this machine.
    pub async fn bind(listen: SocketAddr) -> io::Result<Self> {
        let mut tries = if listen.port() == 0 { MAX_BIND_ATTEMPTS } else { 1 };
        loop {
            tries -= 1;
            let tcp = TcpListener::bind(listen).await?;
            let address = tcp.local_addr()?;
            match UdpSocket::bind(address).await {
                Ok(udp) => return Ok(Self { udp, tcp, address }),
                Err(error) if tries == 0 => return Err(error),
                Err(_) => {}
            }
        }
    }
}

/// Why nobody knows where a node is reached.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// What was given is no address of one machine.
    #[error(
        "others cannot reach this node at {0}: advertise the address of one machine, with its port"
    )]
    Unspecified(SocketAddr),
    /// It listens on all addresses, and no seed tells which of them leads to others.
    #[error(
        "the cluster listens on all addresses ({0}), and no seed tells by which of them others reach this node: \
         listen on the one that they use, or advertise it"
    )]
    Unknown(SocketAddr),
}

/// The address that others are told: the given one; else the one that the node listens on; and if that is unspecified,
/// the local address of the way to the first seed to which there is one. Nothing is sent for it. `listen` is the
/// address of an open socket; if a given address has port 0, the port of that is meant.
///
/// # Errors
/// If there is no such address.
pub async fn resolve_advertised(
    listen: SocketAddr,
    advertise: Option<SocketAddr>,
    seeds: &[String],
) -> Result<SocketAddr, AddressError> {
    if let Some(mut advertise) = advertise {
        if advertise.port() == 0 {
            advertise.set_port(listen.port());
        }
        return if advertise.ip().is_unspecified() {
            Err(AddressError::Unspecified(advertise))
        } else {
            Ok(advertise)
        };
    }
    if !listen.ip().is_unspecified() {
        return Ok(listen);
    }
    for seed in seeds {
        // A name that does not resolve is no seed now; the gossip asks for it again.
        for seed in lookup_host(seed).await.into_iter().flatten() {
            if let Some(ip) = local_ip_towards(seed, listen.ip()).await {
                return Ok(SocketAddr::new(ip, listen.port()));
            }
        }
    }
    Err(AddressError::Unknown(listen))
}

/// Whether a seed may be another node than the one that is reached at `own`: one that does not resolve may.
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

/// The local address of the way there, if the node hears what is sent to that address.
async fn local_ip_towards(seed: SocketAddr, listen: IpAddr) -> Option<IpAddr> {
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

//! The peer address, which is the address of the other end of the connection.

use std::net::{IpAddr, SocketAddr};

use http::Extensions;

/// The address of the other end of the connection, as a request extension for servers other than axum and tonic.
///
/// This extension takes precedence over the connection extensions of axum and tonic.
///
/// ```
/// use http::Request;
/// use slidegate_tower::extract::{Extract, client_ip};
/// use slidegate_tower::{Peer, TrustedProxies};
///
/// # let accepted = std::net::SocketAddr::from(([192, 0, 2, 7], 4711));
/// let mut request = Request::get("/").body(()).unwrap();
/// request.extensions_mut().insert(Peer(accepted));
/// let ip = client_ip(TrustedProxies::none());
/// assert_eq!(ip.extract((&request).into()).as_deref(), Some("192.0.2.7"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// Returns the address of the peer; `None` if the server has not added the address to the extensions.
pub(super) fn peer_address(extensions: &Extensions) -> Option<IpAddr> {
    let explicit = extensions.get().map(|Peer(address)| *address);
    explicit
        .or_else(|| axum_peer_address(extensions))
        .or_else(|| tonic_peer_address(extensions))
        .map(|peer| peer.ip())
}

#[cfg(feature = "axum")]
fn axum_peer_address(extensions: &Extensions) -> Option<SocketAddr> {
    use axum::extract::ConnectInfo;
    use axum::extract::connect_info::MockConnectInfo;

    let connection = extensions.get().map(|ConnectInfo(address)| *address);
    // axum also accepts `MockConnectInfo` in place of `ConnectInfo`, for tests of a service, so this function does too.
    connection.or_else(|| extensions.get().map(|MockConnectInfo(address)| *address))
}

#[cfg(not(feature = "axum"))]
fn axum_peer_address(_: &Extensions) -> Option<SocketAddr> {
    None
}

/// Returns the peer address from the connection information of tonic's server, which is also present for TLS
/// connections.
#[cfg(feature = "tonic")]
fn tonic_peer_address(extensions: &Extensions) -> Option<SocketAddr> {
    extensions.get::<tonic::transport::server::TcpConnectInfo>()?.remote_addr()
}

#[cfg(not(feature = "tonic"))]
fn tonic_peer_address(_: &Extensions) -> Option<SocketAddr> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address_with_last_octet(last: u8) -> SocketAddr {
        ([192, 0, 2, last], 4711).into()
    }

    fn peer_address_from_extension<T: Clone + Send + Sync + 'static>(
        extension: T,
    ) -> Option<IpAddr> {
        let mut extensions = Extensions::new();
        extensions.insert(extension);
        peer_address(&extensions)
    }

    #[test]
    fn peer_address_is_unknown_without_request_extension() {
        assert_eq!(peer_address(&Extensions::new()), None);
        assert_eq!(
            peer_address_from_extension(address_with_last_octet(1)),
            None,
            "a bare `SocketAddr` may be any address"
        );
    }

    #[test]
    fn peer_extension_provides_peer_address() {
        assert_eq!(
            peer_address_from_extension(Peer(address_with_last_octet(1))),
            Some(address_with_last_octet(1).ip())
        );
    }

    #[cfg(feature = "axum")]
    #[test]
    fn axum_connect_info_provides_peer_address() {
        use axum::extract::ConnectInfo;
        use axum::extract::connect_info::MockConnectInfo;

        assert_eq!(
            peer_address_from_extension(ConnectInfo(address_with_last_octet(1))),
            Some(address_with_last_octet(1).ip())
        );
        assert_eq!(
            peer_address_from_extension(MockConnectInfo(address_with_last_octet(2))),
            Some(address_with_last_octet(2).ip())
        );
        assert_eq!(peer_address_from_extension(ConnectInfo("/run/service.sock")), None);
    }

    #[cfg(feature = "tonic")]
    #[test]
    fn tonic_connect_info_provides_peer_address() {
        use tonic::transport::server::TcpConnectInfo;

        let peer = |remote_addr| {
            peer_address_from_extension(TcpConnectInfo {
                local_addr: Some(address_with_last_octet(9)),
                remote_addr,
            })
        };
        assert_eq!(peer(Some(address_with_last_octet(1))), Some(address_with_last_octet(1).ip()));
        assert_eq!(peer(None), None);
    }

    #[cfg(feature = "axum")]
    #[test]
    fn peer_extension_takes_precedence() {
        let mut extensions = Extensions::new();
        extensions.insert(axum::extract::ConnectInfo(address_with_last_octet(1)));
        extensions.insert(Peer(address_with_last_octet(2)));
        assert_eq!(peer_address(&extensions), Some(address_with_last_octet(2).ip()));
    }
}

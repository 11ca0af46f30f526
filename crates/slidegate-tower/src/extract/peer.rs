//! Who is at the other end of the connection.

use std::net::{IpAddr, SocketAddr};

use http::Extensions;

/// Who is at the other end of the connection: an extension of a request, for servers that are neither axum's nor
/// tonic's. If it is there, it counts before what those have put there.
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

/// The peer's address, if any server has told it.
pub(super) fn peer(extensions: &Extensions) -> Option<IpAddr> {
    let own = extensions.get().map(|Peer(address)| *address);
    own.or_else(|| axum_peer(extensions)).or_else(|| tonic_peer(extensions)).map(|peer| peer.ip())
}

#[cfg(feature = "axum")]
fn axum_peer(extensions: &Extensions) -> Option<SocketAddr> {
    use axum::extract::ConnectInfo;
    use axum::extract::connect_info::MockConnectInfo;

    let told = extensions.get().map(|ConnectInfo(address)| *address);
    // As axum itself does, for tests of a service.
    told.or_else(|| extensions.get().map(|MockConnectInfo(address)| *address))
}

#[cfg(not(feature = "axum"))]
fn axum_peer(_: &Extensions) -> Option<SocketAddr> {
    None
}

/// With TLS, too: tonic's server tells then of TCP beside it.
#[cfg(feature = "tonic")]
fn tonic_peer(extensions: &Extensions) -> Option<SocketAddr> {
    extensions.get::<tonic::transport::server::TcpConnectInfo>()?.remote_addr()
}

#[cfg(not(feature = "tonic"))]
fn tonic_peer(_: &Extensions) -> Option<SocketAddr> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> SocketAddr {
        ([192, 0, 2, last], 4711).into()
    }

    fn of<T: Clone + Send + Sync + 'static>(told: T) -> Option<IpAddr> {
        let mut extensions = Extensions::new();
        extensions.insert(told);
        peer(&extensions)
    }

    #[test]
    fn nobody_has_told_it() {
        assert_eq!(peer(&Extensions::new()), None);
        assert_eq!(of(address(1)), None, "this may be any address");
    }

    #[test]
    fn a_server_of_ones_own_tells_it() {
        assert_eq!(of(Peer(address(1))), Some(address(1).ip()));
    }

    #[cfg(feature = "axum")]
    #[test]
    fn axum_tells_it_and_so_does_its_mock() {
        use axum::extract::ConnectInfo;
        use axum::extract::connect_info::MockConnectInfo;

        assert_eq!(of(ConnectInfo(address(1))), Some(address(1).ip()));
        assert_eq!(of(MockConnectInfo(address(2))), Some(address(2).ip()));
        assert_eq!(of(ConnectInfo("/run/service.sock")), None);
    }

    #[cfg(feature = "tonic")]
    #[test]
    fn tonic_tells_it_unless_it_does_not_know() {
        use tonic::transport::server::TcpConnectInfo;

        let told = |remote_addr| of(TcpConnectInfo { local_addr: Some(address(9)), remote_addr });
        assert_eq!(told(Some(address(1))), Some(address(1).ip()));
        assert_eq!(told(None), None);
    }

    #[cfg(feature = "axum")]
    #[test]
    fn ones_own_word_counts_first() {
        let mut extensions = Extensions::new();
        extensions.insert(axum::extract::ConnectInfo(address(1)));
        extensions.insert(Peer(address(2)));
        assert_eq!(peer(&extensions), Some(address(2).ip()));
    }
}

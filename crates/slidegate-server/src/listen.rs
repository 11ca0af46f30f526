//! Resolves the addresses of listeners, and listens on them.

use std::fs;
use std::io;
use std::iter;
use std::net::{self, SocketAddr, ToSocketAddrs};

use thiserror::Error;
use tokio::net::{TcpListener, TcpSocket};
use tracing::warn;

use crate::args::ListenAddress;

/// Number of connections that can wait in the accept queue of a listener. If the queue is full, the system drops new
/// connections, and a proxy may let their requests pass. Proxies open hundreds of connections at once.
const ACCEPT_QUEUE_LENGTH: u32 = 4096;

/// The file with the maximum length of the accept queues on Linux. The system shortens longer queues without an error.
const MAX_ACCEPT_QUEUE_LENGTH_FILE: &str = "/proc/sys/net/core/somaxconn";

/// The reason why the server cannot listen on an address. `flag` names the flag and the variable of the address.
#[derive(Debug, Error)]
pub enum ListenError {
    #[error(
        "{flag}: `{address}` does not resolve: {error}; correct the host name, or write IP:PORT"
    )]
    Unresolved { flag: &'static str, address: ListenAddress, error: io::Error },
    #[error("{flag}: cannot listen on {address}: {error}; {}", bind_remedy(.error))]
    Bind { flag: &'static str, address: SocketAddr, error: io::Error },
}

/// The IP addresses of a listener, at least one. A host name can have several.
struct ResolvedAddresses {
    first: SocketAddr,
    others: Vec<SocketAddr>,
}

impl ResolvedAddresses {
    fn iter(&self) -> impl Iterator<Item = SocketAddr> {
        iter::once(self.first).chain(self.others.iter().copied())
    }
}

fn resolve(address: &ListenAddress, flag: &'static str) -> Result<ResolvedAddresses, ListenError> {
    let (name, port) = match address {
        ListenAddress::Ip(address) => {
            return Ok(ResolvedAddresses { first: *address, others: Vec::new() });
        }
        ListenAddress::Host { name, port } => (name.as_str(), *port),
    };
    let unresolved = |error| ListenError::Unresolved { flag, address: address.clone(), error };
    let mut addresses = (name, port).to_socket_addrs().map_err(unresolved)?;
    let first = addresses.next().ok_or_else(|| unresolved(io::ErrorKind::NotFound.into()))?;
    Ok(ResolvedAddresses { first, others: addresses.collect() })
}

/// Returns the first address that belongs to this machine. If there is none, returns the first address, so that
/// listening on it reports the reason.
pub fn resolve_local(
    address: &ListenAddress,
    flag: &'static str,
) -> Result<SocketAddr, ListenError> {
    let addresses = resolve(address, flag)?;
    let is_local = |address: &SocketAddr| net::TcpListener::bind((address.ip(), 0)).is_ok();
    Ok(addresses.iter().find(is_local).unwrap_or(addresses.first))
}

/// Listens on the first address on which that is possible. If there is none, returns the error of the first address.
pub fn bind(address: &ListenAddress, flag: &'static str) -> Result<TcpListener, ListenError> {
    let addresses = resolve(address, flag)?;
    let bind = |address| {
        let listener = listen_on(address);
        listener.map_err(|error| ListenError::Bind { flag, address, error })
    };
    let first = bind(addresses.first);
    if first.is_err() {
        for other in addresses.others {
            if let Ok(listener) = bind(other) {
                return Ok(listener);
            }
        }
    }
    first
}

fn listen_on(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Otherwise the server could not restart while connections of the former process are closing.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(ACCEPT_QUEUE_LENGTH)
}

/// Logs a warning if the system shortens the accept queues of listeners.
pub fn warn_about_short_accept_queues() {
    let max = fs::read_to_string(MAX_ACCEPT_QUEUE_LENGTH_FILE).ok();
    if let Some(warning) = max.and_then(|max| short_accept_queue_warning(&max)) {
        warn!("{warning}");
    }
}

/// Returns a warning if the maximum length of accept queues, as text, is too small.
fn short_accept_queue_warning(max: &str) -> Option<String> {
    let max: u32 = max.trim().parse().ok()?;
    (max < ACCEPT_QUEUE_LENGTH).then(|| {
        format!(
            "accept queue limit is {max}; {ACCEPT_QUEUE_LENGTH} needed, because the system drops connections of a \
             burst above it: raise it with sysctl -w net.core.somaxconn={ACCEPT_QUEUE_LENGTH}"
        )
    })
}

fn bind_remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "stop the process that uses it, or choose another port",
        io::ErrorKind::AddrNotAvailable => "choose an address of this machine",
        io::ErrorKind::PermissionDenied => "choose a port of 1024 or above",
        _ => "choose another address",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unresolvable_name_error_has_flag_and_remedy() {
        let address: ListenAddress = "nowhere.invalid:1".parse().unwrap();
        let error = resolve_local(&address, "--http (SLIDEGATE_HTTP)").unwrap_err().to_string();
        assert!(
            error.starts_with("--http (SLIDEGATE_HTTP): `nowhere.invalid:1` does not resolve: "),
            "{error}"
        );
        assert!(error.ends_with("; correct the host name, or write IP:PORT"), "{error}");
    }

    #[test]
    fn short_accept_queue_warning_has_remedy() {
        for long_enough in ["4096\n", "65535\n", "", "unreadable"] {
            assert_eq!(short_accept_queue_warning(long_enough), None);
        }
        let warning = short_accept_queue_warning("128\n").unwrap();
        assert!(warning.starts_with("accept queue limit is 128; 4096 needed"), "{warning}");
        assert!(warning.ends_with("sysctl -w net.core.somaxconn=4096"), "{warning}");
    }

    #[test]
    fn host_name_resolves_to_local_address() {
        let address = resolve_local(&"localhost:5".parse().unwrap(), "").unwrap();
        assert!(address.ip().is_loopback() && address.port() == 5, "{address}");
    }
}

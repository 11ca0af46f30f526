//! Resolves the addresses of listeners, and listens on them.

mod unix;

use std::fmt;
use std::fs;
use std::io;
use std::iter;
use std::net::{self, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;
use tokio::net::{TcpListener, TcpSocket};
use tracing::warn;

use crate::connections::ListenSocket;

/// Number of connections that can wait in the accept queue of a listener. If the queue is full, the system drops new
/// connections, and a proxy may let their requests pass. Proxies open hundreds of connections at once.
const ACCEPT_QUEUE_LENGTH: u32 = 4096;

/// The file with the maximum length of the accept queues on Linux. The system shortens longer queues without an error.
const MAX_ACCEPT_QUEUE_LENGTH_FILE: &str = "/proc/sys/net/core/somaxconn";

/// The address of a listener. A host name is resolved when the server starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    Ip(SocketAddr),
    Host { name: String, port: u16 },
}

/// The address of a gRPC listener: TCP, or `unix:` with the path of a UNIX socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrpcAddress {
    Tcp(ListenAddress),
    Unix(PathBuf),
}

/// The error for a text that is not the address of a listener. Its message is the remedy.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum ListenAddressError {
    #[error(
        "the host is missing: write 127.0.0.1:{0} to listen for this machine only, or 0.0.0.0:{0} to listen on all addresses"
    )]
    MissingHost(u16),
    #[error("write an IPv6 address in brackets, for example [::1]:8080")]
    MissingBrackets,
    #[error("write IP:PORT or HOST:PORT with a port of at most 65535, for example 127.0.0.1:8080")]
    Invalid,
    #[error("write an absolute path, for example unix:/run/slidegate/grpc.sock")]
    RelativePath,
}

impl FromStr for ListenAddress {
    type Err = ListenAddressError;

    fn from_str(text: &str) -> Result<Self, ListenAddressError> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Ip(address));
        }
        // A host name does not end in a number, so a misspelled IPv4 address such as 127.0.0.256 is not read as a host
        // name.
        let is_name = |host: &str| host.rsplit('.').next().is_some_and(is_not_a_number);
        if let Some((name, port)) = split_host_and_port(text).filter(|(host, _)| is_name(host)) {
            return Ok(Self::Host { name: name.to_owned(), port });
        }
        match text.strip_prefix(':').map(str::parse) {
            Some(Ok(port)) => Err(ListenAddressError::MissingHost(port)),
            _ if is_ipv6_without_brackets(text) => Err(ListenAddressError::MissingBrackets),
            _ => Err(ListenAddressError::Invalid),
        }
    }
}

impl FromStr for GrpcAddress {
    type Err = ListenAddressError;

    fn from_str(text: &str) -> Result<Self, ListenAddressError> {
        match text.strip_prefix("unix:").map(PathBuf::from) {
            None => text.parse().map(Self::Tcp),
            Some(path) if path.is_absolute() => Ok(Self::Unix(path)),
            Some(_) => Err(ListenAddressError::RelativePath),
        }
    }
}

fn is_not_a_number(text: &str) -> bool {
    text.bytes().any(|byte| !byte.is_ascii_digit())
}

fn is_ipv6_without_brackets(text: &str) -> bool {
    let is_address_char = |char: char| char.is_ascii_hexdigit() || ":.".contains(char);
    text.matches(':').count() > 1 && text.chars().all(is_address_char)
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Host { name, port } => write!(f, "{name}:{port}"),
        }
    }
}

/// Splits `HOST:PORT` at the colon. The host is a name, an IPv4 address, or an IPv6 address in brackets. Returns `None`
/// if the text has another form.
pub fn split_host_and_port(text: &str) -> Option<(&str, u16)> {
    if text.starts_with('[') {
        let address: SocketAddr = text.parse().ok()?;
        return Some((text.rsplit_once(':')?.0, address.port()));
    }
    let (host, port) = text.split_once(':')?;
    let is_valid = !host.is_empty()
        && host.chars().all(is_host_char)
        && port.bytes().all(|byte| byte.is_ascii_digit());
    port.parse().ok().filter(|_| is_valid).map(|port| (host, port))
}

/// Returns `true` for a character that a host name may contain.
pub fn is_host_char(char: char) -> bool {
    char.is_ascii_alphanumeric() || ".-_".contains(char)
}

/// The reason why the server cannot listen on an address. `flag` names the flag and the variable of the address.
#[derive(Debug, Error)]
pub enum ListenError {
    #[error(
        "{flag}: `{address}` does not resolve: {error}; correct the host name, or write IP:PORT"
    )]
    Unresolved { flag: &'static str, address: ListenAddress, error: io::Error },
    #[error("{flag}: cannot listen on {address}: {error}; {}", bind_remedy(.error))]
    Bind { flag: &'static str, address: SocketAddr, error: io::Error },
    #[error("{flag}: cannot listen on {}: {error}; {}", path.display(), unix::bind_remedy(.error))]
    BindUnix { flag: &'static str, path: PathBuf, error: io::Error },
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

/// Listens on the address of a gRPC listener.
pub fn bind_grpc(address: &GrpcAddress, flag: &'static str) -> Result<ListenSocket, ListenError> {
    match address {
        GrpcAddress::Tcp(address) => bind(address, flag),
        GrpcAddress::Unix(path) => {
            let unusable = |error| ListenError::BindUnix { flag, path: path.clone(), error };
            unix::listen_on(path).map(ListenSocket::Unix).map_err(unusable)
        }
    }
}

/// Listens on the first address on which that is possible. If there is none, returns the error of the first address.
pub fn bind(address: &ListenAddress, flag: &'static str) -> Result<ListenSocket, ListenError> {
    let addresses = resolve(address, flag)?;
    let bind = |address| {
        let listener = listen_on(address).map(ListenSocket::Tcp);
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
    // Without SO_REUSEADDR, the server could not restart while connections of the former process are closing.
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
    fn listener_accepts_ip_address_or_host_name() {
        for text in ["127.0.0.1:8080", "[::1]:0", "0.0.0.0:1"] {
            assert_eq!(text.parse(), Ok(ListenAddress::Ip(text.parse().unwrap())), "{text}");
        }
        for (text, name, port) in [
            ("localhost:8080", "localhost", 8080),
            ("node-1.prod_a.example:0", "node-1.prod_a.example", 0),
        ] {
            let name = name.to_owned();
            assert_eq!(text.parse(), Ok(ListenAddress::Host { name, port }), "{text}");
            assert_eq!(text.parse::<ListenAddress>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn invalid_listener_address_error_has_remedy() {
        let error = |text: &str| text.parse::<ListenAddress>().unwrap_err();
        for text in [
            "",
            "8080",
            "localhost",
            "127.0.0.1",
            "127.0.0.256:80",
            "1.2.3:80",
            "localhost:",
            "localhost:65536",
            "localhost:+1",
            ":http",
            "http://localhost:8080",
            "a b:1",
        ] {
            assert_eq!(error(text), ListenAddressError::Invalid, "{text}");
        }
        assert_eq!(error(":8080"), ListenAddressError::MissingHost(8080));
        assert_eq!(error("::1:8080"), ListenAddressError::MissingBrackets);
        assert!(error(":8080").to_string().contains("0.0.0.0:8080"));
    }

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

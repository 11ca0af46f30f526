//! Values and flags of the listeners: their addresses, TLS, and repeated headers.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;
use thiserror::Error;

use super::value_parsers::split_host_and_port;

/// The TLS flags of the client listeners.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "TLS")]
pub struct TlsArgs {
    /// PEM file with the certificate chain of the server; enables TLS for HTTP and gRPC
    ///
    /// The server's own certificate is first. The file is reloaded when it changes.
    #[arg(long, value_name = "FILE", env = "SLIDEGATE_TLS_CERT", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// PEM file with the private key of --tls-cert, reloaded when it changes
    #[arg(long, value_name = "FILE", env = "SLIDEGATE_TLS_KEY", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// PEM file with the certificate authorities of clients, reloaded when it changes
    ///
    /// Clients without a certificate from one of them are rejected.
    #[arg(long, value_name = "FILE", env = "SLIDEGATE_TLS_CLIENT_CA", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,
}

/// The treatment of a client's headers that occur more than once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RepeatedHeaders {
    /// Use the first value.
    First,
    /// Treat the header as absent, unless all values are equal.
    Absent,
}

/// The address of a listener. A host name is resolved when the server starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    Ip(SocketAddr),
    Host { name: String, port: u16 },
}

/// The error for a text that is not the address of a listener. Displayed as the remedy.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum ListenAddressError {
    #[error(
        "the host is missing: write 127.0.0.1:{0} to listen for this machine only, or 0.0.0.0:{0} to listen on all addresses"
    )]
    MissingHost(u16),
    #[error("write an IPv6 address in brackets, for example [::1]:8080")]
    MissingBrackets,
    #[error("write IP:PORT or HOST:PORT, for example 127.0.0.1:8080")]
    Invalid,
}

impl FromStr for ListenAddress {
    type Err = ListenAddressError;

    fn from_str(text: &str) -> Result<Self, ListenAddressError> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Ip(address));
        }
        // The last part of a misspelled IPv4 address, such as 127.0.0.256, is not the end of a host name.
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

/// A listener address, or `none` for no listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressOrNone(pub Option<ListenAddress>);

/// The error for a text that is neither an address nor `none`.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("{0}; or none to disable the listener")]
pub struct AddressOrNoneError(ListenAddressError);

impl FromStr for AddressOrNone {
    type Err = AddressOrNoneError;

    fn from_str(text: &str) -> Result<Self, AddressOrNoneError> {
        match text {
            "none" => Ok(Self(None)),
            _ => text.parse().map(|address| Self(Some(address))).map_err(AddressOrNoneError),
        }
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
    fn listener_option_accepts_address_or_none() {
        assert_eq!("none".parse(), Ok(AddressOrNone(None)));
        let address = "[::1]:1".parse().unwrap();
        assert_eq!("[::1]:1".parse(), Ok(AddressOrNone(Some(ListenAddress::Ip(address)))));
        for invalid in ["", "None", "6070", "127.0.0.1"] {
            let error = invalid.parse::<AddressOrNone>().unwrap_err().to_string();
            assert!(error.ends_with("127.0.0.1:8080; or none to disable the listener"), "{error}");
        }
    }
}

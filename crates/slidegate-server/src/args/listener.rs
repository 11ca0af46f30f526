//! Values and flags of the listeners: optional addresses, TLS, and repeated headers.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;
use thiserror::Error;

/// The TLS flags of the client listeners.
#[derive(Debug, clap::Args)]
pub struct TlsArgs {
    /// PEM file with the certificate chain of the server, the server's own certificate first; enables TLS for HTTP and
    /// gRPC. The file is reloaded when it changes
    #[arg(long, value_name = "FILE", env = "SLIDEGATE_TLS_CERT", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// PEM file with the private key of --tls-cert, reloaded when it changes
    #[arg(long, value_name = "FILE", env = "SLIDEGATE_TLS_KEY", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// PEM file with the certificate authorities of clients, reloaded when it changes; clients without a certificate
    /// from one of them are rejected
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

/// A listener address, or `none` for no listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressOrNone(pub Option<SocketAddr>);

/// The error for a text that is neither an address nor `none`.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("write IP:PORT, such as 127.0.0.1:6070, or none")]
pub struct AddressOrNoneError;

impl FromStr for AddressOrNone {
    type Err = AddressOrNoneError;

    fn from_str(text: &str) -> Result<Self, AddressOrNoneError> {
        match text {
            "none" => Ok(Self(None)),
            _ => text.parse().map(|address| Self(Some(address))).map_err(|_| AddressOrNoneError),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listener_option_accepts_address_or_none() {
        assert_eq!("none".parse(), Ok(AddressOrNone(None)));
        assert_eq!(
            "[::1]:1".parse(),
            Ok(AddressOrNone(Some(([0, 0, 0, 0, 0, 0, 0, 1], 1).into())))
        );
        for invalid in ["", "None", "6070", "localhost:6070", "127.0.0.1"] {
            assert_eq!(invalid.parse::<AddressOrNone>(), Err(AddressOrNoneError), "{invalid}");
        }
    }
}

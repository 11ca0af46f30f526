//! Values and flags of the listeners: addresses that may be `none`, and TLS.

use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

use crate::boot::listen::ListenAddressError;
use crate::tls::AppProtocol;

/// The TLS flags of the client listeners.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "TLS")]
pub struct TlsArgs {
    /// PEM file with the certificate chain of the server; enables TLS
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

    /// The listeners with TLS: http, grpc or both
    #[arg(
        long,
        value_name = "LISTENER,…",
        env = "SLIDEGATE_TLS_LISTENERS",
        value_delimiter = ',',
        default_value = "http,grpc",
        hide_possible_values = true,
        requires = "tls_cert"
    )]
    pub tls_listeners: Vec<AppProtocol>,
}

/// A listener address, or `none` for no listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressOrNone<A>(pub Option<A>);

/// The error for a text that is neither an address nor `none`.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("{0}; or none to disable the listener")]
pub struct AddressOrNoneError(ListenAddressError);

impl<A: FromStr<Err = ListenAddressError>> FromStr for AddressOrNone<A> {
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
    use crate::boot::listen::{GrpcAddress, ListenAddress};

    #[test]
    fn listener_option_accepts_address_or_none() {
        assert_eq!("none".parse(), Ok(AddressOrNone::<ListenAddress>(None)));
        let address = ListenAddress::Ip("[::1]:1".parse().unwrap());
        assert_eq!("[::1]:1".parse(), Ok(AddressOrNone(Some(address.clone()))));
        for invalid in ["", "None", "6070", "127.0.0.1"] {
            let error = invalid.parse::<AddressOrNone<ListenAddress>>().unwrap_err().to_string();
            assert!(error.ends_with("127.0.0.1:8080; or none to disable the listener"), "{error}");
        }
        assert_eq!("[::1]:1".parse(), Ok(AddressOrNone(Some(GrpcAddress::Tcp(address)))));
        let socket = GrpcAddress::Unix("/run/a.sock".into());
        assert_eq!("unix:/run/a.sock".parse(), Ok(AddressOrNone(Some(socket))));
        for invalid in ["unix:", "unix:a.sock"] {
            let error = invalid.parse::<AddressOrNone<GrpcAddress>>().unwrap_err().to_string();
            assert!(error.starts_with("write an absolute path, for example unix:/"), "{error}");
        }
    }
}

//! The error of creating a store. Its message never contains a password.

use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

use crate::address::AddressError;

/// The reason why no store can be created for an address.
///
/// `Debug` shows the same message as `Display`, because `unwrap` and a `main` that returns a `Result` print the `Debug`
/// form.
#[derive(Error)]
pub enum ConnectError {
    /// The address is invalid.
    #[error("`{address}` is not a Redis address: {source}")]
    Address {
        /// The address as given, without its password.
        address: String,
        /// The reason why the text is not an address.
        #[source]
        source: AddressError,
    },
    /// No client can be created for the address.
    #[error("cannot create a Redis client for {address}: {message}")]
    Client {
        /// The address without its password.
        address: String,
        /// The reason why no client can be created.
        message: String,
    },
    /// The file of CA certificates cannot be read.
    #[error(
        "cannot load the CA certificates in `{}`: {message}; use a readable file with PEM certificates",
        path.display()
    )]
    Ca {
        /// The path of the file with the CA certificates.
        path: PathBuf,
        /// The reason why the file cannot be used.
        message: String,
    },
    /// The certificate of the client or its private key cannot be read.
    #[error(
        "cannot load the client certificate in `{}`: {message}; use readable PEM files with a certificate and its private key",
        path.display()
    )]
    ClientCertificate {
        /// The path of the file that cannot be used: the certificate or the private key.
        path: PathBuf,
        /// The reason why the file cannot be used.
        message: String,
    },
}

impl fmt::Debug for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connect_error_debug_equals_display() {
        let source = AddressError::Scheme;
        let error = ConnectError::Address { address: "localhost".into(), source };
        assert_eq!(format!("{error:?}"), error.to_string());
        assert!(error.to_string().starts_with("`localhost` is not a Redis address: "));
    }
}

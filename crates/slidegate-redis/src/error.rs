//! The error of creating a store. Its message never contains a password.

use std::path::PathBuf;

use thiserror::Error;

use crate::address::AddressError;

/// The reason why no store can be created for an address.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The address is invalid.
    #[error("`{address}` is not a Redis address: {source}")]
    Address {
        /// The address as given, without its password.
        address: String,
        /// The cause.
        #[source]
        source: AddressError,
    },
    /// No client can be created for the address.
    #[error("cannot create a client for {address}: {message}")]
    Client {
        /// The address without its password.
        address: String,
        /// The cause.
        message: String,
    },
    /// The file of CA certificates cannot be read, or cannot be used for this address.
    #[error("cannot trust the certificates in `{}`: {message}", path.display())]
    Ca {
        /// The path of the file.
        path: PathBuf,
        /// The cause.
        message: String,
    },
}

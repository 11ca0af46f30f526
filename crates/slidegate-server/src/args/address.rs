//! An address that need not be.

use std::net::SocketAddr;
use std::str::FromStr;

use thiserror::Error;

/// An address, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressOrNone(pub Option<SocketAddr>);

/// Why a text is no such address.
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
    fn it_is_an_address_or_none() {
        assert_eq!("none".parse(), Ok(AddressOrNone(None)));
        assert_eq!(
            "[::1]:1".parse(),
            Ok(AddressOrNone(Some(([0, 0, 0, 0, 0, 0, 0, 1], 1).into())))
        );
        for wrong in ["", "None", "6070", "localhost:6070", "127.0.0.1"] {
            assert_eq!(wrong.parse::<AddressOrNone>(), Err(AddressOrNoneError), "{wrong}");
        }
    }
}

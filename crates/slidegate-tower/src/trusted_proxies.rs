//! Which proxies are believed when they say for whom they ask.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use thiserror::Error;

/// Networks whose addresses are believed when they say, in `X-Forwarded-For`, for whom they ask.
///
/// ```
/// use slidegate_tower::TrustedProxies;
///
/// let ours: TrustedProxies = "10.0.0.0/8, 192.0.2.7, fd00::/8".parse()?;
/// assert!(ours.trust([10, 1, 2, 3].into()));
/// assert!(!TrustedProxies::none().trust([10, 1, 2, 3].into()));
/// # Ok::<(), slidegate_tower::TrustedProxiesError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustedProxies(Vec<IpNet>);

/// Why a text is no list of networks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TrustedProxiesError {
    /// There is nothing in it: nobody is written `none`.
    #[error("write addresses and networks with commas between, such as 10.0.0.0/8,::1, or none")]
    Empty,
    /// This part is neither an address nor a network.
    #[error("`{0}` is no address and no network: write it as 10.0.0.7, 10.0.0.0/8 or fd00::/8")]
    Network(String),
    /// A network, with an address in it that is not its first.
    #[error("`{text}` has bits behind its prefix: did you mean {meant}?")]
    HostBits {
        /// The part as it was written.
        text: String,
        /// The network that this address is in.
        meant: String,
    },
}

impl TrustedProxies {
    /// Nobody: whoever connects is the client. So it is where no proxy stands before the service.
    pub fn none() -> Self {
        Self::default()
    }

    /// Whether this address is believed; `::ffff:192.0.2.7` is 192.0.2.7.
    pub fn trust(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }
}

/// Addresses and networks with commas between, or `none`.
impl FromStr for TrustedProxies {
    type Err = TrustedProxiesError;

    fn from_str(text: &str) -> Result<Self, TrustedProxiesError> {
        match text.trim() {
            "" => Err(TrustedProxiesError::Empty),
            "none" => Ok(Self::none()),
            list => {
                list.split(',').map(|part| network(part.trim())).collect::<Result<_, _>>().map(Self)
            }
        }
    }
}

/// An address alone is a network of one.
fn network(text: &str) -> Result<IpNet, TrustedProxiesError> {
    let wrong = || TrustedProxiesError::Network(text.to_owned());
    let network: IpNet = match text.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().into(),
        Err(_) => text.parse().map_err(|_| wrong())?,
    };
    if network.trunc() != network {
        return Err(TrustedProxiesError::HostBits {
            text: text.to_owned(),
            meant: network.trunc().to_string(),
        });
    }
    Ok(network)
}

/// As one may write it.
impl fmt::Display for TrustedProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, rest @ ..] = &*self.0 else { return f.write_str("none") };
        write!(f, "{first}")?;
        rest.iter().try_for_each(|network| write!(f, ",{network}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trusts(list: &str, address: &str) -> bool {
        list.parse::<TrustedProxies>().unwrap().trust(address.parse().unwrap())
    }

    #[test]
    fn an_address_of_one_of_the_networks_is_believed_however_it_is_written() {
        let list = "10.0.0.0/8, 192.0.2.7,fd00::/8";
        for address in ["10.1.2.3", "::ffff:10.1.2.3", "192.0.2.7", "fd00::1"] {
            assert!(trusts(list, address), "{address}");
        }
        for address in ["11.0.0.1", "192.0.2.8", "fc00::1", "::1", "::10.1.2.3"] {
            assert!(!trusts(list, address), "{address}");
        }
        assert!(trusts("::ffff:10.1.2.3", "10.1.2.3"));
    }

    #[test]
    fn none_is_nobody() {
        assert!(!trusts("none", "127.0.0.1"));
        assert_eq!("none".parse(), Ok(TrustedProxies::none()));
        assert_eq!("none".parse::<TrustedProxies>().unwrap().to_string(), "none");
    }

    #[test]
    fn what_is_no_list_says_what_is_wrong() {
        let error = |text: &str| text.parse::<TrustedProxies>().unwrap_err().to_string();
        assert!(error("").contains("or none"));
        assert!(error("10.0.0.0/8,").starts_with("`` is no address"));
        assert!(error("10.0.0.0/33").starts_with("`10.0.0.0/33` is no address"));
        assert!(error("localhost").starts_with("`localhost` is no address"));
        assert!(error("127.0.0.1,none").starts_with("`none` is no address"));
        assert_eq!(
            error("10.0.0.7/8"),
            "`10.0.0.7/8` has bits behind its prefix: did you mean 10.0.0.0/8?"
        );
    }
}

//! Proxies whose `X-Forwarded-For` header is trusted.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use slidegate::policy::{Network, NetworkError};
use thiserror::Error;

/// A list of networks of proxies whose `X-Forwarded-For` header is trusted.
///
/// ```
/// use slidegate_tower::TrustedProxies;
///
/// let proxies: TrustedProxies = "10.0.0.0/8, 192.0.2.7, fd00::/8".parse()?;
/// assert!(proxies.contains([10, 1, 2, 3].into()));
/// assert!(!TrustedProxies::none().contains([10, 1, 2, 3].into()));
/// # Ok::<(), slidegate_tower::TrustedProxiesError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustedProxies(Vec<Network>);

/// The error for a text that is not a list of networks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TrustedProxiesError {
    /// The list is empty. Write `none` to trust no proxy.
    #[error(
        "the list is empty; write addresses and networks separated by commas, for example `10.0.0.0/8,::1`, or `none`"
    )]
    Empty,
    /// A part of the list is neither an address nor a network.
    #[error(transparent)]
    Network(#[from] NetworkError),
}

impl TrustedProxies {
    /// Creates an empty list, for a service without a proxy in front of it. The other end of the connection is then
    /// always the client.
    pub fn none() -> Self {
        Self::default()
    }

    /// Returns `true` if the address belongs to a trusted proxy. An IPv4-mapped address such as `::ffff:192.0.2.7` is
    /// treated as the IPv4 address 192.0.2.7.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(address))
    }
}

/// Parses addresses and networks separated by commas, or `none`.
impl FromStr for TrustedProxies {
    type Err = TrustedProxiesError;

    fn from_str(text: &str) -> Result<Self, TrustedProxiesError> {
        match text.trim() {
            "" => Err(TrustedProxiesError::Empty),
            "none" => Ok(Self::none()),
            list => {
                let networks = list.split(',').map(|part| part.trim().parse());
                Ok(Self(networks.collect::<Result<_, NetworkError>>()?))
            }
        }
    }
}

/// Writes the list in the format that `FromStr` parses.
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

    fn is_trusted(list: &str, address: &str) -> bool {
        list.parse::<TrustedProxies>().unwrap().contains(address.parse().unwrap())
    }

    #[test]
    fn address_in_network_is_trusted() {
        let list = "10.0.0.0/8, 192.0.2.7,fd00::/8";
        for address in ["10.1.2.3", "::ffff:10.1.2.3", "192.0.2.7", "fd00::1"] {
            assert!(is_trusted(list, address), "{address}");
        }
        for address in ["11.0.0.1", "192.0.2.8", "fc00::1", "::1", "::10.1.2.3"] {
            assert!(!is_trusted(list, address), "{address}");
        }
        assert!(is_trusted("::ffff:10.1.2.3", "10.1.2.3"));
    }

    #[test]
    fn ipv4_mapped_network_trusts_ipv4_addresses() {
        for list in ["::ffff:10.0.0.0/104", "::FFFF:a00:0/104"] {
            assert!(is_trusted(list, "10.1.2.3") && is_trusted(list, "::ffff:10.1.2.3"), "{list}");
            assert!(!is_trusted(list, "11.0.0.1") && !is_trusted(list, "::a01:203"), "{list}");
            assert_eq!(list.parse::<TrustedProxies>().unwrap().to_string(), "10.0.0.0/8");
        }
        assert!(!is_trusted("::/0", "10.1.2.3"), "a wider network contains only IPv6 addresses");
    }

    #[test]
    fn list_with_word_none_trusts_no_address() {
        assert!(!is_trusted("none", "127.0.0.1"));
        assert_eq!("none".parse(), Ok(TrustedProxies::none()));
        assert_eq!("none".parse::<TrustedProxies>().unwrap().to_string(), "none");
    }

    #[test]
    fn error_for_invalid_proxy_list_describes_problem() {
        let error = |text: &str| text.parse::<TrustedProxies>().unwrap_err().to_string();
        assert!(error("").contains("or `none`"));
        assert!(error("10.0.0.0/8,").starts_with("`` is not an address or a network"));
        assert!(error("10.0.0.0/33").starts_with("`10.0.0.0/33` is not a network; an IPv4 prefix"));
        assert!(error("localhost").starts_with("`localhost` is not an address or a network"));
        assert!(error("127.0.0.1,none").starts_with("`none` is not an address or a network"));
        assert_eq!(
            error("10.0.0.7/8"),
            "`10.0.0.7/8` has address bits after its prefix; did you mean `10.0.0.0/8`?"
        );
        assert!(error("::ffff:10.0.0.0/8").contains("contains IPv4-mapped and other addresses"));
    }
}

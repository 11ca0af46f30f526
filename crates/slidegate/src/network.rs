//! IP networks and the canonical form of addresses. An IPv4-mapped IPv6 address is treated as the IPv4 address, in
//! networks and in the addresses that are compared with them.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use thiserror::Error;

/// The number of leading bits that all IPv4-mapped addresses, `::ffff:0:0/96`, have in common.
const IPV4_MAPPED_PREFIX_BITS: u8 = 96;

/// A network of IP addresses, or one address.
///
/// An IPv4-mapped address, `::ffff:192.0.2.7` in any spelling, is treated as the IPv4 address, and a network of such
/// addresses as an IPv4 network. A network that contains IPv4-mapped and other addresses, such as `::/0`, matches only
/// IPv6 addresses.
///
/// ```
/// use slidegate::policy::Network;
///
/// let network: Network = "::ffff:203.0.113.0/120".parse()?;
/// assert_eq!(network.to_string(), "203.0.113.0/24");
/// assert!(network.contains([203, 0, 113, 9].into()));
/// # Ok::<(), slidegate::policy::NetworkError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network(IpNet);

/// An invalid network.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// The text is neither an address nor an address with a prefix.
    #[error(
        "`{0}` is not an address or a network; write for example 192.0.2.7, 10.0.0.0/8 or fd00::/8"
    )]
    Form(String),
    /// The prefix length after the `/` is not a whole number, or larger than the number of bits of an address.
    #[error("`{text}` is not a network; an {family} prefix is a whole number from 0 to {max_bits}")]
    Prefix {
        /// The text as it was written.
        text: String,
        /// `IPv4` or `IPv6`.
        family: &'static str,
        /// The number of bits of an address of this family.
        max_bits: u8,
    },
    /// The address has bits set after the prefix, so it is not the first address of a network.
    #[error("`{text}` has address bits after its prefix; did you mean `{suggestion}`?")]
    HostBits {
        /// The text as it was written.
        text: String,
        /// The network that contains the address.
        suggestion: String,
    },
    /// The address is IPv4-mapped, but the prefix is shorter than 96 bits.
    #[error(
        "`{0}` contains IPv4-mapped and other addresses; write 0.0.0.0/0 for all IPv4 addresses, ::/0 for all IPv6 addresses"
    )]
    MoreThanMapped(String),
}

impl Network {
    /// Returns whether the network contains an address.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        parse_network(text).unwrap_or_else(|| Err(NetworkError::Form(text.to_owned()))).map(Self)
    }
}

/// Writes the network, for example as `10.0.0.0/8`, and a single address as `10.0.0.7/32`.
impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Parses a network, or a single address as a network with only this address. Returns `None` if the text is neither.
pub(crate) fn parse_network(text: &str) -> Option<Result<IpNet, NetworkError>> {
    if let Some(address) = parse_address(text) {
        return Some(Ok(address.into()));
    }
    let (ip, prefix) = text.split_once('/')?;
    Some(parse_network_with_prefix(text, ip.parse().ok()?, prefix))
}

/// Parses the prefix length of the network `text`, whose address is `ip`.
fn parse_network_with_prefix(text: &str, ip: IpAddr, prefix: &str) -> Result<IpNet, NetworkError> {
    let (family, max_bits) = if ip.is_ipv4() { ("IPv4", 32) } else { ("IPv6", 128) };
    let wrong_prefix = || NetworkError::Prefix { text: text.to_owned(), family, max_bits };
    let is_number = prefix.bytes().all(|byte| byte.is_ascii_digit());
    let prefix: u8 = prefix.parse().ok().filter(|_| is_number).ok_or_else(wrong_prefix)?;
    let address = ip.to_canonical();
    let prefix = if address.is_ipv4() == ip.is_ipv4() {
        prefix
    } else {
        prefix
            .checked_sub(IPV4_MAPPED_PREFIX_BITS)
            .ok_or_else(|| NetworkError::MoreThanMapped(text.to_owned()))?
    };
    let network = IpNet::new(address, prefix).map_err(|_| wrong_prefix())?;
    if network.trunc() != network {
        let suggestion = network.trunc().to_string();
        return Err(NetworkError::HostBits { text: text.to_owned(), suggestion });
    }
    Ok(network)
}

/// Parses an address; `::ffff:192.0.2.7` becomes 192.0.2.7. Returns `None` if the text is not an address.
pub(crate) fn parse_address(text: &str) -> Option<IpAddr> {
    // Rejects most values that are not addresses cheaply.
    let is_address_byte = |byte: u8| byte.is_ascii_hexdigit() || byte == b':' || byte == b'.';
    if text.len() > 45 || !text.bytes().all(is_address_byte) {
        return None;
    }
    Some(text.parse::<IpAddr>().ok()?.to_canonical())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;

    fn parse_test_network(text: &str) -> Network {
        text.parse().unwrap()
    }

    #[test]
    fn ipv4_mapped_network_becomes_ipv4_network() {
        for (text, expected) in [
            ("::ffff:203.0.113.0/120", "203.0.113.0/24"),
            ("::FFFF:cb00:7100/120", "203.0.113.0/24"),
            ("0:0:0:0:0:ffff:cb00:7100/120", "203.0.113.0/24"),
            ("::ffff:0:0/96", "0.0.0.0/0"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("::ffff:c000:207/128", "192.0.2.7/32"),
            ("::ffff:c000:207", "192.0.2.7/32"),
            ("::/0", "::/0"),
            ("::/80", "::/80"),
            ("::fffe:0:0/95", "::fffe:0:0/95"),
            ("::192.0.2.0/120", "::c000:200/120"),
        ] {
            assert_eq!(parse_test_network(text).to_string(), expected, "{text}");
        }
    }

    #[test]
    fn wide_ipv6_network_contains_no_ipv4_address() {
        for text in ["::/0", "::/80", "::fffe:0:0/95"] {
            assert!(!parse_test_network(text).contains([192, 0, 2, 7].into()), "{text}");
            let mapped = Ipv4Addr::new(192, 0, 2, 7).to_ipv6_mapped();
            assert!(!parse_test_network(text).contains(mapped.into()), "{text}");
        }
    }

    #[test]
    fn invalid_network_is_rejected_with_reason() {
        let error = |text: &str| text.parse::<Network>().unwrap_err().to_string();
        assert!(
            error("localhost").starts_with("`localhost` is not an address or a network; write")
        );
        assert!(error("10.0.0.0/33").ends_with("an IPv4 prefix is a whole number from 0 to 32"));
        assert!(
            error("::ffff:10.0.0.0/129")
                .ends_with("an IPv6 prefix is a whole number from 0 to 128")
        );
        assert!(
            error("::ffff:10.0.0.0/256")
                .ends_with("an IPv6 prefix is a whole number from 0 to 128")
        );
        assert!(error("::ffff:10.0.0.7/104").ends_with("did you mean `10.0.0.0/8`?"));
        for wide in ["::ffff:0:0/95", "::ffff:10.0.0.0/8", "::ffff:10.0.0.0/0"] {
            assert!(error(wide).contains("contains IPv4-mapped and other addresses"), "{wide}");
        }
    }

    /// Returns spellings of an address that RFC 4291 allows.
    pub(crate) fn address_spellings(address: Ipv6Addr) -> Vec<String> {
        let groups = address.segments();
        let written = |group: fn(&u16) -> String| groups.iter().map(group).collect::<Vec<_>>();
        let short = written(|group| format!("{group:x}")).join(":");
        let long = written(|group| format!("{group:04x}")).join(":");
        let [a, b, c, d] = [12, 13, 14, 15].map(|nth| address.octets()[nth]);
        let dotted =
            format!("{}:{a}.{b}.{c}.{d}", written(|group| format!("{group:x}"))[..6].join(":"));
        let texts = [address.to_string(), short, long, dotted];
        texts.iter().flat_map(|text| [text.clone(), text.to_ascii_uppercase()]).collect()
    }

    /// Generates IPv6 addresses, including IPv4-mapped ones.
    pub(crate) fn arbitrary_ipv6_address() -> impl Strategy<Value = Ipv6Addr> {
        let mapped = any::<Ipv4Addr>().prop_map(|address| address.to_ipv6_mapped());
        prop_oneof![any::<Ipv6Addr>(), mapped]
    }

    proptest! {
        #[test]
        fn all_address_spellings_parse_to_same_address(ip in arbitrary_ipv6_address()) {
            for text in address_spellings(ip) {
                prop_assert_eq!(parse_address(&text), Some(IpAddr::V6(ip).to_canonical()), "{}", text);
            }
        }

        #[test]
        fn all_network_spellings_contain_same_addresses(
            ip in arbitrary_ipv6_address(), other in arbitrary_ipv6_address(), shared in 0u8..=128, prefix in 0u8..=128,
        ) {
            let mask = |bits: u8| !u128::MAX.checked_shr(bits.into()).unwrap_or(0);
            let first = Ipv6Addr::from_bits(ip.to_bits() & mask(prefix));
            let near = Ipv6Addr::from_bits(
                (ip.to_bits() & mask(shared)) | (other.to_bits() & !mask(shared)),
            );
            for text in address_spellings(first) {
                let network = match format!("{text}/{prefix}").parse::<Network>() {
                    Ok(network) => network,
                    Err(error) => {
                        prop_assert!(first.to_ipv4_mapped().is_some() && prefix < 96, "{}", error);
                        continue;
                    }
                };
                for address in [ip, near] {
                    let is_inside = address.to_bits() & mask(prefix) == first.to_bits();
                    // A wider network contains only IPv6 addresses.
                    let is_excluded = address.to_ipv4_mapped().is_some() && prefix < 96;
                    prop_assert_eq!(network.contains(address.into()), is_inside && !is_excluded);
                    prop_assert_eq!(
                        network.contains(IpAddr::V6(address).to_canonical()), is_inside && !is_excluded
                    );
                }
            }
        }
    }
}

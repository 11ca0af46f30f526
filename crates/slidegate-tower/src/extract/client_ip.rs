//! An extractor of the client's address, for the key of a limiter or an attribute of a policy.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::Extensions;

use super::peer::peer_address;
use super::text::InlineText;
use super::{Extract, ExtractedText, RequestHead, client_address};
use crate::TrustedProxies;

/// The default length in bits of the prefix to which IPv6 addresses are shortened. A client with one IPv6 address
/// usually controls the whole /64 network.
const DEFAULT_IPV6_PREFIX_BITS: u8 = 64;

/// The request extensions that can have the address of the peer, as a warning names them if none is present.
const PEER_EXTENSIONS: &str = "ConnectInfo<SocketAddr>, TcpConnectInfo or Peer";

/// Creates an extractor of the client's address: the address of the peer or, if the peer is a trusted proxy, the
/// [address that it forwards](client_address).
///
/// IPv4 addresses are extracted in full, and `::ffff:192.0.2.7` becomes `192.0.2.7`. As the key of a limiter, an IPv6
/// address is shortened to its network, such as `2001:db8::/64`, because a client usually controls all addresses of the
/// network. As one of the [`Attributes`](super::Attributes), an IPv6 address is complete unless
/// [`ipv6_prefix`](ClientIp::ipv6_prefix) is set, because a policy compares complete addresses with networks, and each
/// of its rules shortens the addresses to networks itself.
///
/// The peer address is read from axum's `ConnectInfo` (`into_make_service_with_connect_info::<SocketAddr>`), tonic's
/// `TcpConnectInfo` or the [`Peer`](super::Peer) of this crate. Without any of them, for example on a Unix socket,
/// there is no value, even if `X-Forwarded-For` contains addresses. If a limit needs the address, the layer then logs a
/// warning once.
///
/// ```
/// use http::Request;
/// use slidegate_tower::Peer;
/// use slidegate_tower::extract::{Extract, client_ip};
///
/// let ip = client_ip("10.0.0.0/8".parse()?);
/// let request = Request::get("/")
///     .header("x-forwarded-for", "198.51.100.1, 2001:db8::1")
///     .extension(Peer(([10, 0, 0, 1], 4711).into()))
///     .body(())?;
/// assert_eq!(ip.extract((&request).into()).as_deref(), Some("2001:db8::/64"));
/// assert_eq!(ip.attribute((&request).into()).as_deref(), Some("2001:db8::1"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn client_ip(trusted: TrustedProxies) -> ClientIp {
    ClientIp { trusted, ipv6_prefix: None }
}

/// The extractor of the client's address, created by [`client_ip`].
#[derive(Clone, Debug)]
pub struct ClientIp {
    trusted: TrustedProxies,
    ipv6_prefix: Option<u8>,
}

impl ClientIp {
    /// Sets the length in bits of the prefix to which IPv6 addresses are shortened, for keys and attributes. With 128,
    /// addresses are complete. Values outside of 1 to 128 are clamped.
    ///
    /// ```
    /// # use http::Request;
    /// # use slidegate_tower::extract::{Extract, client_ip};
    /// # use slidegate_tower::{Peer, TrustedProxies};
    /// let ip = client_ip(TrustedProxies::none()).ipv6_prefix(32);
    /// # let peer = Peer("[2001:db8:1::1]:4711".parse().unwrap());
    /// # let request = Request::get("/").extension(peer).body(()).unwrap();
    /// assert_eq!(ip.extract((&request).into()).as_deref(), Some("2001:db8::/32"));
    /// ```
    pub fn ipv6_prefix(self, bits: u8) -> Self {
        Self { ipv6_prefix: Some(bits.clamp(1, 128)), ..self }
    }

    fn format_client_address<'r>(
        &self,
        head: RequestHead<'r>,
        ipv6_prefix: u8,
    ) -> Option<ExtractedText<'r>> {
        let address = client_address(head.headers, peer_address(head.extensions)?, &self.trusted);
        Some(ExtractedText::from(match address {
            IpAddr::V4(address) => format_ipv4(address),
            IpAddr::V6(address) => format_ipv6_network(address, ipv6_prefix),
        }))
    }
}

impl Extract for ClientIp {
    fn extract<'r>(&self, head: RequestHead<'r>) -> Option<ExtractedText<'r>> {
        self.format_client_address(head, self.ipv6_prefix.unwrap_or(DEFAULT_IPV6_PREFIX_BITS))
    }

    fn attribute<'r>(&self, head: RequestHead<'r>) -> Option<ExtractedText<'r>> {
        self.format_client_address(head, self.ipv6_prefix.unwrap_or(128))
    }

    fn missing_extension(&self, extensions: &Extensions) -> Option<&'static str> {
        peer_address(extensions).is_none().then_some(PEER_EXTENSIONS)
    }
}

/// The decimal digits (hundreds, tens, ones) of each octet of an IPv4 address. A table takes fewer instructions than
/// divisions.
static OCTET_DIGITS: [[u8; 3]; 256] = octet_digits();

const fn octet_digits() -> [[u8; 3]; 256] {
    let mut table = [[0; 3]; 256];
    let mut octet = 0;
    while octet < table.len() {
        table[octet] = [(octet / 100) as u8, (octet / 10 % 10) as u8, (octet % 10) as u8];
        octet += 1;
    }
    table
}

/// Formats an address like `to_string`, but faster, because this function runs for every request.
fn format_ipv4(address: Ipv4Addr) -> InlineText {
    // The mask changes no digit. It shows the compiler that the character is ASCII, so that `push` is short.
    let digit = |value: u8| char::from(b'0' | (value & 0xf));
    let mut text = InlineText::new();
    for (nth, octet) in address.octets().into_iter().enumerate() {
        if nth > 0 {
            text.push('.');
        }
        let [hundreds, tens, ones] = OCTET_DIGITS[usize::from(octet)];
        if octet >= 100 {
            text.push(digit(hundreds));
        }
        if octet >= 10 {
            text.push(digit(tens));
        }
        text.push(digit(ones));
    }
    text
}

/// Formats the network that contains an address, with a prefix of 1 to 128 bits. With 128 bits, the result is the
/// address.
fn format_ipv6_network(address: Ipv6Addr, bits: u8) -> InlineText {
    let mut text = InlineText::new();
    let mask = !u128::MAX.checked_shr(bits.into()).unwrap_or(0);
    let network = Ipv6Addr::from_bits(address.to_bits() & mask);
    // The buffer is large enough for the longest network, so `write!` does not fail.
    let _ = match bits {
        128 => write!(text, "{network}"),
        _ => write!(text, "{network}/{bits}"),
    };
    text
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use http::Request;
    use proptest::prelude::*;

    use super::*;
    use crate::Peer;

    const TRUSTED_PROXIES: &str = "127.0.0.1,10.0.0.0/8,fd00::/8";

    /// Returns a request from this peer with these `X-Forwarded-For` lines.
    fn request_from_peer(peer: &str, lines: &[&str]) -> Request<()> {
        let peer = SocketAddr::new(peer.parse().unwrap(), 4711);
        let request = Request::get("/").extension(Peer(peer));
        let add = |request: http::request::Builder, line: &&str| {
            request.header("x-forwarded-for", line.as_bytes())
        };
        lines.iter().fold(request, add).body(()).unwrap()
    }

    fn extract_limiter_key(ip: &ClientIp, request: &Request<()>) -> String {
        ip.extract(request.into()).unwrap().into_owned()
    }

    /// Returns the limiter key of a request from `peer` with these `X-Forwarded-For` lines, if `proxies` are trusted.
    fn limiter_key(proxies: &str, peer: &str, lines: &[&str]) -> String {
        extract_limiter_key(&client_ip(proxies.parse().unwrap()), &request_from_peer(peer, lines))
    }

    fn limiter_key_of_peer(peer: &str) -> String {
        limiter_key("none", peer, &[])
    }

    #[test]
    fn forwarded_header_from_untrusted_peer_is_ignored() {
        for spoofed in ["198.51.100.1", "127.0.0.1", "10.0.0.1, 10.0.0.2", "192.0.2.8,", "::1"] {
            assert_eq!(limiter_key("none", "192.0.2.7", &[spoofed]), "192.0.2.7", "{spoofed}");
            assert_eq!(
                limiter_key(TRUSTED_PROXIES, "192.0.2.7", &[spoofed]),
                "192.0.2.7",
                "{spoofed}"
            );
        }
    }

    #[test]
    fn address_appended_by_single_proxy_is_client_address() {
        for spoofed in ["198.51.100.1", "127.0.0.1", "10.0.0.1, 10.0.0.2", "rubbish", ",,"] {
            let lines = format!("{spoofed}, 192.0.2.7");
            assert_eq!(
                limiter_key(TRUSTED_PROXIES, "10.0.0.1", &[&lines]),
                "192.0.2.7",
                "{spoofed}"
            );
            assert_eq!(
                limiter_key(TRUSTED_PROXIES, "10.0.0.1", &[spoofed, "192.0.2.7"]),
                "192.0.2.7",
                "{spoofed}"
            );
        }
    }

    #[test]
    fn address_appended_by_outermost_proxy_is_client_address() {
        for spoofed in ["198.51.100.1", "127.0.0.1", "10.0.0.1, 10.0.0.2", "rubbish", ",,"] {
            let lines = format!("{spoofed}, 192.0.2.7, 10.0.0.2");
            assert_eq!(
                limiter_key(TRUSTED_PROXIES, "10.0.0.1", &[&lines]),
                "192.0.2.7",
                "{spoofed}"
            );
            let lines = [spoofed, "192.0.2.7", "10.0.0.2"];
            assert_eq!(
                limiter_key(TRUSTED_PROXIES, "::ffff:10.0.0.1", &lines),
                "192.0.2.7",
                "{spoofed}"
            );
        }
    }

    #[test]
    fn malformed_forwarded_header_yields_proxy_address() {
        for malformed in [
            "",
            ", ,",
            "unknown",
            "_hidden",
            "192.0.2.256",
            "192.0.2.7.",
            "192.0.2.7 198.51.100.1",
            "192.0.2.7:99999",
            "[2001:db8::1",
            "2001:db8::1]:80",
            "fe80::1%eth0",
            "for=192.0.2.7",
            "\"192.0.2.7\"",
            "0xc0000207",
            "192.0.2.07",
            "192.0.2.7;10.0.0.1",
            "\u{661}92.0.2.7",
        ] {
            assert_eq!(
                limiter_key(TRUSTED_PROXIES, "10.0.0.1", &[malformed]),
                "10.0.0.1",
                "{malformed}"
            );
            let header = format!("198.51.100.1, {malformed}, 10.0.0.2");
            let expected = if malformed.trim_matches([',', ' ']).is_empty() {
                "198.51.100.1"
            } else {
                "10.0.0.2"
            };
            assert_eq!(
                limiter_key(TRUSTED_PROXIES, "10.0.0.1", &[&header]),
                expected,
                "{malformed}"
            );
        }
    }

    #[test]
    fn ipv6_addresses_in_same_slash_64_share_key() {
        for same in ["2001:db8:1:2::", "2001:db8:1:2:ffff:ffff:ffff:ffff", "2001:DB8:1:2:0:0:0:7"] {
            assert_eq!(limiter_key_of_peer(same), "2001:db8:1:2::/64");
            assert_eq!(limiter_key(TRUSTED_PROXIES, "fd00::1", &[same]), "2001:db8:1:2::/64");
        }
        assert_eq!(limiter_key_of_peer("2001:db8:1:3::"), "2001:db8:1:3::/64");
        assert_eq!(limiter_key_of_peer("::1"), "::/64");
    }

    #[test]
    fn ipv4_mapped_ipv6_address_becomes_plain_ipv4() {
        assert_eq!(limiter_key_of_peer("192.0.2.7"), "192.0.2.7");
        assert_eq!(limiter_key_of_peer("::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(limiter_key_of_peer("::ffff:192.0.2.8"), "192.0.2.8");
        assert_eq!(
            limiter_key(TRUSTED_PROXIES, "::ffff:10.0.0.1", &["::ffff:192.0.2.7"]),
            "192.0.2.7"
        );
    }

    #[test]
    fn ipv6_prefix_length_is_clamped_to_valid_range() {
        let request = request_from_peer("2001:db8:ffff:ffff::1", &[]);
        for (bits, expected) in [
            (0, "::/1"),
            (1, "::/1"),
            (48, "2001:db8:ffff::/48"),
            (127, "2001:db8:ffff:ffff::/127"),
            (128, "2001:db8:ffff:ffff::1"),
            (255, "2001:db8:ffff:ffff::1"),
        ] {
            let ip = client_ip(TrustedProxies::none()).ipv6_prefix(bits);
            assert_eq!(extract_limiter_key(&ip, &request), expected);
            assert_eq!(ip.attribute((&request).into()).unwrap(), expected);
        }
    }

    #[test]
    fn ipv6_attribute_contains_full_address() {
        let ip = client_ip(TrustedProxies::none());
        let attribute =
            |peer| ip.attribute((&request_from_peer(peer, &[])).into()).unwrap().into_owned();
        assert_eq!(attribute("2001:db8::1"), "2001:db8::1");
        assert_eq!(attribute("::ffff:192.0.2.7"), "192.0.2.7");
    }

    #[test]
    fn request_without_peer_address_yields_no_client_address() {
        let request = Request::get("/").header("x-forwarded-for", "192.0.2.7").body(()).unwrap();
        for proxies in ["none", "0.0.0.0/0,::/0"] {
            let ip = client_ip(proxies.parse().unwrap());
            assert_eq!(ip.extract((&request).into()), None);
            assert_eq!(ip.attribute((&request).into()), None);
        }
    }

    proptest! {
        #[test]
        fn ipv4_address_is_formatted_like_standard_library(bits: u32) {
            let address = Ipv4Addr::from_bits(bits);
            prop_assert_eq!(&*format_ipv4(address), &*address.to_string());
        }

        #[test]
        fn ipv6_addresses_share_network_only_within_prefix(
            bits: u128, other: u128, shared in 0u8..=128, prefix in 1u8..=128,
        ) {
            let mask = u128::MAX.checked_shr(shared.into()).unwrap_or(0);
            let other = (bits & !mask) | (other & mask);
            let is_same = (bits ^ other).leading_zeros() >= prefix.into();
            let networks = [bits, other].map(|bits| format_ipv6_network(Ipv6Addr::from_bits(bits), prefix));
            prop_assert_eq!(networks[0] == networks[1], is_same);
        }
    }
}

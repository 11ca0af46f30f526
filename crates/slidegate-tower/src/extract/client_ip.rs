//! The client's address.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::peer::peer;
use super::text::InlineText;
use super::{Extract, RequestHead, ExtractedText, client_address};
use crate::TrustedProxies;

/// Bits of an IPv6 address that a client shares with nobody: who has one address has all of its /64.
const IPV6_PREFIX: u8 = 64;

/// The client's address: that of the peer or, if the peer is one of these proxies, [whom it asks
/// for](client_address).
///
/// IPv4 is told whole, and `::ffff:192.0.2.7` as `192.0.2.7`. Of IPv6 a limiter is told the network, `2001:db8::/64`,
/// since who has one address has all of those. A policy puts them together by itself, rule by rule, and compares
/// addresses with networks: as one of the [`Attributes`](super::Attributes) it is told the whole address, unless
/// [`ipv6_prefix`](ClientIp::ipv6_prefix) says otherwise.
///
/// The peer is what axum's `ConnectInfo` (`into_make_service_with_connect_info::<SocketAddr>`) or tonic's
/// `TcpConnectInfo` says, or our own [`Peer`](super::Peer). If nobody says it there is no value, whatever
/// headers say: also on a Unix socket.
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

/// The client's address: [`client_ip`].
#[derive(Clone, Debug)]
pub struct ClientIp {
    trusted: TrustedProxies,
    ipv6_prefix: Option<u8>,
}

impl ClientIp {
    /// The same, with IPv6 told as the network of so many bits, also to a policy; 128 is the whole address. Beyond
    /// 1 to 128 the nearest of them is taken.
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

    #[inline]
    fn told<'r>(&self, head: RequestHead<'r>, ipv6_prefix: u8) -> Option<ExtractedText<'r>> {
        let address = client_address(head.headers, peer(head.extensions)?, &self.trusted);
        Some(ExtractedText::from(match address {
            IpAddr::V4(address) => format_ipv4(address),
            IpAddr::V6(address) => network(address, ipv6_prefix),
        }))
    }
}

impl Extract for ClientIp {
    #[inline]
    fn extract<'r>(&self, head: RequestHead<'r>) -> Option<ExtractedText<'r>> {
        self.told(head, self.ipv6_prefix.unwrap_or(IPV6_PREFIX))
    }

    fn attribute<'r>(&self, head: RequestHead<'r>) -> Option<ExtractedText<'r>> {
        self.told(head, self.ipv6_prefix.unwrap_or(128))
    }
}

/// What `to_string` gives, in a fraction of the time: this is done for every request.
fn format_ipv4(address: Ipv4Addr) -> InlineText {
    let mut text = InlineText::new();
    for (nth, octet) in address.octets().into_iter().enumerate() {
        if nth > 0 {
            text.push('.');
        }
        for (digit, is_there) in
            [(octet / 100, octet >= 100), (octet / 10 % 10, octet >= 10), (octet % 10, true)]
        {
            if is_there {
                text.push(char::from(b'0' + digit));
            }
        }
    }
    text
}

/// The network of so many bits, 1 to 128, that the address is in.
fn network(address: Ipv6Addr, bits: u8) -> InlineText {
    let mut text = InlineText::new();
    let mask = !u128::MAX.checked_shr(bits.into()).unwrap_or(0);
    let network = Ipv6Addr::from_bits(address.to_bits() & mask);
    // It has room for the longest.
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

    const PROXIES: &str = "127.0.0.1,10.0.0.0/8,fd00::/8";

    /// A request from this peer, with these lines of `X-Forwarded-For`.
    fn request(peer: &str, lines: &[&str]) -> Request<()> {
        let peer = SocketAddr::new(peer.parse().unwrap(), 4711);
        let request = Request::get("/").extension(Peer(peer));
        let add = |request: http::request::Builder, line: &&str| {
            request.header("x-forwarded-for", line.as_bytes())
        };
        lines.iter().fold(request, add).body(()).unwrap()
    }

    fn told(ip: &ClientIp, request: &Request<()>) -> String {
        ip.extract(request.into()).unwrap().into_owned()
    }

    /// Of whom a limiter is told.
    fn of(proxies: &str, peer: &str, lines: &[&str]) -> String {
        told(&client_ip(proxies.parse().unwrap()), &request(peer, lines))
    }

    fn of_peer(peer: &str) -> String {
        of("none", peer, &[])
    }

    #[test]
    fn without_a_proxy_no_header_changes_who_it_is() {
        for spoofed in ["198.51.100.1", "127.0.0.1", "10.0.0.1, 10.0.0.2", "192.0.2.8,", "::1"] {
            assert_eq!(of("none", "192.0.2.7", &[spoofed]), "192.0.2.7", "{spoofed}");
            assert_eq!(of(PROXIES, "192.0.2.7", &[spoofed]), "192.0.2.7", "{spoofed}");
        }
    }

    #[test]
    fn behind_one_proxy_it_is_whom_that_one_saw() {
        for spoofed in ["198.51.100.1", "127.0.0.1", "10.0.0.1, 10.0.0.2", "rubbish", ",,"] {
            let lines = format!("{spoofed}, 192.0.2.7");
            assert_eq!(of(PROXIES, "10.0.0.1", &[&lines]), "192.0.2.7", "{spoofed}");
            assert_eq!(of(PROXIES, "10.0.0.1", &[spoofed, "192.0.2.7"]), "192.0.2.7", "{spoofed}");
        }
    }

    #[test]
    fn behind_two_proxies_it_is_whom_the_outer_one_saw() {
        for spoofed in ["198.51.100.1", "127.0.0.1", "10.0.0.1, 10.0.0.2", "rubbish", ",,"] {
            let lines = format!("{spoofed}, 192.0.2.7, 10.0.0.2");
            assert_eq!(of(PROXIES, "10.0.0.1", &[&lines]), "192.0.2.7", "{spoofed}");
            let lines = [spoofed, "192.0.2.7", "10.0.0.2"];
            assert_eq!(of(PROXIES, "::ffff:10.0.0.1", &lines), "192.0.2.7", "{spoofed}");
        }
    }

    #[test]
    fn a_malformed_header_leaves_it_with_the_proxy_that_sent_it() {
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
            assert_eq!(of(PROXIES, "10.0.0.1", &[malformed]), "10.0.0.1", "{malformed}");
            let behind = format!("198.51.100.1, {malformed}, 10.0.0.2");
            let left = if malformed.trim_matches([',', ' ']).is_empty() {
                "198.51.100.1"
            } else {
                "10.0.0.2"
            };
            assert_eq!(of(PROXIES, "10.0.0.1", &[&behind]), left, "{malformed}");
        }
    }

    #[test]
    fn addresses_of_one_64_are_one_and_of_another_are_others() {
        for same in ["2001:db8:1:2::", "2001:db8:1:2:ffff:ffff:ffff:ffff", "2001:DB8:1:2:0:0:0:7"] {
            assert_eq!(of_peer(same), "2001:db8:1:2::/64");
            assert_eq!(of(PROXIES, "fd00::1", &[same]), "2001:db8:1:2::/64");
        }
        assert_eq!(of_peer("2001:db8:1:3::"), "2001:db8:1:3::/64");
        assert_eq!(of_peer("::1"), "::/64");
    }

    #[test]
    fn ipv4_is_whole_also_within_ipv6() {
        assert_eq!(of_peer("192.0.2.7"), "192.0.2.7");
        assert_eq!(of_peer("::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(of_peer("::ffff:192.0.2.8"), "192.0.2.8");
        assert_eq!(of(PROXIES, "::ffff:10.0.0.1", &["::ffff:192.0.2.7"]), "192.0.2.7");
    }

    #[test]
    fn another_prefix_may_be_said_within_bounds() {
        let request = request("2001:db8:ffff:ffff::1", &[]);
        for (bits, expected) in [
            (0, "::/1"),
            (1, "::/1"),
            (48, "2001:db8:ffff::/48"),
            (127, "2001:db8:ffff:ffff::/127"),
            (128, "2001:db8:ffff:ffff::1"),
            (255, "2001:db8:ffff:ffff::1"),
        ] {
            let ip = client_ip(TrustedProxies::none()).ipv6_prefix(bits);
            assert_eq!(told(&ip, &request), expected);
            assert_eq!(ip.attribute((&request).into()).unwrap(), expected);
        }
    }

    #[test]
    fn a_policy_is_told_the_whole_address_since_it_has_prefixes_of_its_own() {
        let ip = client_ip(TrustedProxies::none());
        let attribute = |peer| ip.attribute((&request(peer, &[])).into()).unwrap().into_owned();
        assert_eq!(attribute("2001:db8::1"), "2001:db8::1");
        assert_eq!(attribute("::ffff:192.0.2.7"), "192.0.2.7");
    }

    #[test]
    fn an_unknown_peer_is_nobody_whatever_headers_say() {
        let request = Request::get("/").header("x-forwarded-for", "192.0.2.7").body(()).unwrap();
        for proxies in ["none", "0.0.0.0/0,::/0"] {
            let ip = client_ip(proxies.parse().unwrap());
            assert_eq!(ip.extract((&request).into()), None);
            assert_eq!(ip.attribute((&request).into()), None);
        }
    }

    proptest! {
        #[test]
        fn an_ipv4_address_is_written_as_std_does(bits: u32) {
            let address = Ipv4Addr::from_bits(bits);
            prop_assert_eq!(&*format_ipv4(address), &*address.to_string());
        }

        #[test]
        fn a_network_is_told_of_exactly_the_addresses_in_it(
            bits: u128, other: u128, shared in 0u8..=128, prefix in 1u8..=128,
        ) {
            let mask = u128::MAX.checked_shr(shared.into()).unwrap_or(0);
            let other = (bits & !mask) | (other & mask);
            let in_one = (bits ^ other).leading_zeros() >= prefix.into();
            let told = [bits, other].map(|bits| network(Ipv6Addr::from_bits(bits), prefix));
            prop_assert_eq!(told[0] == told[1], in_one);
        }
    }
}

//! The address of the client behind trusted proxies: the last address in the forwarding chain that is not a trusted
//! proxy.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderName};

use crate::trusted_proxies::TrustedProxies;

/// The header to which each proxy appends the address of its own client.
static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Returns the client's address.
///
/// `peer` is the address of the other end of the connection. If the peer is not a trusted proxy, the peer is the
/// client. Otherwise the function reads the entries of `X-Forwarded-For` from right to left, because each proxy appends
/// the address of its own client. The first address that is not a trusted proxy is the client. Everything to the left
/// of this address is ignored, because the client may have made it up. If all addresses are trusted proxies, the
/// leftmost one is returned.
///
/// An entry that is not an address was written by a trusted proxy that cannot name its client: then the address of that
/// proxy is returned. An IPv4-mapped address such as `::ffff:192.0.2.7` is returned as 192.0.2.7.
///
/// ```
/// use http::HeaderMap;
/// use slidegate_tower::extract::client_address;
///
/// let proxies = "10.0.0.0/8".parse()?;
/// let mut headers = HeaderMap::new();
/// headers.insert("x-forwarded-for", "198.51.100.1, 192.0.2.7".parse()?);
/// assert_eq!(client_address(&headers, [10, 0, 0, 1].into(), &proxies).to_string(), "192.0.2.7");
/// // The header of an untrusted peer is ignored.
/// assert_eq!(client_address(&headers, [203, 0, 113, 9].into(), &proxies).to_string(), "203.0.113.9");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn client_address(headers: &HeaderMap, peer: IpAddr, trusted: &TrustedProxies) -> IpAddr {
    let peer = peer.to_canonical();
    if trusted.contains(peer) { forwarded_address(headers, peer, trusted) } else { peer }
}

/// Returns the client's address as [`client_address`] does, for a peer that is a trusted proxy.
fn forwarded_address(headers: &HeaderMap, peer: IpAddr, trusted: &TrustedProxies) -> IpAddr {
    let mut client = peer;
    for line in headers.get_all(&X_FORWARDED_FOR).iter().rev() {
        // Split as bytes: an entry that is not UTF-8 invalidates only itself, not the entries that proxies appended.
        let entries = line.as_bytes().rsplit(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        for entry in entries.filter(|entry| !entry.is_empty()) {
            let Some(hop) = parse_forwarded_address(entry) else { return client };
            client = hop;
            if !trusted.contains(hop) {
                return client;
            }
        }
    }
    client
}

/// Parses one entry of `X-Forwarded-For`: an address with or without a port. Returns `None` if the entry is not an
/// address. `::ffff:192.0.2.7` becomes 192.0.2.7.
fn parse_forwarded_address(entry: &[u8]) -> Option<IpAddr> {
    let entry = str::from_utf8(entry).ok()?;
    let bracketed = || entry.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    let with_port = || entry.parse().ok().map(|address: SocketAddr| address.ip());
    let address: Option<IpAddr> = entry.parse().ok().or_else(with_port).or_else(bracketed);
    address.map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    const TRUSTED_PROXIES: &str = "127.0.0.1,10.0.0.0/8,fd00::/8";

    /// Returns the client's address for a request from 127.0.0.1 with these header lines.
    fn client_address_from_header_lines(lines: &[&[u8]]) -> String {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(&X_FORWARDED_FOR, HeaderValue::from_bytes(line).unwrap());
        }
        let peer = IpAddr::from([127, 0, 0, 1]);
        client_address(&headers, peer, &TRUSTED_PROXIES.parse().unwrap()).to_string()
    }

    fn client_address_from_header_line(line: &str) -> String {
        client_address_from_header_lines(&[line.as_bytes()])
    }

    #[test]
    fn rightmost_untrusted_address_is_client_address() {
        assert_eq!(client_address_from_header_line("192.0.2.7"), "192.0.2.7");
        assert_eq!(client_address_from_header_line("192.0.2.7, 10.0.0.1, 10.0.0.2"), "192.0.2.7");
    }

    #[test]
    fn forwarded_entries_written_by_client_are_ignored() {
        assert_eq!(client_address_from_header_line("198.51.100.1, 192.0.2.7"), "192.0.2.7");
        assert_eq!(client_address_from_header_line("10.9.9.9, 192.0.2.7, 10.0.0.1"), "192.0.2.7");
        assert_eq!(client_address_from_header_line("rubbish, 192.0.2.7"), "192.0.2.7");
        assert_eq!(client_address_from_header_lines(&[b"198.51.100.1", b"192.0.2.7"]), "192.0.2.7");
        assert_eq!(
            client_address_from_header_lines(&[b"\xff", b"192.0.2.7, 10.0.0.1"]),
            "192.0.2.7"
        );
        assert_eq!(client_address_from_header_lines(&[b"\xff, 192.0.2.7, 10.0.0.1"]), "192.0.2.7");
    }

    #[test]
    fn header_without_untrusted_address_yields_leftmost_or_peer_address() {
        assert_eq!(client_address_from_header_line("10.0.0.1, 10.0.0.2"), "10.0.0.1");
        assert_eq!(client_address_from_header_lines(&[b"fd00::1", b"10.0.0.2"]), "fd00::1");
        for empty in [&[][..], &[&b""[..]], &[&b" , ,"[..]]] {
            assert_eq!(client_address_from_header_lines(empty), "127.0.0.1");
        }
    }

    #[test]
    fn invalid_forwarded_entry_yields_address_of_appending_proxy() {
        for invalid in ["unknown", "_hidden", "192.0.2", "192.0.2.7:x", "[::1", "::1]", "a.example"]
        {
            assert_eq!(
                client_address_from_header_line(&format!("192.0.2.7, {invalid}, 10.0.0.1")),
                "10.0.0.1",
                "{invalid}"
            );
            assert_eq!(client_address_from_header_line(invalid), "127.0.0.1", "{invalid}");
        }
        assert_eq!(client_address_from_header_lines(&[b"192.0.2.7", b"\xff"]), "127.0.0.1");
    }

    #[test]
    fn ports_brackets_and_ipv4_mapped_addresses_are_parsed() {
        for (entry, expected) in [
            ("192.0.2.7:5678", "192.0.2.7"),
            ("[2001:db8::1]:80", "2001:db8::1"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("2001:DB8:0::1", "2001:db8::1"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
            ("  192.0.2.7\t", "192.0.2.7"),
            ("192.0.2.7,", "192.0.2.7"),
            ("192.0.2.7,, 10.0.0.1:99 ,[::ffff:10.0.0.1]:1", "192.0.2.7"),
        ] {
            assert_eq!(client_address_from_header_line(entry), expected, "{entry}");
        }
    }

    #[test]
    fn forwarded_header_of_untrusted_peer_is_ignored() {
        let mut headers = HeaderMap::new();
        headers.insert(&X_FORWARDED_FOR, HeaderValue::from_static("198.51.100.1"));
        let client = |peer: &str, trusted: &str| {
            client_address(&headers, peer.parse().unwrap(), &trusted.parse().unwrap()).to_string()
        };
        assert_eq!(client("192.0.2.7", TRUSTED_PROXIES), "192.0.2.7");
        assert_eq!(client("127.0.0.1", "none"), "127.0.0.1");
        assert_eq!(client("::ffff:192.0.2.7", TRUSTED_PROXIES), "192.0.2.7");
    }

    /// Generates header lines with trusted and untrusted addresses and arbitrary bytes.
    fn arbitrary_header_lines() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let octet = prop_oneof![Just(b','), Just(b' '), 0x20u8..0x7f, 0x80u8..=0xff];
        let entry = prop_oneof![
            prop::collection::vec(octet, 0..12),
            any::<IpAddr>().prop_map(|address| address.to_string().into_bytes()),
            any::<[u8; 3]>().prop_map(|[a, b, c]| format!(" 10.{a}.{b}.{c}:80").into_bytes()),
            any::<SocketAddr>().prop_map(|address| address.to_string().into_bytes()),
        ];
        let line = prop::collection::vec(entry, 0..5).prop_map(|entries| entries.join(&b','));
        prop::collection::vec(line, 0..4)
    }

    fn headers_with_forwarded_for_lines(lines: &[Vec<u8>]) -> HeaderMap {
        let values = lines.iter().map(|line| HeaderValue::from_bytes(line).unwrap());
        values.map(|value| (X_FORWARDED_FOR.clone(), value)).collect()
    }

    /// Returns every address in the header lines. An entry that can be read in several ways yields several addresses.
    fn parse_listed_addresses(lines: &[Vec<u8>]) -> Vec<IpAddr> {
        let entries = lines.iter().flat_map(|line| line.split(|byte| *byte == b','));
        let texts = entries.filter_map(|entry| std::str::from_utf8(entry).ok()).map(str::trim);
        let plain = texts.clone().filter_map(|text| text.trim_matches(['[', ']']).parse().ok());
        let with_ports =
            texts.filter_map(|text| text.parse().ok()).map(|address: SocketAddr| address.ip());
        plain.chain(with_ports).map(|address: IpAddr| address.to_canonical()).collect()
    }

    proptest! {
        #[test]
        fn client_address_is_peer_or_listed_in_header(lines in arbitrary_header_lines()) {
            let trusted = TRUSTED_PROXIES.parse().unwrap();
            let headers = headers_with_forwarded_for_lines(&lines);
            let proxy = IpAddr::from([127, 0, 0, 1]);
            let client = client_address(&headers, proxy, &trusted);
            prop_assert!(client == proxy || parse_listed_addresses(&lines).contains(&client), "{client}");
            let untrusted = IpAddr::from([192, 0, 2, 7]);
            prop_assert_eq!(client_address(&headers, untrusted, &trusted), untrusted);
        }

        #[test]
        fn header_entries_left_of_untrusted_address_are_ignored(
            mut lines in arbitrary_header_lines(), proxy: [u8; 2], is_same_line: bool,
        ) {
            let [a, b] = proxy;
            let appended = format!("192.0.2.7, 10.0.{a}.{b}").into_bytes();
            match lines.last_mut().filter(|_| is_same_line) {
                Some(last) => last.extend([&b","[..], &appended].concat()),
                None => lines.push(appended),
            }
            let client = client_address(
                &headers_with_forwarded_for_lines(&lines), [10, 0, 0, 1].into(), &TRUSTED_PROXIES.parse().unwrap(),
            );
            prop_assert_eq!(client, IpAddr::from([192, 0, 2, 7]));
        }
    }
}

//! Who the client is: the first hop that is not one of ours.

use std::net::{IpAddr, SocketAddr};

use axum::http::HeaderMap;

use crate::trusted_proxies::TrustedProxies;

/// What each proxy appends the address to from which it was asked.
pub const FORWARDED_FOR: &str = "x-forwarded-for";

/// The client's address. `peer`, who is at the other end of the connection, is believed, and so is what
/// it says who asked it; if that one is believed too, what that one said, and so on. What stands to the left of the
/// first who is not believed, he may have made up.
///
/// An entry that is no address tells of somebody whom a believed proxy does not know: then it is that proxy.
pub fn client(headers: &HeaderMap, peer: IpAddr, trusted: &TrustedProxies) -> IpAddr {
    let mut client = peer;
    for line in headers.get_all(FORWARDED_FOR).iter().rev() {
        // What is no ASCII is no address either.
        let entries = line.to_str().unwrap_or("?").rsplit(',').map(str::trim);
        for entry in entries.filter(|entry| !entry.is_empty()) {
            let Some(hop) = address(entry) else { return client };
            client = hop;
            if !trusted.trust(hop) {
                return client;
            }
        }
    }
    client
}

/// The address of an entry, with or without a port. `::ffff:192.0.2.7` is 192.0.2.7.
fn address(entry: &str) -> Option<IpAddr> {
    let bracketed = || entry.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    let with_port = || entry.parse().ok().map(|address: SocketAddr| address.ip());
    let address: Option<IpAddr> = entry.parse().ok().or_else(with_port).or_else(bracketed);
    address.map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRUSTED: &str = "127.0.0.1,10.0.0.0/8,fd00::/8";

    /// The client behind 127.0.0.1, which has sent these lines.
    fn of_lines(lines: &[&[u8]]) -> String {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(FORWARDED_FOR, axum::http::HeaderValue::from_bytes(line).unwrap());
        }
        let peer = IpAddr::from([127, 0, 0, 1]);
        client(&headers, peer, &TRUSTED.parse().unwrap()).to_string()
    }

    fn of(line: &str) -> String {
        of_lines(&[line.as_bytes()])
    }

    #[test]
    fn it_is_the_first_from_the_right_who_is_not_trusted() {
        assert_eq!(of("192.0.2.7"), "192.0.2.7");
        assert_eq!(of("192.0.2.7, 10.0.0.1, 10.0.0.2"), "192.0.2.7");
    }

    #[test]
    fn what_the_client_wrote_itself_does_not_count() {
        assert_eq!(of("198.51.100.1, 192.0.2.7"), "192.0.2.7");
        assert_eq!(of("10.9.9.9, 192.0.2.7, 10.0.0.1"), "192.0.2.7");
        assert_eq!(of("rubbish, 192.0.2.7"), "192.0.2.7");
        assert_eq!(of_lines(&[b"198.51.100.1", b"192.0.2.7"]), "192.0.2.7");
        assert_eq!(of_lines(&[b"\xff", b"192.0.2.7, 10.0.0.1"]), "192.0.2.7");
    }

    #[test]
    fn if_all_are_trusted_it_is_the_leftmost_or_else_the_peer() {
        assert_eq!(of("10.0.0.1, 10.0.0.2"), "10.0.0.1");
        assert_eq!(of_lines(&[b"fd00::1", b"10.0.0.2"]), "fd00::1");
        for nobody in [&[][..], &[&b""[..]], &[&b" , ,"[..]]] {
            assert_eq!(of_lines(nobody), "127.0.0.1");
        }
    }

    #[test]
    fn an_entry_that_is_no_address_is_whoever_wrote_it() {
        for wrong in ["unknown", "_hidden", "192.0.2", "192.0.2.7:x", "[::1", "::1]", "a.example"] {
            assert_eq!(of(&format!("192.0.2.7, {wrong}, 10.0.0.1")), "10.0.0.1", "{wrong}");
            assert_eq!(of(wrong), "127.0.0.1", "{wrong}");
        }
        assert_eq!(of_lines(&[b"192.0.2.7", b"\xff"]), "127.0.0.1");
    }

    #[test]
    fn ports_brackets_spaces_and_mapped_addresses_are_understood() {
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
            assert_eq!(of(entry), expected, "{entry}");
        }
    }
}

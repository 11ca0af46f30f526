//! Who the client is: the first hop that is not one of ours.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderName};

use crate::trusted_proxies::TrustedProxies;

/// What each proxy appends the address to from which it was asked.
static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The client's address, of all that `X-Forwarded-For` says. If `peer`, who is at the other end of the
/// connection, is believed, so is what it says who asked it; if that one is believed too, what that one said, and
/// so on. What stands to the left of the first who is not believed, he may have made up.
///
/// An entry that is no address tells of somebody whom a believed proxy does not know: then it is that proxy.
/// `::ffff:192.0.2.7` is 192.0.2.7.
///
/// ```
/// use http::HeaderMap;
/// use slidegate_tower::extract::client_address;
///
/// let proxies = "10.0.0.0/8".parse()?;
/// let mut headers = HeaderMap::new();
/// headers.insert("x-forwarded-for", "198.51.100.1, 192.0.2.7".parse()?);
/// assert_eq!(client_address(&headers, [10, 0, 0, 1].into(), &proxies).to_string(), "192.0.2.7");
/// // Who is no proxy of ours may say what he likes.
/// assert_eq!(client_address(&headers, [203, 0, 113, 9].into(), &proxies).to_string(), "203.0.113.9");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn client_address(headers: &HeaderMap, peer: IpAddr, trusted: &TrustedProxies) -> IpAddr {
    let mut client = peer.to_canonical();
    if !trusted.contains(client) {
        return client;
    }
    for line in headers.get_all(&X_FORWARDED_FOR).iter().rev() {
        // By bytes: one that is no text spoils its own entry only, not those that proxies have added behind it.
        let entries = line.as_bytes().rsplit(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        for entry in entries.filter(|entry| !entry.is_empty()) {
            let Some(hop) = address(entry) else { return client };
            client = hop;
            if !trusted.contains(hop) {
                return client;
            }
        }
    }
    client
}

/// The address of an entry, with or without a port. `::ffff:192.0.2.7` is 192.0.2.7.
fn address(entry: &[u8]) -> Option<IpAddr> {
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

    const TRUSTED: &str = "127.0.0.1,10.0.0.0/8,fd00::/8";

    /// The client behind 127.0.0.1, which has sent these lines.
    fn of_lines(lines: &[&[u8]]) -> String {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(&X_FORWARDED_FOR, HeaderValue::from_bytes(line).unwrap());
        }
        let peer = IpAddr::from([127, 0, 0, 1]);
        client_address(&headers, peer, &TRUSTED.parse().unwrap()).to_string()
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
        assert_eq!(of_lines(&[b"\xff, 192.0.2.7, 10.0.0.1"]), "192.0.2.7");
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

    #[test]
    fn of_a_peer_that_is_not_trusted_nothing_is_believed() {
        let mut headers = HeaderMap::new();
        headers.insert(&X_FORWARDED_FOR, HeaderValue::from_static("198.51.100.1"));
        let of = |peer: &str, trusted: &str| {
            client_address(&headers, peer.parse().unwrap(), &trusted.parse().unwrap()).to_string()
        };
        assert_eq!(of("192.0.2.7", TRUSTED), "192.0.2.7");
        assert_eq!(of("127.0.0.1", "none"), "127.0.0.1");
        assert_eq!(of("::ffff:192.0.2.7", TRUSTED), "192.0.2.7");
    }

    /// Lines as they might come: addresses, ours and others, among what else a header may hold.
    fn lines() -> impl Strategy<Value = Vec<Vec<u8>>> {
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

    fn forwarded(lines: &[Vec<u8>]) -> HeaderMap {
        let values = lines.iter().map(|line| HeaderValue::from_bytes(line).unwrap());
        values.map(|value| (X_FORWARDED_FOR.clone(), value)).collect()
    }

    /// Every address that could be meant by what stands there.
    fn mentioned(lines: &[Vec<u8>]) -> Vec<IpAddr> {
        let entries = lines.iter().flat_map(|line| line.split(|byte| *byte == b','));
        let texts = entries.filter_map(|entry| std::str::from_utf8(entry).ok()).map(str::trim);
        let alone = texts.clone().filter_map(|text| text.trim_matches(['[', ']']).parse().ok());
        let with_ports = texts.filter_map(|text| text.parse().ok()).map(|at: SocketAddr| at.ip());
        alone.chain(with_ports).map(|address: IpAddr| address.to_canonical()).collect()
    }

    proptest! {
        #[test]
        fn whatever_is_sent_it_is_the_peer_or_an_address_that_stands_there(lines in lines()) {
            let trusted = TRUSTED.parse().unwrap();
            let headers = forwarded(&lines);
            let ours = IpAddr::from([127, 0, 0, 1]);
            let client = client_address(&headers, ours, &trusted);
            prop_assert!(client == ours || mentioned(&lines).contains(&client), "{client}");
            let stranger = IpAddr::from([192, 0, 2, 7]);
            prop_assert_eq!(client_address(&headers, stranger, &trusted), stranger);
        }

        #[test]
        fn nothing_to_the_left_of_the_first_who_is_not_trusted_matters(
            mut lines in lines(), behind: [u8; 2], in_one_line: bool,
        ) {
            let [a, b] = behind;
            let truth = format!("192.0.2.7, 10.0.{a}.{b}").into_bytes();
            match lines.last_mut().filter(|_| in_one_line) {
                Some(last) => last.extend([&b","[..], &truth].concat()),
                None => lines.push(truth),
            }
            let client = client_address(
                &forwarded(&lines), [10, 0, 0, 1].into(), &TRUSTED.parse().unwrap(),
            );
            prop_assert_eq!(client, IpAddr::from([192, 0, 2, 7]));
        }
    }
}

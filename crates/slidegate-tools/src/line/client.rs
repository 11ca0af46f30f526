//! Parses the start of a line of an access log, which names the client: `ip ident user`, or `host ip ident user` as in
//! Apache's `vhost_combined`.

use std::net::{IpAddr, SocketAddr};

use super::{LineError, none_if_empty_or_dash, split_at_byte};

/// The values before the time of a line, `None` for missing values.
#[derive(Debug, PartialEq, Eq)]
pub struct ClientFields<'a> {
    pub host: Option<&'a str>,
    pub ip: Option<&'a str>,
    pub user: Option<&'a str>,
}

/// Parses the part of a line before its time. A line whose first field is not an address is an error: each host, port
/// or list of proxies would otherwise count as a client of its own, and the suggested limits would be wrong.
pub fn parse_client_fields(text: &str) -> Result<ClientFields<'_>, LineError> {
    let (host, text) = split_host(text)?;
    let (clients, rest) = split_client_list(text).ok_or(LineError::Start)?;
    let ip = match clients.split(',').next() {
        Some("-") => None,
        first => Some(first.and_then(strip_port).ok_or(LineError::Client)?),
    };
    let (_ident, user) = split_at_byte(rest, b' ').ok_or(LineError::Start)?;
    // A user name may contain spaces. A `-` between spaces is a field of another format, so the line is rejected.
    if user.len() > 1 && user.split(' ').any(|word| word == "-") {
        return Err(LineError::Start);
    }
    Ok(ClientFields { host, ip, user: none_if_empty_or_dash(user) })
}

/// Splits the host from the start of a line if an address follows it.
fn split_host(text: &str) -> Result<(Option<&str>, &str), LineError> {
    let (first, rest) = split_at_byte(text, b' ').ok_or(LineError::Start)?;
    let second = split_at_byte(rest, b' ').map_or(rest, |(second, _)| second);
    // If a comma follows the first field, it is an address in a list, such as `198.51.100.1, 10.0.0.1`, and not a host.
    if first.ends_with(',') || strip_port(second.trim_end_matches(',')).is_none() {
        return Ok((None, text));
    }
    // A line with two addresses is rejected, because either may be the client, unless the first has a port, as a
    // virtual host has.
    if first.parse::<IpAddr>().is_err() && is_host(first) {
        Ok((Some(first).filter(|host| !matches!(*host, "-" | "_")), rest))
    } else {
        Err(LineError::Client)
    }
}

/// Returns whether a field is a host, and not another field that some formats begin with, such as a duration or `HIT`.
/// `_` is the name of nginx's server for unknown hosts.
fn is_host(field: &str) -> bool {
    let is_host_byte = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
    let last_label = field.rsplit_once('.').map(|(_, label)| label);
    field.bytes().all(is_host_byte)
        && (matches!(field, "-" | "_" | "localhost")
            || last_label
                .is_some_and(|label| label.starts_with(|first: char| first.is_ascii_alphabetic()))
            || field.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()))
}

/// Splits a text after its first field, which may be a list of addresses that are separated by commas and spaces.
fn split_client_list(text: &str) -> Option<(&str, &str)> {
    let at = memchr::memchr_iter(b' ', text.as_bytes())
        .find(|&at| !text[..at].ends_with(','))
        .filter(|&at| at > 0)?;
    Some((&text[..at], &text[at + 1..]))
}

/// Returns the address of a field such as `192.0.2.7`, `192.0.2.7:4711` or `[2001:db8::1]:4711`, or `None` if the field
/// is not an address. The port is removed, because it differs between the connections of a client.
pub fn strip_port(field: &str) -> Option<&str> {
    if field.parse::<IpAddr>().is_ok() {
        return Some(field);
    }
    if let Some(rest) = field.strip_prefix('[') {
        let (address, _port) = rest.split_once(']')?;
        return (field.parse::<SocketAddr>().is_ok() || rest.ends_with(']'))
            .then_some(address)
            .filter(|address| address.parse::<IpAddr>().is_ok());
    }
    field.parse::<SocketAddr>().ok()?;
    field.rsplit_once(':').map(|(address, _port)| address)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the host, IP address and user of a line, with `-` in place of missing values.
    fn parse_fields(text: &str) -> Result<[&str; 3], LineError> {
        let ClientFields { host, ip, user } = parse_client_fields(text)?;
        Ok([host, ip, user].map(|value| value.unwrap_or("-")))
    }

    #[test]
    fn host_before_address_is_read() {
        for (text, expected) in [
            ("www.shop.example:443 203.0.113.1 - -", ["www.shop.example:443", "203.0.113.1", "-"]),
            ("shop.example 203.0.113.1 - jane doe", ["shop.example", "203.0.113.1", "jane doe"]),
            ("localhost 2001:db8::1 - -", ["localhost", "2001:db8::1", "-"]),
            ("203.0.113.9:443 198.51.100.1 - -", ["203.0.113.9:443", "198.51.100.1", "-"]),
            ("_ 203.0.113.1:5000 - -", ["-", "203.0.113.1", "-"]),
            ("- 203.0.113.1 - -", ["-", "203.0.113.1", "-"]),
        ] {
            assert_eq!(parse_fields(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn port_of_client_is_ignored() {
        for (client, ip) in [
            ("203.0.113.1:50123", "203.0.113.1"),
            ("[2001:db8::1]:50123", "2001:db8::1"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("::ffff:203.0.113.1", "::ffff:203.0.113.1"),
        ] {
            assert_eq!(parse_fields(&format!("{client} - -")), Ok(["-", ip, "-"]), "{client}");
        }
    }

    #[test]
    fn first_address_of_list_is_client() {
        for text in [
            "203.0.113.1, 10.0.0.1 - -",
            "203.0.113.1,10.0.0.1 - -",
            "203.0.113.1:80, 10.0.0.1, 10.0.0.2:4711 - -",
        ] {
            assert_eq!(parse_fields(text), Ok(["-", "203.0.113.1", "-"]), "{text}");
        }
    }

    #[test]
    fn dash_as_client_is_missing_address() {
        assert_eq!(parse_fields("- - alice"), Ok(["-", "-", "alice"]));
        assert_eq!(parse_fields("- - -"), Ok(["-", "-", "-"]));
    }

    #[test]
    fn client_without_address_is_rejected() {
        for text in [
            "host.example - -",
            "www.shop.example:443 host.example - -",
            "unix: - -",
            "unknown, 203.0.113.1 - -",
            "203.0.113.1 198.51.100.1 - -",
            "0.004 203.0.113.1 - -",
            "HIT 203.0.113.1 - -",
            "203.0.113.1:99999 - -",
            "[203.0.113.1]x - -",
        ] {
            assert_eq!(parse_fields(text), Err(LineError::Client), "{text}");
        }
    }

    #[test]
    fn further_fields_before_time_are_rejected() {
        for text in [
            "203.0.113.1 - - -",
            "203.0.113.1 - - 0.004",
            "203.0.113.1 shop.example - alice",
            "203.0.113.1 - alice - 17",
            "203.0.113.1 -",
            "203.0.113.1",
            " - -",
            "",
        ] {
            assert_eq!(parse_fields(text), Err(LineError::Start), "{text}");
        }
    }
}

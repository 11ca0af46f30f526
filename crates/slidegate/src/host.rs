//! The canonical form of hosts, so that all spellings of a host share one counter.

use std::borrow::Cow;
use std::net::Ipv6Addr;

/// Returns the canonical form of a host, which rules use for the attributes `host` and `header.host`: ASCII letters in
/// lower case, without port, trailing dots and surrounding white space.
///
/// The canonical form of IPv6 addresses has no brackets. In any other text everything after the first colon is the
/// port, since servers that accept a malformed port also ignore it. Percent-encoded characters, and upper case outside
/// of ASCII, are not normalized. A canonical form is returned unchanged. If the text has only a port, its canonical
/// form is empty.
///
/// ```
/// use slidegate::policy::normalize_host;
///
/// assert_eq!(normalize_host("API.example.com.:80"), "api.example.com");
/// assert_eq!(normalize_host("[2001:DB8::1]:443"), "2001:db8::1");
/// ```
pub fn normalize_host(text: &str) -> Cow<'_, str> {
    let host = strip_port_and_brackets(text);
    if has_upper_case(host) { Cow::Owned(host.to_ascii_lowercase()) } else { Cow::Borrowed(host) }
}

/// Returns whether the attribute with this name contains a host. Conditions and keys use hosts in their canonical form.
pub(crate) fn is_host_attribute(name: &str) -> bool {
    matches!(name, "host" | "header.host")
}

/// Removes the port, the brackets of an IPv6 address, trailing dots and surrounding white space.
fn strip_port_and_brackets(text: &str) -> &str {
    let text = trim_trailing_dots_and_white_space(text.trim_ascii_start());
    if let Some((inside, _)) = text.strip_prefix('[').and_then(|text| text.split_once(']')) {
        // Brackets around text that is not an IPv6 address are kept: without them, a colon in the text would separate a
        // port.
        return if is_ipv6(inside) { inside } else { &text[..inside.len() + 2] };
    }
    match text.split_once(':') {
        Some((host, _)) if !is_ipv6(text) => trim_trailing_dots_and_white_space(host),
        _ => text,
    }
}

/// Removes dots (the DNS root) and white space at the end of a host.
fn trim_trailing_dots_and_white_space(text: &str) -> &str {
    text.trim_end_matches(|end: char| end == '.' || end.is_ascii_whitespace())
}

fn is_ipv6(text: &str) -> bool {
    text.parse::<Ipv6Addr>().is_ok()
}

fn has_upper_case(text: &str) -> bool {
    text.bytes().any(|byte| byte.is_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn equivalent_host_spellings_have_same_canonical_form() {
        for (text, expected) in [
            ("api.example.com", "api.example.com"),
            ("API.Example.COM", "api.example.com"),
            ("api.example.com:80", "api.example.com"),
            ("api.example.com:65536", "api.example.com"),
            ("api.example.com:", "api.example.com"),
            ("api.example.com:80:80", "api.example.com"),
            ("api.example.com:x", "api.example.com"),
            ("api.example.com.", "api.example.com"),
            ("api.example.com..", "api.example.com"),
            ("api.example.com.:80", "api.example.com"),
            ("api.example.com:80.", "api.example.com"),
            (" api.example.com. \t", "api.example.com"),
            ("192.0.2.7:8080", "192.0.2.7"),
            ("2001:DB8::1", "2001:db8::1"),
            ("[2001:DB8::1]", "2001:db8::1"),
            ("[2001:db8::1]:80", "2001:db8::1"),
            ("[2001:db8::1].", "2001:db8::1"),
            ("::1", "::1"),
            ("[v1.A:B]:80", "[v1.a:b]"),
            ("[::1", "["),
            ("KÖLN.example", "kÖln.example"),
            (".example.com", ".example.com"),
            (":80", ""),
            (" . ", ""),
            ("", ""),
        ] {
            assert_eq!(normalize_host(text), expected, "{text:?}");
        }
    }

    #[test]
    fn canonical_host_is_returned_without_copying() {
        for text in ["api.example.com", "2001:db8::1", ""] {
            assert!(matches!(normalize_host(text), Cow::Borrowed(host) if host == text), "{text}");
        }
    }

    proptest! {
        #[test]
        fn normalizing_canonical_host_changes_nothing(
            text in "[aA1:.\\[\\] %]{0,12}|\\[?[0-9a-fA-F:]{2,9}\\]?[:.]?8?",
        ) {
            let host = normalize_host(&text);
            prop_assert_eq!(normalize_host(&host), &*host);
        }

        #[test]
        fn any_host_spelling_becomes_canonical(
            host in "[a-z0-9-]{1,8}(\\.[a-z0-9-]{1,8}){0,2}", upper in any::<u32>(),
            dots in "\\.{0,2}", port in proptest::option::of("[0-9]{0,5}"), spaces in " {0,2}",
        ) {
            let letters = host.chars().enumerate();
            let mixed: String = letters
                .map(|(nth, c)| if upper >> nth & 1 == 1 { c.to_ascii_uppercase() } else { c })
                .collect();
            let port = port.map_or(String::new(), |port| format!(":{port}"));
            let spelling = format!("{spaces}{mixed}{dots}{port}{spaces}");
            prop_assert_eq!(normalize_host(&spelling), host);
        }
    }
}

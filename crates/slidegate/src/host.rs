//! The canonical form of hosts, so that no spelling of a host has a count of its own.

use std::borrow::Cow;
use std::net::Ipv6Addr;

/// Returns the canonical form of a host, as rules compare and count the attributes `host` and `header.host`:
/// ASCII letters in lower case, and no port, trailing dots or white space around it.
///
/// An IPv6 address has no brackets. Of any other text all that follows the first colon is the port, since servers
/// that accept a malformed port ignore it, too. Other spellings stay apart: percent-encoded characters, and upper case
/// beyond ASCII. The canonical form of a canonical form is itself. It is empty if there is only a port.
///
/// ```
/// use slidegate::normal_host;
///
/// assert_eq!(normal_host("API.example.com.:80"), "api.example.com");
/// assert_eq!(normal_host("[2001:DB8::1]:443"), "2001:db8::1");
/// ```
pub fn normal_host(text: &str) -> Cow<'_, str> {
    let host = without_port(text);
    match has_upper_case(host) {
        true => Cow::Owned(host.to_ascii_lowercase()),
        false => Cow::Borrowed(host),
    }
}

/// Reports whether a host is its own canonical form.
pub(crate) fn is_normal_host(text: &str) -> bool {
    without_port(text).len() == text.len() && !has_upper_case(text)
}

/// Reports whether the attribute of this name is a host, compared and counted in its canonical form.
pub(crate) fn is_host_attribute(name: &str) -> bool {
    matches!(name, "host" | "header.host")
}

/// Removes the port, the brackets of an IPv6 address, trailing dots and white space around.
fn without_port(text: &str) -> &str {
    let text = without_end(text.trim_ascii_start());
    if let Some((inside, _)) = text.strip_prefix('[').and_then(|text| text.split_once(']')) {
        // Brackets around other text stay: without them, its colons would separate a port.
        return if is_ipv6(inside) { inside } else { &text[..inside.len() + 2] };
    }
    match text.split_once(':') {
        Some((host, _)) if !is_ipv6(text) => without_end(host),
        _ => text,
    }
}

/// Removes trailing dots (the DNS root) and white space.
fn without_end(text: &str) -> &str {
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
    fn spellings_of_host_have_one_form() {
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
            assert_eq!(normal_host(text), expected, "{text:?}");
        }
    }

    #[test]
    fn canonical_host_is_borrowed() {
        for text in ["api.example.com", "2001:db8::1", ""] {
            assert!(matches!(normal_host(text), Cow::Borrowed(_)), "{text}");
            assert!(is_normal_host(text), "{text}");
        }
    }

    proptest! {
        #[test]
        fn canonical_form_is_stable(text in "[aA1:.\\[\\] %]{0,12}|\\[?[0-9a-fA-F:]{2,9}\\]?[:.]?8?") {
            let host = normal_host(&text);
            prop_assert!(is_normal_host(&host), "{:?} of {:?}", host, text);
            prop_assert_eq!(normal_host(&host), &*host);
            prop_assert_eq!(is_normal_host(&text), host == text);
        }

        #[test]
        fn any_spelling_of_host_is_canonical(
            host in "[a-z0-9-]{1,8}(\\.[a-z0-9-]{1,8}){0,2}", upper in any::<u32>(),
            dots in "\\.{0,2}", port in proptest::option::of("[0-9]{0,5}"), spaces in " {0,2}",
        ) {
            let letters = host.chars().enumerate();
            let mixed: String = letters
                .map(|(nth, c)| if upper >> nth & 1 == 1 { c.to_ascii_uppercase() } else { c })
                .collect();
            let port = port.map_or(String::new(), |port| format!(":{port}"));
            let spelt = format!("{spaces}{mixed}{dots}{port}{spaces}");
            prop_assert_eq!(normal_host(&spelt), host);
        }
    }
}

//! The path that was asked for, of which a policy makes a route.

use std::borrow::Cow;

/// The path of what stood in the first line of a request: without its query, and without the address of the
/// server, which clients may write before it.
///
/// It is written as RFC 3986 (6.2.2) says of two paths that are the same, since whoever serves it takes it for
/// the same: `/a/../%6Cogin` is `/login`. What differs for some servers stays: `//`, `/login/`, `/Login`.
///
/// ```
/// use slidegate_tower::extract::normal_path;
///
/// assert_eq!(normal_path("/a/../%6Cogin?next=/"), "/login");
/// ```
pub fn normal_path(uri: &str) -> Cow<'_, str> {
    let path = strip_origin(uri);
    let path = path.find(['?', '#']).map_or(path, |end| &path[..end]);
    if path.contains('%') {
        Cow::Owned(remove_dot_segments(&decode_unreserved(path)).into_owned())
    } else {
        remove_dot_segments(path)
    }
}

fn strip_origin(uri: &str) -> &str {
    let behind = |scheme: &str| {
        let begin = uri.get(..scheme.len())?;
        begin.eq_ignore_ascii_case(scheme).then(|| &uri[scheme.len()..])
    };
    match behind("http://").or_else(|| behind("https://")) {
        Some(rest) => match rest.find(['/', '?', '#']) {
            Some(begin) if rest[begin..].starts_with('/') => &rest[begin..],
            _ => "/",
        },
        None => uri,
    }
}

/// With no character encoded that could stand there as it is.
fn decode_unreserved(path: &str) -> String {
    let mut plain = String::with_capacity(path.len());
    let mut rest = path;
    while let Some((before, behind)) = rest.split_once('%') {
        plain.push_str(before);
        rest = behind;
        match parse_hex_byte(behind) {
            Some(byte) => {
                rest = &behind[2..];
                match byte {
                    b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                        plain.push(char::from(byte));
                    }
                    _ => plain.push_str(&format!("%{byte:02X}")),
                }
            }
            None => plain.push('%'),
        }
    }
    plain + rest
}

/// The byte of two hexadecimal digits.
fn parse_hex_byte(text: &str) -> Option<u8> {
    let digits = text.get(..2).filter(|two| two.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
    u8::from_str_radix(digits, 16).ok()
}

/// With no segment `.` or `..`.
fn remove_dot_segments(path: &str) -> Cow<'_, str> {
    if !path.starts_with('/') || !path.contains("/.") {
        return Cow::Borrowed(path);
    }
    let mut kept: Vec<&str> = Vec::new();
    let mut is_folder = false;
    for segment in path[1..].split('/') {
        is_folder = matches!(segment, "." | "..");
        match segment {
            "." => {}
            ".." => drop(kept.pop()),
            segment => kept.push(segment),
        }
    }
    let end = if is_folder && !kept.is_empty() { "/" } else { "" };
    Cow::Owned(format!("/{}{end}", kept.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_query_and_the_server_are_cut_off() {
        for (uri, expected) in [
            ("/login?next=/a#b", "/login"),
            ("/login#b?c", "/login"),
            ("http://shop.example/login?x", "/login"),
            ("HTTPS://shop.example:8443/login", "/login"),
            ("http://shop.example?x=/login", "/"),
            ("http://shop.example", "/"),
            ("/http://shop.example/login", "/http://shop.example/login"),
            ("*", "*"),
            ("", ""),
            ("/", "/"),
        ] {
            assert_eq!(normal_path(uri), expected, "{uri}");
        }
    }

    #[test]
    fn there_is_no_other_way_to_write_a_path() {
        for same in
            ["/%6cogin", "/%6C%6f%67in", "/./login", "/a/../login", "/%2e/login", "/../login"]
        {
            assert_eq!(normal_path(same), "/login", "{same}");
        }
        for (uri, expected) in [
            ("/a/b/..", "/a/"),
            ("/a/.", "/a/"),
            ("/..", "/"),
            ("/.well-known/x", "/.well-known/x"),
            ("/a%2fb%3f", "/a%2Fb%3F"),
            ("/%c3%a4", "/%C3%A4"),
        ] {
            assert_eq!(normal_path(uri), expected, "{uri}");
        }
    }

    #[test]
    fn what_may_differ_stays_as_it_is() {
        for uri in ["//login", "/login/", "/Login", "/a;b=1", "/100%", "/%zz", "/%e", "/ä"] {
            assert_eq!(normal_path(uri), uri);
        }
        assert_eq!(normal_path("/%+1%é"), "/%+1%é");
    }
}

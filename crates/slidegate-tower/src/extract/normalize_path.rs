//! Normalization of request paths, from which a policy derives routes.

use std::borrow::Cow;

/// Returns the normalized path of a request target: without the query, and without the scheme and authority of an
/// absolute URI.
///
/// Paths that are equivalent according to RFC 3986 (6.2.2) become equal, because servers treat them as equal:
/// `/a/../%6Cogin` is `/login`. Differences that matter to some servers are kept: `//`, `/login/`, `/Login`.
///
/// ```
/// use slidegate_tower::extract::normalize_path;
///
/// assert_eq!(normalize_path("/a/../%6Cogin?next=/"), "/login");
/// ```
pub fn normalize_path(uri: &str) -> Cow<'_, str> {
    let path = path_without_query(uri);
    if path.contains('%') {
        Cow::Owned(remove_dot_segments(&decode_unreserved_characters(path)).into_owned())
    } else {
        remove_dot_segments(path)
    }
}

/// Returns whether servers read the path of a request target in different ways: it has a segment `.` or `..`, and
/// slashes that some servers decode or merge before they remove these segments; or such a segment with a parameter,
/// `..;x`, which some servers remove first. `/a//../login` is `/a/login` according to RFC 3986, and `/login` for nginx.
///
/// Such paths are best rejected: a client could use them to evade the limit of a route. Browsers and most other clients
/// send no path with `.` or `..`.
///
/// ```
/// use slidegate_tower::extract::has_ambiguous_dot_segments;
///
/// assert!(has_ambiguous_dot_segments("/a/..%2Flogin") && has_ambiguous_dot_segments("/a//../login"));
/// assert!(!has_ambiguous_dot_segments("/a/../login") && !has_ambiguous_dot_segments("//a%2Fb"));
/// ```
pub fn has_ambiguous_dot_segments(uri: &str) -> bool {
    let path = path_without_query(uri);
    if !path.contains(['.', '%']) {
        return false;
    }
    let path = decode_unreserved_characters(path);
    let decoded = path.replace("%2F", "/").replace("%5C", "/").replace('\\', "/");
    let is_ambiguous = decoded != path || decoded.contains("//");
    decoded.replace("%3B", ";").split('/').any(|segment| match segment.split_once(';') {
        Some((name, _)) => matches!(name, "." | ".."),
        None => is_ambiguous && matches!(segment, "." | ".."),
    })
}

/// Returns the path of a request target, without the scheme and authority of an absolute URI, and without the query.
fn path_without_query(uri: &str) -> &str {
    let path = strip_scheme_and_authority(uri);
    path.find(['?', '#']).map_or(path, |end| &path[..end])
}

fn strip_scheme_and_authority(uri: &str) -> &str {
    let strip_scheme = |scheme: &str| {
        let start = uri.get(..scheme.len())?;
        start.eq_ignore_ascii_case(scheme).then(|| &uri[scheme.len()..])
    };
    match strip_scheme("http://").or_else(|| strip_scheme("https://")) {
        Some(rest) => match rest.find(['/', '?', '#']) {
            Some(start) if rest[start..].starts_with('/') => &rest[start..],
            _ => "/",
        },
        None => uri,
    }
}

/// Decodes percent-encoded unreserved characters. The other encoded bytes remain encoded, with upper-case hexadecimal
/// digits.
fn decode_unreserved_characters(path: &str) -> String {
    let mut decoded = String::with_capacity(path.len());
    let mut rest = path;
    while let Some((before, after)) = rest.split_once('%') {
        decoded.push_str(before);
        rest = after;
        match parse_hex_byte(after) {
            Some(byte) => {
                rest = &after[2..];
                match byte {
                    b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                        decoded.push(char::from(byte));
                    }
                    _ => decoded.push_str(&format!("%{byte:02X}")),
                }
            }
            None => decoded.push('%'),
        }
    }
    decoded + rest
}

/// Parses the two hexadecimal digits at the start of the text; `None` if the text does not start with two such digits.
fn parse_hex_byte(text: &str) -> Option<u8> {
    let digits =
        text.get(..2).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
    u8::from_str_radix(digits, 16).ok()
}

/// Removes the segments `.` and `..` from an absolute path, and with each `..` the segment before it.
fn remove_dot_segments(path: &str) -> Cow<'_, str> {
    if !path.starts_with('/') || !path.contains("/.") {
        return Cow::Borrowed(path);
    }
    let mut segments: Vec<&str> = Vec::new();
    let mut is_directory = false;
    for segment in path[1..].split('/') {
        is_directory = matches!(segment, "." | "..");
        match segment {
            "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    let end = if is_directory && !segments.is_empty() { "/" } else { "" };
    Cow::Owned(format!("/{}{end}", segments.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_scheme_and_authority_are_removed() {
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
            assert_eq!(normalize_path(uri), expected, "{uri}");
        }
    }

    #[test]
    fn equivalent_paths_become_equal_after_normalization() {
        for same in
            ["/%6cogin", "/%6C%6f%67in", "/./login", "/a/../login", "/%2e/login", "/../login"]
        {
            assert_eq!(normalize_path(same), "/login", "{same}");
        }
        for (uri, expected) in [
            ("/a/b/..", "/a/"),
            ("/a/.", "/a/"),
            ("/..", "/"),
            ("/.well-known/x", "/.well-known/x"),
            ("/a%2fb%3f", "/a%2Fb%3F"),
            ("/%c3%a4", "/%C3%A4"),
        ] {
            assert_eq!(normalize_path(uri), expected, "{uri}");
        }
    }

    #[test]
    fn dot_segments_with_parameters_or_beside_encoded_or_double_slashes_are_ambiguous() {
        for uri in [
            "/static/..%2fx",
            "/static//../x",
            "/static/a/..%2F..%2Fx",
            "/.%2flogin",
            "/%2e%2e%2flogin",
            "/a/b//../../login?x",
            "/a%5c..%5Clogin",
            "/a\\..\\login",
            "http://e.org//./login",
            "/a/b/..;/../login",
            "/a/.%2E%3bx=1/login",
            "/.;/login",
        ] {
            assert!(has_ambiguous_dot_segments(uri), "{uri}");
        }
        for uri in [
            "/",
            "",
            "*",
            "/a/../b",
            "/%2e/login",
            "//login",
            "/a%2Fb",
            "/a..b//c",
            "/.well-known//x",
            "/a?b=//../",
            "http://e.org/../x",
            "/a;b/../login",
            "/a/...;b",
        ] {
            assert!(!has_ambiguous_dot_segments(uri), "{uri}");
        }
    }

    #[test]
    fn distinct_paths_stay_distinct_after_normalization() {
        for uri in ["//login", "/login/", "/Login", "/a;b=1", "/100%", "/%zz", "/%e", "/ä"] {
            assert_eq!(normalize_path(uri), uri);
        }
        assert_eq!(normalize_path("/%+1%é"), "/%+1%é");
    }
}

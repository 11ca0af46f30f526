//! Normalization of request paths, from which a policy derives routes.

use std::borrow::Cow;

/// Returns the normalized path of a request target: without the query, and without the scheme and authority of an
/// absolute URI.
///
/// Paths that servers treat as equal become equal: encoded characters are decoded, also reserved ones and those outside
/// of ASCII, which RFC 3986 (6.2.2) keeps, and dot segments are removed. `/a/../%6Cogin` is `/login`. Differences that
/// matter to some servers are kept: `//`, `/login/`, `/Login`, `%2F`, `%3B`.
///
/// ```
/// use slidegate_tower::extract::normalize_path;
///
/// assert_eq!(normalize_path("/a/../%6Cogin?next=/"), "/login");
/// ```
pub fn normalize_path(uri: &str) -> Cow<'_, str> {
    let path = path_without_query(uri);
    if path.contains('%') {
        Cow::Owned(remove_dot_segments(&decode_characters(path)).into_owned())
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
    let path = decode_characters(path);
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

/// Decodes percent-encoded characters. Some characters [stay encoded](stays_encoded), with upper-case hexadecimal digits,
/// as do bytes that are not UTF-8.
fn decode_characters(path: &str) -> String {
    let mut decoded = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(start) = rest.find('%') {
        decoded.push_str(&rest[..start]);
        rest = &rest[start..];
        let mut bytes = Vec::new();
        while let Some(byte) = rest.strip_prefix('%').and_then(parse_hex_byte) {
            bytes.push(byte);
            rest = &rest[3..];
        }
        if bytes.is_empty() {
            decoded.push('%');
            rest = &rest[1..];
        }
        for chunk in bytes.utf8_chunks() {
            for char in chunk.valid().chars() {
                if stays_encoded(char) {
                    push_encoded(&mut decoded, char.encode_utf8(&mut [0; 4]).as_bytes());
                } else {
                    decoded.push(char);
                }
            }
            push_encoded(&mut decoded, chunk.invalid());
        }
    }
    decoded + rest
}

/// Returns whether a character means something else, or nothing, if it is not encoded: separators of a URI, backslashes,
/// which some servers convert to slashes, and control characters.
fn stays_encoded(char: char) -> bool {
    matches!(char, '/' | '?' | '#' | '%' | ';' | '\\') || char.is_control()
}

fn push_encoded(text: &mut String, bytes: &[u8]) {
    bytes.iter().for_each(|byte| text.push_str(&format!("%{byte:02X}")));
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
        for (same, expected) in [
            ("/users%3alogin", "/users:login"),
            ("/%40me/%24%26%2b%2C%21", "/@me/$&+,!"),
            ("/caf%c3%A9", "/café"),
            ("/a%20b", "/a b"),
        ] {
            assert_eq!(normalize_path(same), expected, "{same}");
            assert_eq!(normalize_path(expected), expected);
        }
        for (uri, expected) in [
            ("/a/b/..", "/a/"),
            ("/a/.", "/a/"),
            ("/..", "/"),
            ("/.well-known/x", "/.well-known/x"),
            ("/a%2fb%3f", "/a%2Fb%3F"),
            ("/%c3%28%ff%c2%85", "/%C3(%FF%C2%85"),
            ("/%25%36%43%3b%5c%0a", "/%256C%3B%5C%0A"),
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

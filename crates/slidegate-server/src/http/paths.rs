//! Problems for paths and methods that do not exist, with the path or method that the client probably meant.

use axum::http::{Method, Uri};
use slidegate::internal::most_similar_word;

use crate::rendering::problem::{HttpProblem, method_not_allowed_with_hint, not_found_with_hint};

/// The methods and paths of the HTTP listener.
const HTTP_PATHS: [(&str, &str); 12] = [
    ("POST", "/v1/check"),
    ("POST", "/v1/peek"),
    ("POST", "/v1/report"),
    ("POST", "/v1/reserve"),
    ("POST", "/v1/settle"),
    ("POST", "/v1/release"),
    ("POST", "/v1/renew"),
    ("any method", "/v1/auth"),
    ("POST", "/json"),
    ("GET", "/v1/openapi.json"),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
];

/// The methods and paths of the admin listener.
const ADMIN_PATHS: [(&str, &str); 6] = [
    ("GET", "/metrics"),
    ("GET", "/v1/top"),
    ("POST", "/v1/explain"),
    ("GET", "/v1/cluster"),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
];

/// Last segments of paths that other rate limiters and servers have, each with the path that corresponds to it.
const SYNONYMS: [(&str, &str); 9] = [
    ("allow", "/v1/check"),
    ("limit", "/v1/check"),
    ("ratelimit", "/v1/check"),
    ("authorize", "/v1/auth"),
    ("openapi", "/v1/openapi.json"),
    ("swagger.json", "/v1/openapi.json"),
    ("livez", "/healthz"),
    ("ready", "/readyz"),
    ("status", "/readyz"),
];

/// Responds with status 404 to a request for an unknown path of the HTTP listener.
pub async fn http_not_found(uri: Uri) -> HttpProblem {
    let hint = match find_path(&ADMIN_PATHS, uri.path()) {
        Some(_) => "the admin listener serves it, at the address of --admin".into(),
        None => did_you_mean(&HTTP_PATHS, uri.path())
            .unwrap_or_else(|| "GET /v1/openapi.json lists all paths".into()),
    };
    not_found_with_hint(&uri, &hint)
}

/// Responds with status 404 to a request for an unknown path of the admin listener.
pub async fn admin_not_found(uri: Uri) -> HttpProblem {
    let hint = match find_path(&HTTP_PATHS, uri.path()) {
        Some(_) => "the HTTP listener serves it, at the address of --http".into(),
        None => did_you_mean(&ADMIN_PATHS, uri.path()).unwrap_or_else(|| {
            "the admin listener serves /metrics, /v1/top, /v1/explain, /v1/cluster, /healthz and \
             /readyz, and the HTTP listener serves decisions at the address of --http"
                .into()
        }),
    };
    not_found_with_hint(&uri, &hint)
}

/// Responds with status 405 to a method that the path does not accept. axum's router adds the `Allow` header.
pub async fn method_not_allowed(method: Method, uri: Uri) -> HttpProblem {
    let known = find_path(&HTTP_PATHS, uri.path()).or_else(|| find_path(&ADMIN_PATHS, uri.path()));
    let hint = match known {
        Some(("POST", _)) => "use POST, with a JSON object as body",
        _ => "use GET",
    };
    method_not_allowed_with_hint(&method, &uri, hint)
}

fn find_path(
    paths: &[(&'static str, &'static str)],
    path: &str,
) -> Option<(&'static str, &'static str)> {
    paths.iter().find(|(_, known)| *known == path).copied()
}

/// Returns the suggestion of a path whose last segment is similar to the last segment of `path`.
fn did_you_mean(paths: &[(&'static str, &'static str)], path: &str) -> Option<String> {
    let segment = last_segment(path.trim_end_matches('/'));
    let synonym = SYNONYMS.iter().find(|(synonym, _)| *synonym == segment).map(|(_, path)| *path);
    let similar = || {
        let similar = most_similar_word(segment, paths.iter().map(|(_, path)| last_segment(path)))?;
        paths.iter().map(|(_, path)| *path).find(|path| last_segment(path) == similar)
    };
    let (method, path) = find_path(paths, synonym.or_else(similar)?)?;
    Some(format!("did you mean {method} {path}?"))
}

fn last_segment(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::endpoints::Endpoint;

    #[test]
    fn similar_path_is_suggested() {
        for (path, expected) in [
            ("/check", Some("POST /v1/check")),
            ("/v1/checks", Some("POST /v1/check")),
            ("/v1/check/", Some("POST /v1/check")),
            ("/v2/check", Some("POST /v1/check")),
            ("/v1/Check", Some("POST /v1/check")),
            ("/ratelimit", Some("POST /v1/check")),
            ("/v1/reports", Some("POST /v1/report")),
            ("/auth", Some("any method /v1/auth")),
            ("/v1/json", Some("POST /json")),
            ("/openapi.json", Some("GET /v1/openapi.json")),
            ("/health", Some("GET /healthz")),
            ("/ready", Some("GET /readyz")),
            ("/", None),
            ("/v1", None),
            ("/favicon.ico", None),
        ] {
            let expected = expected.map(|expected| format!("did you mean {expected}?"));
            assert_eq!(did_you_mean(&HTTP_PATHS, path), expected, "{path}");
        }
        assert_eq!(
            did_you_mean(&ADMIN_PATHS, "/explain").unwrap(),
            "did you mean POST /v1/explain?"
        );
    }

    #[test]
    fn suggestions_include_every_endpoint() {
        for endpoint in Endpoint::ALL {
            assert!(find_path(&HTTP_PATHS, endpoint.as_str()).is_some(), "{}", endpoint.as_str());
        }
    }
}

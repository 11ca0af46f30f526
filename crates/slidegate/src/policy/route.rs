//! Route templates such as `/users/{id}`, and the search for the template that matches the path of a request.

use matchit::{InsertError, Router};
use thiserror::Error;

/// The maximum number of parameters in a route template. The router crate `matchit` gives each parameter a letter as
/// its name, and panics if a template has more parameters.
const MAX_TEMPLATE_PARAMETERS: usize = 25;

/// The route templates of a policy, such as `/users/{id}`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Routes {
    templates: Vec<Box<str>>,
    router: Router<u32>,
}

/// The reason why a template cannot be added to the routes of a policy.
#[derive(Debug, PartialEq, Eq, Error)]
pub(crate) enum RouteTemplateError {
    #[error("a route begins with `/`; did you mean `/{0}`?")]
    NoLeadingSlash(String),
    #[error("`{0}` is listed twice in `routes`; remove one")]
    Duplicate(String),
    #[error(
        "`{0}` contains `*`; write `{{name}}` for one segment of the path, or `{{*name}}` at the end for all remaining segments"
    )]
    InvalidWildcard(String),
    #[error("`{0}` has too many parameters; the maximum is {MAX_TEMPLATE_PARAMETERS}")]
    TooManyParameters(String),
    #[error(
        "some paths match both `{new}` and `{old}`; remove one, or use the same parameter names"
    )]
    Conflict { new: String, old: String },
    #[error(
        "`{0}` is not a route template; write `{{name}}` for one segment of the path, or `{{*name}}` at the end for all remaining segments"
    )]
    InvalidSyntax(String),
}

impl Routes {
    pub(crate) fn add_template(&mut self, template: &str) -> Result<(), RouteTemplateError> {
        let owned = || template.to_owned();
        if !template.starts_with('/') {
            return Err(RouteTemplateError::NoLeadingSlash(owned()));
        }
        if template.replace("{*", "{").contains('*') {
            return Err(RouteTemplateError::InvalidWildcard(owned()));
        }
        if template.matches('{').count() > MAX_TEMPLATE_PARAMETERS {
            return Err(RouteTemplateError::TooManyParameters(owned()));
        }
        let index = u32::try_from(self.templates.len()).unwrap_or(u32::MAX);
        self.router.insert(template, index).map_err(|error| match error {
            InsertError::Conflict { with } if with == template => {
                RouteTemplateError::Duplicate(with)
            }
            InsertError::Conflict { with } => {
                RouteTemplateError::Conflict { new: owned(), old: with }
            }
            _ => RouteTemplateError::InvalidSyntax(owned()),
        })?;
        self.templates.push(template.into());
        Ok(())
    }

    /// Returns the template that matches a path; `None` if no template matches. A `?` or `#` in `path` and the text
    /// after it are ignored.
    pub(crate) fn match_path(&self, path: &str) -> Option<&str> {
        let path = path_end_index(path.as_bytes()).map_or(path, |end| &path[..end]);
        let found = self.router.at(path).ok()?;
        self.templates.get(*found.value as usize).map(|template| &**template)
    }

    pub(crate) fn templates(&self) -> impl ExactSizeIterator<Item = &str> {
        self.templates.iter().map(|template| &**template)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.templates.is_empty()
    }
}

/// Returns the index of the first `?` or `#` in a path; `None` if there is neither. Compares eight bytes at once, since
/// every decision with a route calls this function.
fn path_end_index(path: &[u8]) -> Option<usize> {
    let (words, _) = path.as_chunks();
    let words = words.iter().map(|bytes| u64::from_ne_bytes(*bytes));
    let searched =
        8 * words.take_while(|&word| !has_byte(word, b'?') && !has_byte(word, b'#')).count();
    let rest = path[searched..].iter().position(|byte| matches!(byte, b'?' | b'#'));
    rest.map(|end| searched + end)
}

/// Returns whether one of the eight bytes of a word equals `byte`.
fn has_byte(word: u64, byte: u8) -> bool {
    const LOWEST_BITS: u64 = u64::from_ne_bytes([0x01; 8]);
    const HIGHEST_BITS: u64 = u64::from_ne_bytes([0x80; 8]);
    // A byte that equals `byte` becomes zero. Subtracting 1 from each byte then sets its highest bit. A borrow starts
    // only at a zero byte, so it cannot cause a wrong match.
    let difference = word ^ u64::from_ne_bytes([byte; 8]);
    difference.wrapping_sub(LOWEST_BITS) & !difference & HIGHEST_BITS != 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn path_ends_at_first_question_mark_or_hash(path in "[a/?#>@\\x01\u{80}é]{0,40}|[a/]{0,40}[?#]?") {
            prop_assert_eq!(path_end_index(path.as_bytes()), path.find(['?', '#']));
        }
    }

    #[test]
    fn most_specific_route_template_matches() {
        let mut routes = Routes::default();
        for template in ["/users/{id}", "/users/me", "/files/{*path}", "/"] {
            routes.add_template(template).unwrap();
        }
        let match_path = |path| routes.match_path(path);
        assert_eq!(match_path("/users/7"), Some("/users/{id}"));
        assert_eq!(match_path("/users/me?x=/files/a"), Some("/users/me"));
        assert_eq!(match_path("/files/a/b"), Some("/files/{*path}"));
        assert_eq!(match_path("/#top"), Some("/"));
        for path in ["/users/7/", "/users", "/nowhere", "", "users/7", "*", "?"] {
            assert_eq!(match_path(path), None, "{path}");
        }
    }

    #[test]
    fn invalid_template_error_contains_reason() {
        let mut routes = Routes::default();
        routes.add_template("/a/{b}").unwrap();
        let mut error = |template: &str| routes.add_template(template).unwrap_err().to_string();
        assert_eq!(error("users"), "a route begins with `/`; did you mean `/users`?");
        assert_eq!(error("/a/{b}"), "`/a/{b}` is listed twice in `routes`; remove one");
        assert!(error("/a/{c}").starts_with("some paths match both `/a/{c}` and `/a/{b}`"));
        assert!(error("/a/*").contains("write `{name}` for one segment"));
        assert!(error("/a/{b").starts_with("`/a/{b` is not a route template"));
        assert!(error("/x/{*y}/z").starts_with("`/x/{*y}/z` is not a route template"));
        assert!(error(&"/{a}".repeat(26)).ends_with("has too many parameters; the maximum is 25"));
        assert!(routes.add_template(&"/{a}".repeat(25)).is_ok());
    }
}

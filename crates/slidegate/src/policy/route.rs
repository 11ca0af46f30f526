//! Route templates: a raw path becomes the template that it is of.

use matchit::{InsertError, Router};
use thiserror::Error;

/// Parameters that a template may have: the router names them by letters, and panics after `y`.
const MAX_PARAMETERS: usize = 25;

/// The templates of a policy, such as `/users/{id}`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Routes {
    templates: Vec<Box<str>>,
    router: Router<u32>,
}

/// Why a template cannot be added.
#[derive(Debug, PartialEq, Eq, Error)]
pub(crate) enum RouteError {
    #[error("a route begins with `/`: did you mean `/{0}`?")]
    NoSlash(String),
    #[error("`{0}` stands in `routes` twice: take one away")]
    Twice(String),
    #[error(
        "`{0}` has a `*`: write `{{name}}` for one segment of the path, or end it with `{{*name}}` for all that follow"
    )]
    Star(String),
    #[error("`{0}` has too many parameters: at most {MAX_PARAMETERS}")]
    Parameters(String),
    #[error(
        "some paths are of `{new}` and of `{old}`: take one away, or name their parameters alike"
    )]
    Conflict { new: String, old: String },
    #[error(
        "`{0}` is no template: write `{{name}}` for a segment of the path, or end it with `{{*name}}` for all that follow"
    )]
    Form(String),
}

impl Routes {
    pub(crate) fn add(&mut self, template: &str) -> Result<(), RouteError> {
        let owned = || template.to_owned();
        if !template.starts_with('/') {
            return Err(RouteError::NoSlash(owned()));
        }
        if template.replace("{*", "{").contains('*') {
            return Err(RouteError::Star(owned()));
        }
        if template.matches('{').count() > MAX_PARAMETERS {
            return Err(RouteError::Parameters(owned()));
        }
        let nth = u32::try_from(self.templates.len()).unwrap_or(u32::MAX);
        self.router.insert(template, nth).map_err(|error| match error {
            InsertError::Conflict { with } if with == template => RouteError::Twice(with),
            InsertError::Conflict { with } => RouteError::Conflict { new: owned(), old: with },
            _ => RouteError::Form(owned()),
        })?;
        self.templates.push(template.into());
        Ok(())
    }

    /// The template that a path is of. What stands behind `?` or `#` is no part of the path.
    pub(crate) fn of_path(&self, path: &str) -> Option<&str> {
        let path = path.find(['?', '#']).map_or(path, |end| &path[..end]);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_particular_template_wins() {
        let mut routes = Routes::default();
        for template in ["/users/{id}", "/users/me", "/files/{*path}", "/"] {
            routes.add(template).unwrap();
        }
        let of_path = |path| routes.of_path(path);
        assert_eq!(of_path("/users/7"), Some("/users/{id}"));
        assert_eq!(of_path("/users/me?x=/files/a"), Some("/users/me"));
        assert_eq!(of_path("/files/a/b"), Some("/files/{*path}"));
        assert_eq!(of_path("/#top"), Some("/"));
        for path in ["/users/7/", "/users", "/nowhere", "", "users/7", "*", "?"] {
            assert_eq!(of_path(path), None, "{path}");
        }
    }

    #[test]
    fn a_template_that_cannot_be_says_why() {
        let mut routes = Routes::default();
        routes.add("/a/{b}").unwrap();
        let mut error = |template: &str| routes.add(template).unwrap_err().to_string();
        assert_eq!(error("users"), "a route begins with `/`: did you mean `/users`?");
        assert_eq!(error("/a/{b}"), "`/a/{b}` stands in `routes` twice: take one away");
        assert!(error("/a/{c}").starts_with("some paths are of `/a/{c}` and of `/a/{b}`"));
        assert!(error("/a/*").contains("write `{name}` for one segment"));
        assert!(error("/a/{b").starts_with("`/a/{b` is no template"));
        assert!(error("/x/{*y}/z").starts_with("`/x/{*y}/z` is no template"));
        assert!(error(&"/{a}".repeat(26)).ends_with("has too many parameters: at most 25"));
        assert!(routes.add(&"/{a}".repeat(25)).is_ok());
    }
}

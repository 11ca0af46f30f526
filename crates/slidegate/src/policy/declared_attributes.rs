//! The attributes that a policy declares, in its field `attributes`.

use super::NameMap;

/// The names of the attributes that a policy declares. A rule may use only these names, so that a misspelt name is an
/// error.
#[derive(Clone, Debug, Default)]
pub(super) enum DeclaredAttributes {
    /// Rules may use any names.
    #[default]
    Undeclared,
    /// The names that the rules of all domains may use.
    ForAllDomains(Box<[Box<str>]>),
    /// The names that the rules of each listed domain may use. Rules of other domains may use any names.
    ByDomain(NameMap<Box<[Box<str>]>>),
}

impl DeclaredAttributes {
    /// Returns the names that the rules of a domain may use; `None` if they may use any names.
    pub(super) fn names_for_domain(&self, domain: &str) -> Option<&[Box<str>]> {
        match self {
            Self::Undeclared => None,
            Self::ForAllDomains(names) => Some(names),
            Self::ByDomain(domains) => domains.get(domain).map(|names| &**names),
        }
    }
}
